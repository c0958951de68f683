"""Work that several callers share, and that is done again after it has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One piece of work: done when it is first asked for, and kept.

    Args:
        work: Does it. A cancelled caller leaves it running.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The outcome. Raises what the work raises; then the next caller starts it again."""
        if self._task is None or (self._task.done() and (self._task.cancelled() or self._task.exception())):
            self._task = asyncio.create_task(self._work())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._task)

    async def ended(self, *, cancel: bool = False) -> T | None:
        """Wait until nothing runs any more, and return the outcome if there is one. Raises nothing."""
        if self._task is None:
            return None
        if cancel:
            self._task.cancel()
        await asyncio.wait({self._task})
        return None if self._task.cancelled() or self._task.exception() else self._task.result()
