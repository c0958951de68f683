"""When a sandbox ends and why, and who uses it until then. Shared by the providers' sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from gym.failures import EpisodeFailure


class Life:
    """The life of one sandbox, as its owner or a borrower sees it.

    Attributes:
        ended: Why it must not be used any more; set once.
    """

    def __init__(self, sandbox_id: str) -> None:
        self._name = f"sandbox {sandbox_id}"
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._uses: set[asyncio.Future[None]] = set()
        self._expiry: asyncio.Task[None] | None = None

    def end(self, reason: str) -> None:
        """From now on it is refused with this reason: `is stopped`, for example."""
        if not self.ended.done():
            self.ended.set_result(f"{self._name} {reason}")

    def expire_after(self, seconds: float, stop: Callable[[], Awaitable[None]]) -> None:
        """Call `stop` when its time is up, even if its owner does not; replaces an earlier bound."""

        async def expire() -> None:
            await asyncio.sleep(seconds)
            self.end(f"has outlived its ttl of {seconds:g} s")
            # A failure is told by the owner's own `stop`, which tries again.
            with suppress(EpisodeFailure):
                await stop()

        self.never_expire()
        self._expiry = asyncio.ensure_future(expire())

    def never_expire(self) -> None:
        """Forget the bound, unless it is the one that calls."""
        if self._expiry is not None and self._expiry is not asyncio.current_task():
            self._expiry.cancel()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """The time of one call: refused after the end, and waited for by `unused`.

        Raises:
            EpisodeFailure: `sandbox_lost`: it has ended.
        """
        self.refuse_ended()
        done = asyncio.get_running_loop().create_future()
        self._uses.add(done)
        try:
            yield
        finally:
            self._uses.discard(done)
            done.set_result(None)

    def refuse_ended(self) -> None:
        """Raises `sandbox_lost` after the end."""
        if self.ended.done():
            raise EpisodeFailure("sandbox_lost", self.ended.result())

    async def unused(self) -> None:
        """Wait until no call uses it."""
        if self._uses:
            await asyncio.wait(self._uses)
