"""When a sandbox ends and why, and who uses it until then. Shared by the providers' sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, Protocol, TypeVar

from gym.errors import UserError
from gym.failures import EpisodeFailure


class Stoppable(Protocol):
    """A provider's sandbox; `freed` once `stop` has succeeded."""

    freed: bool

    async def stop(self) -> None:
        """See `Sandbox.stop`."""


S = TypeVar("S", bound=Stoppable)


class Live(Generic[S]):
    """The sandboxes of one provider that may have to be stopped."""

    def __init__(self) -> None:
        self._sandboxes: list[S] = []

    def keep(self, sandbox: S) -> S:
        """Remember a sandbox until it is freed; returns it."""
        self._sandboxes = [*(one for one in self._sandboxes if not one.freed), sandbox]
        return sandbox

    def forget(self, sandbox: S) -> None:
        """Leave a sandbox to somebody else."""
        self._sandboxes.remove(sandbox)

    async def stop(self) -> list[str]:
        """Stop all; returns why some could not be."""
        results = await asyncio.gather(*(sandbox.stop() for sandbox in self._sandboxes), return_exceptions=True)
        return [str(result) for result in results if isinstance(result, Exception)]


class Life:
    """The life of one sandbox, as its owner or a borrower sees it.

    Attributes:
        ended: Why it must not be used any more; set once.
    """

    def __init__(self, sandbox_id: str, *, owned: bool = True) -> None:
        self._name = f"sandbox {sandbox_id}"
        self._owned = owned
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

    def refuse_borrower(self, what: str) -> None:
        """Raises UserError for one that is borrowed: `renew` and `fence` are for its owner."""
        if not self._owned:
            raise UserError(f"{self._name} is borrowed: only its owner can {what} it")

    async def unused(self) -> None:
        """Wait until no call uses it."""
        if self._uses:
            await asyncio.wait(self._uses)
