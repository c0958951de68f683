"""The activations of one agent session, in order: each index runs once, on one body.

An identical request joins the run, or gets its outcome; anything else at a known index is a conflict. A caller that
goes away stops nothing. A session takes one activation, unless it was opened to continue: then the next one may begin
when the one before it has ended well.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gym.servers.base import ServerError
from gym.servers.contract import ACTIVATION_HEADER
from gym.servers.waiting import background, ended

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class _Activation(Generic[ResultT]):
    digest: bytes
    work: asyncio.Task[ResultT]


class Activations(Generic[ResultT]):
    """What a session was asked to do so far.

    Attributes:
        continues: Whether the session takes more than one.
    """

    def __init__(self, *, continues: bool) -> None:
        self.continues = continues
        self._begun: list[_Activation[ResultT]] = []

    def __len__(self) -> int:
        return len(self._begun)

    def index(self, headers: Mapping[str, str]) -> int:
        """The 1-based index that a request asks for.

        Raises:
            ServerError: 422 for a header that is no index, or that a session which continues needs and lacks.
        """
        text = headers.get(ACTIVATION_HEADER)
        if text is None and self.continues:
            raise ServerError(422, f"the session continues: its requests carry {ACTIVATION_HEADER}: 1, 2, ...")
        if text is not None and not re.fullmatch("[1-9][0-9]{0,8}", text):
            raise ServerError(422, f"{ACTIVATION_HEADER} is 1, 2, ...; not `{text[:20]}`")
        return int(text or 1)

    def known(self, index: int, digest: bytes) -> asyncio.Task[ResultT] | None:
        """The work of an activation that has begun; None for the next one, which may begin now.

        Raises:
            ServerError: 409 for another body at a known index, and for an index that cannot begin now.
        """
        if index > len(self._begun):
            self._refuse_early(index)
            return None
        begun = self._begun[index - 1]
        if begun.digest != digest:
            raise ServerError(409, f"activation {index} of the session was made with another body")
        return begun.work

    def begin(self, digest: bytes, run: Callable[[], Coroutine[Any, Any, ResultT]]) -> asyncio.Task[ResultT]:
        """Starts the next activation. Call it right after `known` gave None."""
        activation = _Activation(digest, background(run()))
        self._begun.append(activation)
        return activation.work

    async def end(self) -> None:
        """Cancels what runs and waits for its end."""
        for activation in self._begun[-1:]:
            await ended(activation.work)

    def _refuse_early(self, index: int) -> None:
        if index > 1 and not self.continues:
            raise ServerError(409, "the session takes one activation; `continuation` in its seed asks for more")
        if index > len(self._begun) + 1:
            raise ServerError(409, f"activation {index} of the session skips activation {len(self._begun) + 1}")
        if not self._begun:
            return
        last = self._begun[-1].work
        if not last.done():
            raise ServerError(409, f"activation {index - 1} of the session still runs")
        if last.cancelled() or last.exception() is not None:
            raise ServerError(409, f"activation {index - 1} of the session failed: it can only be closed")
