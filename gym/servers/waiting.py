"""Waiting for work that several callers share, or that must not be cut short by its caller's cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gym.failures import EpisodeFailure

ResultT = TypeVar("ResultT")


def background(work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
    """Starts work that outlives its callers. Keep the task; its exception is never reported as unretrieved."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieve)
    return task


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def joined(task: asyncio.Task[ResultT]) -> ResultT:
    """The outcome of shared work. A cancelled caller stops waiting; the work goes on.

    Raises:
        EpisodeFailure: `cancelled`: the work itself was cancelled.
    """
    if not task.done():
        await asyncio.wait([task])
    if task.cancelled():
        raise EpisodeFailure("cancelled", "the session was closed meanwhile")
    return task.result()


async def ended(task: asyncio.Task[Any] | None) -> None:
    """Cancels shared work, unless it is done, and waits until it has ended."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])
