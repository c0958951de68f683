"""What the tests of the suite share: the provider and its sandboxes, the bound of a test, and what is optional."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from gym.sandbox.interface import Sandbox, SandboxProvider, SandboxSpec

SECONDS = 120.0
"""Bound of a test, and of closing the provider after it."""

BLOCKED_SECONDS = 5.0
"""How much later a blocked event loop is interrupted."""

T = TypeVar("T")
MakeProvider = Callable[[], SandboxProvider]


@contextmanager
def _alarm() -> Iterator[None]:
    """Interrupts a provider that blocks the event loop, where no timeout of the loop's own can help."""

    def late(*_: object) -> None:
        raise AssertionError(f"the event loop was blocked for more than {SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS + BLOCKED_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Threads(ThreadPoolExecutor):
    """Threads that nobody waits for at the end: one that a wrong provider blocks for ever must not keep the run."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                result = function(*args, **named)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        future.set_running_or_notify_cancel()
        threading.Thread(target=run, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del wait
        super().shutdown(wait=False, cancel_futures=cancel_futures)


@pytest_asyncio.fixture
async def provider(make_provider: MakeProvider) -> AsyncIterator[SandboxProvider]:
    """A new provider for each test; the fixture `make_provider` is the caller's."""
    asyncio.get_running_loop().set_default_executor(_Threads())
    made = make_provider()
    yield made
    await _bounded(made.aclose(), "the provider did not close")


@pytest.fixture
def spec() -> SandboxSpec:
    """What the fixture `sandbox` asks for."""
    return SandboxSpec()


@pytest_asyncio.fixture
async def sandbox(provider: SandboxProvider, spec: SandboxSpec) -> Sandbox:
    """A sandbox of the provider."""
    return await _bounded(provider.create(spec), "no sandbox was made")


def check(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test of the suite: it runs whatever mode pytest-asyncio is in, and fails rather than hangs."""

    @functools.wraps(test)
    async def bounded(*args: Any, **fixtures: Any) -> None:
        await _bounded(test(*args, **fixtures), "the test did not end")

    marked: Callable[..., Awaitable[None]] = pytest.mark.asyncio(bounded)
    return marked


def own(subject: Sandbox | SandboxProvider, method: str) -> None:
    """Skips the test of an optional method that is left to the interface."""
    base = Sandbox if isinstance(subject, Sandbox) else SandboxProvider
    if not has_own(subject, method):
        pytest.skip(f"{type(subject).__name__} has no `{method}` of its own, which `{base.__name__}` calls optional")


def has_own(subject: Sandbox | SandboxProvider, method: str) -> bool:
    """Whether an optional method is more than the interface's."""
    base = Sandbox if isinstance(subject, Sandbox) else SandboxProvider
    return getattr(type(subject), method) is not getattr(base, method)


async def _bounded(work: Awaitable[T], what: str) -> T:
    try:
        with _alarm():
            async with asyncio.timeout(SECONDS) as bound:
                return await work
    except TimeoutError:
        if not bound.expired():
            raise
        raise AssertionError(f"{what} within {SECONDS:g} s") from None
