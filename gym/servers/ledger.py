"""Sessions under ids that their callers assign: opened once and closed once, whatever is retried or overlaps.

An identical retry joins the work that runs, or gets its outcome; a conflicting one is refused with 409. A caller that
goes away stops nothing. Closing fences: it stops an opening that still runs, and refuses a seed that comes later.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from gym.servers.base import ServerError
from gym.servers.contract import AgentSessionRequest, EpisodeId, SeedSessionRequest
from gym.servers.waiting import background, ended, joined

SessionT = TypeVar("SessionT")
AnswerT = TypeVar("AnswerT", bound=BaseModel)
Seed = AgentSessionRequest | SeedSessionRequest

RECEIPT_SECONDS = 300.0
log = logging.getLogger(__name__)


@dataclass
class _Entry(Generic[SessionT, AnswerT]):
    session: SessionT
    seed: Seed
    opening: asyncio.Task[None] | None = None
    closing: asyncio.Task[AnswerT] | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class _Receipt(Generic[AnswerT]):
    """What a close has answered, packed: it can hold a whole trajectory, and is hardly ever asked for."""

    closed_at: float
    episode_id: EpisodeId | None
    packed: bytes

    @classmethod
    def of(cls, episode_id: EpisodeId | None, answer: AnswerT) -> _Receipt[AnswerT]:
        return cls(time.monotonic(), episode_id, zlib.compress(pickle.dumps(answer), level=1))

    @property
    def answer(self) -> AnswerT:
        answer: AnswerT = pickle.loads(zlib.decompress(self.packed))
        return answer


class Ledger(Generic[SessionT, AnswerT]):
    """The sessions of one server.

    Attributes:
        sessions: What is open, opening or closing, by session id.
    """

    def __init__(
        self,
        prepare: Callable[[SessionT], Awaitable[None]],
        release: Callable[[SessionT], Awaitable[AnswerT]],
        receipt_seconds: float = RECEIPT_SECONDS,
    ) -> None:
        """`prepare` opens a session; `release` frees it, also a half-opened one, and may be called again."""
        self._prepare = prepare
        self._release = release
        self._receipt_seconds = receipt_seconds
        self._entries: dict[str, _Entry[SessionT, AnswerT]] = {}
        self._receipts: dict[str, _Receipt[AnswerT]] = {}
        self.sessions: dict[str, SessionT] = {}

    async def open(
        self, session_id: str, seed: Seed, make: Callable[[], SessionT], *, was_open: bool = False
    ) -> SessionT:
        """The session of `session_id`, opened by this call or by an identical one before.

        A failed opening is undone, and may be asked for again. `was_open` tells that the caller has a cookie of it.

        Raises:
            ServerError: 409 for an id that is closed, closing, or was seeded with another body.
            Exception: Whatever opening raised, for everyone who waits for it.
        """
        self._forget_old_receipts()
        entry = self._entries.get(session_id)
        if session_id in self._receipts or (entry is None and was_open):
            raise ServerError(409, "the session is closed")
        if entry is None:
            entry = _Entry(make(), seed)
            self._entries[session_id] = entry
            self.sessions[session_id] = entry.session
            entry.opening = background(self._open(session_id, entry))
        elif entry.closing is not None or entry.broken:
            raise ServerError(409, "the session is closing")
        elif entry.seed != seed:
            raise ServerError(409, "the session was seeded with another body")
        if entry.opening is not None:
            await joined(entry.opening)
        return entry.session

    def active(self, session_id: str) -> SessionT:
        """An open session.

        Raises:
            ServerError: 409 for a session that is unknown, not open yet, closing or closed.
        """
        entry = self._entries.get(session_id)
        if entry is None or entry.opening is not None or entry.closing is not None or entry.broken:
            raise ServerError(409, "the session is closed or unknown")
        return entry.session

    async def close(
        self, session_id: str, episode_id: EpisodeId | None, absent: AnswerT, *, was_open: bool = False
    ) -> AnswerT:
        """Closes a session once; its answer can be asked for again while the receipt lives.

        An id that is not known is fenced, and answered with `absent`. After a failure the session stays closing, and
        the next call tries again.

        Raises:
            ServerError: 409 for a session of another episode, or whose receipt has expired.
            Exception: Whatever releasing raised.
        """
        self._forget_old_receipts()
        receipt = self._receipts.get(session_id)
        if receipt is not None:
            _refuse_foreign(receipt.episode_id, episode_id)
            return receipt.answer
        entry = self._entries.get(session_id)
        if entry is None:
            if was_open:
                raise ServerError(409, "the session's close receipt has expired")
            self._receipts[session_id] = _Receipt.of(episode_id, absent)
            return absent
        _refuse_foreign(entry.seed.episode_id, episode_id)
        return await joined(self._start_closing(session_id, entry))

    async def close_all(self) -> None:
        """Closes what nobody closed; failures are logged."""
        closing = {session_id: self._start_closing(session_id, entry) for session_id, entry in self._entries.items()}
        if closing:
            await asyncio.wait(closing.values())
        for session_id, task in closing.items():
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("session %s could not be closed: %s: %s", session_id, type(error).__name__, error)

    def _start_closing(self, session_id: str, entry: _Entry[SessionT, AnswerT]) -> asyncio.Task[AnswerT]:
        running = entry.closing
        failed = running is not None and running.done() and (running.cancelled() or running.exception() is not None)
        if running is None or failed:
            running = entry.closing = background(self._close(session_id, entry))
        return running

    async def _open(self, session_id: str, entry: _Entry[SessionT, AnswerT]) -> None:
        try:
            await self._prepare(entry.session)
        except BaseException:
            entry.broken = True
            if entry.closing is None:
                await self._undo(session_id, entry)
            raise
        entry.opening = None

    async def _undo(self, session_id: str, entry: _Entry[SessionT, AnswerT]) -> None:
        try:
            await self._release(entry.session)
        except Exception as error:
            log.warning("half-opened session %s is not freed yet: %s: %s", session_id, type(error).__name__, error)
        else:
            if entry.closing is None:
                self._drop(session_id)

    async def _close(self, session_id: str, entry: _Entry[SessionT, AnswerT]) -> AnswerT:
        if entry.broken and entry.opening is not None and not entry.opening.done():
            await asyncio.wait([entry.opening])  # it is being undone: let that end
        await ended(entry.opening)
        answer = await self._release(entry.session)
        self._receipts[session_id] = _Receipt.of(entry.seed.episode_id, answer)
        self._drop(session_id)
        return answer

    def _drop(self, session_id: str) -> None:
        self._entries.pop(session_id, None)
        self.sessions.pop(session_id, None)

    def _forget_old_receipts(self) -> None:
        oldest = time.monotonic() - self._receipt_seconds
        while self._receipts:
            session_id = next(iter(self._receipts))
            if self._receipts[session_id].closed_at >= oldest:
                return
            del self._receipts[session_id]


def _refuse_foreign(owner: EpisodeId | None, asking: EpisodeId | None) -> None:
    if owner is not None and asking is not None and owner != asking:
        raise ServerError(409, "the session belongs to another episode")
