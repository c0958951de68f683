"""Work that outlives its callers, and work that is not cut short."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gym.failures import EpisodeFailure
from gym.sandbox.waiting import uncancelled
from gym.servers.waiting import background, ended, joined


async def fail() -> None:
    raise ValueError("it failed")


async def test_an_exception_that_nobody_asks_for_is_not_reported() -> None:
    reports: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    task = background(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    assert reports == []


async def test_callers_share_an_outcome() -> None:
    task = background(fail())
    for _ in range(2):
        with pytest.raises(ValueError, match="it failed"):
            await joined(task)


async def test_a_cancelled_caller_leaves_the_work_alone() -> None:
    gate = asyncio.Event()
    task = background(gate.wait())
    caller = asyncio.create_task(joined(task))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    assert await joined(task) is True


async def test_cancelled_work_is_a_failure_for_its_callers() -> None:
    task = background(asyncio.Event().wait())
    caller = asyncio.create_task(joined(task))
    await asyncio.sleep(0)
    await ended(task)
    with pytest.raises(EpisodeFailure) as caught:
        await caller
    assert caught.value.kind == "cancelled"
    await ended(task)
    await ended(None)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cancellations", [0, 1, 3])
async def test_to_the_end(fails: bool, cancellations: int) -> None:
    gate = asyncio.Event()
    steps: list[str] = []

    async def work() -> str:
        await gate.wait()
        steps.append("done")
        if fails:
            raise ValueError("it failed")
        return "result"

    caller = asyncio.create_task(uncancelled(work()))
    for _ in range(cancellations):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    gate.set()
    outcome = (await asyncio.gather(caller, return_exceptions=True))[0]
    assert steps == ["done"]
    if cancellations:
        assert isinstance(outcome, asyncio.CancelledError)
    else:
        assert isinstance(outcome, ValueError) if fails else outcome == "result"
