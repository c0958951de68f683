"""A streamed answer on its way to the client: what has come goes out at once, and silence is filled.

A task of its own reads ahead, so that pieces which came together go out together, and a keep-alive comment can be sent
while the upstream says nothing. An error before the first piece is raised, so that it can be an HTTP status; a later
one becomes the API's own error event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from gym.apis.sse import KEEP_ALIVE
from gym.servers.waiting import background, ended

KEEP_ALIVE_SECONDS = 15.0
"""Silence after which a comment is sent."""

READ_AHEAD = 64
"""Pieces that wait for a slow client before the upstream has to wait too."""

Pieces = AsyncGenerator[bytes, None]


class EventStream:
    """An async iterator of bytes over `pieces`; close it with `aclose`, which ends the upstream call.

    Args:
        pieces: The events, in pieces of any size.
        failure: How the API tells that a stream broke off.
    """

    def __init__(self, pieces: Pieces, failure: Callable[[Exception], bytes]) -> None:
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(READ_AHEAD)
        self._failure = failure
        self._first: bytes | Exception | None = b""
        self._tail = b"\n\n"
        self._over = False
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._fill)
        self._pump = background(self._read(pieces))

    async def begin(self) -> EventStream:
        """Waits for the first piece, but no longer than until a keep-alive is due.

        Raises:
            Exception: What went wrong before the first piece.
        """
        try:
            self._first = await self._queue.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if isinstance(self._first, Exception):
            await self.aclose()
            raise self._first
        return self

    async def aclose(self) -> None:
        """Stops reading; returns when the upstream call has ended."""
        self._timer.cancel()
        await ended(self._pump)

    async def _read(self, pieces: Pieces) -> None:
        end: Exception | None = None
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    self._heard_at = self._loop.time()
                    await self._queue.put(piece)
        except Exception as error:
            # Any fault has to reach the client: nobody else waits for this task.
            end = error
        await self._queue.put(end)

    def _fill(self) -> None:
        """Puts a keep-alive after a silence, and looks again when the next one would be due."""
        if self._loop.time() >= self._heard_at + KEEP_ALIVE_SECONDS:
            self._heard_at = self._loop.time()
            if self._queue.empty():
                self._queue.put_nowait(KEEP_ALIVE)
        self._timer = self._loop.call_at(self._heard_at + KEEP_ALIVE_SECONDS, self._fill)

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        got, self._first = self._first, b""
        while got == b"" or (got is KEEP_ALIVE and not self._between_events()):
            got = await self._queue.get()
        sent = self._gathered(got) if isinstance(got, bytes) else self._last(got)
        if not sent:
            raise StopAsyncIteration
        self._tail = sent[-4:] if len(sent) >= 4 else (self._tail + sent)[-4:]
        return sent

    def _gathered(self, first: bytes) -> bytes:
        """The piece, with all that came meanwhile."""
        if self._queue.empty():
            return first
        gathered = [first]
        while not self._queue.empty():
            more = self._queue.get_nowait()
            self._tail = gathered[-1][-4:]
            gathered.append(more if isinstance(more, bytes) else self._last(more))
        return b"".join(gathered)

    def _last(self, end: Exception | None) -> bytes:
        self._over = True
        self._timer.cancel()
        if end is None:
            return b""
        return (b"" if self._between_events() else b"\n\n") + self._failure(end)

    def _between_events(self) -> bool:
        return self._tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
