"""Seeds, closes, failures and lost callers in any order and overlap: nothing opens twice, nothing stays open."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gym.failures import EpisodeFailure
from gym.servers.base import ServerError
from gym.servers.contract import CloseSessionResponse, EpisodeId, SeedSessionRequest, TaskId
from gym.servers.ledger import Ledger

IDS = st.sampled_from(["s1", "s2"])
WORK = st.sampled_from(["prepare", "release"])
ROLLOUTS = st.sampled_from(["r1", "r1", "r1", "r2"])


def seed_of(session_id: str, rollout: str = "r1") -> SeedSessionRequest:
    task = TaskId(taskset="t", task_id="1")
    return SeedSessionRequest(resources_session_id=session_id, episode_id=EpisodeId(rollout_id=rollout), task_id=task)


@dataclass
class Thing:
    """A session: what has been done to it."""

    id: str
    preparing: bool = False
    prepared: int = 0
    releasing: bool = False
    released: int = 0


class Shop:
    """Prepares and releases things, each as slowly and as badly as it is told."""

    def __init__(self, receipt_seconds: float = 300) -> None:
        self.ledger: Ledger[Thing, CloseSessionResponse] = Ledger(self.prepare, self.release, receipt_seconds)
        self.things: list[Thing] = []
        self.gates = {"prepare": asyncio.Event(), "release": asyncio.Event()}
        self.failing: set[str] = set()
        self.interrupted = 0

    def make(self, session_id: str) -> Thing:
        self.things.append(Thing(session_id))
        return self.things[-1]

    async def prepare(self, thing: Thing) -> None:
        assert not any(other.preparing for other in self.things if other.id == thing.id)
        thing.preparing = True
        thing.prepared += 1
        try:
            await self._work("prepare")
        finally:
            thing.preparing = False

    async def release(self, thing: Thing) -> CloseSessionResponse:
        assert not thing.preparing
        assert not thing.releasing
        thing.releasing = True
        try:
            await self._work("release")
        except asyncio.CancelledError:
            self.interrupted += 1
            raise
        finally:
            thing.releasing = False
        thing.released += 1
        return CloseSessionResponse.model_validate({"resources_session_id": thing.id, "released": thing.released})

    async def _work(self, what: str) -> None:
        await self.gates[what].wait()
        if what in self.failing:
            raise EpisodeFailure("sandbox_lost", "it failed")

    def open_gates(self) -> None:
        self.failing.clear()
        for gate in self.gates.values():
            gate.set()

    async def seed(self, session_id: str, rollout: str) -> Thing:
        return await self.ledger.open(session_id, seed_of(session_id, rollout), lambda: self.make(session_id))

    async def close(self, session_id: str, rollout: str) -> CloseSessionResponse:
        absent = CloseSessionResponse(resources_session_id=session_id)
        return await self.ledger.close(session_id, EpisodeId(rollout_id=rollout), absent)


class LedgerMachine(RuleBasedStateMachine):
    """Drives a ledger from many callers."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.shop = Shop()
        self.callers: list[tuple[str, str, asyncio.Task[Any]]] = []
        self.closed: set[str] = set()

    def _step(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule(session_id=IDS, rollout=ROLLOUTS, steps=st.integers(0, 3))
    def seed(self, session_id: str, rollout: str, steps: int) -> None:
        self._call("seed", session_id, self.shop.seed(session_id, rollout), steps)

    @rule(session_id=IDS, rollout=ROLLOUTS, steps=st.integers(0, 3))
    def close(self, session_id: str, rollout: str, steps: int) -> None:
        self._call("close", session_id, self.shop.close(session_id, rollout), steps)

    def _call(self, what: str, session_id: str, work: Any, steps: int) -> None:
        known_closed = session_id in self.closed
        task = self.loop.create_task(work)
        self.callers.append((what if not known_closed else f"late {what}", session_id, task))
        for _ in range(steps):
            self._step()

    @rule(what=WORK, is_open=st.booleans())
    def turn_a_gate(self, what: str, is_open: bool) -> None:
        gate = self.shop.gates[what]
        gate.set() if is_open else gate.clear()

    @rule(what=WORK, fails=st.booleans())
    def work_fails(self, what: str, fails: bool) -> None:
        self.shop.failing ^= {what} if fails != (what in self.shop.failing) else set()

    @rule(index=st.integers(0, 20))
    def a_caller_goes_away(self, index: int) -> None:
        if self.callers:
            self.callers[index % len(self.callers)][2].cancel()

    @rule(steps=st.integers(1, 12))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    @invariant()
    def outcomes_are_right(self) -> None:
        waiting = []
        for what, session_id, task in self.callers:
            if not task.done():
                waiting.append((what, session_id, task))
            elif not task.cancelled():
                self._check(what, session_id, task)
        self.callers = waiting

    def _check(self, what: str, session_id: str, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        assert error is None or isinstance(error, EpisodeFailure | ServerError), error
        if what == "close" and error is None:
            self.closed.add(session_id)
        if what == "late seed":
            assert isinstance(error, ServerError)
            assert error.status == 409

    def teardown(self) -> None:
        self.shop.open_gates()
        self.loop.run_until_complete(self._end())
        self.outcomes_are_right()
        assert self.callers == []
        assert self.shop.ledger.sessions == {}
        assert self.shop.interrupted == 0
        for thing in self.shop.things:
            assert (thing.prepared, thing.preparing, thing.releasing) == (1, False, False)
            assert thing.released >= 1
        self.loop.close()

    async def _end(self) -> None:
        if self.callers:
            await asyncio.wait([task for _, _, task in self.callers])
        await self.shop.ledger.close_all()


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestLedger = LedgerMachine.TestCase


async def test_a_receipt_is_small_and_says_the_same() -> None:
    shop = Shop()
    shop.open_gates()
    said = CloseSessionResponse.model_validate({"resources_session_id": "a", "words": "a \ud800 word " * 100_000})
    tracemalloc.start()
    first = await shop.ledger.close("a", None, said)
    assert tracemalloc.get_traced_memory()[0] < 100_000
    tracemalloc.stop()
    again = await shop.ledger.close("a", None, CloseSessionResponse(resources_session_id="other"))
    assert (again, again.model_fields_set) == (first, first.model_fields_set)


async def test_receipts_are_forgotten_after_their_window() -> None:
    shop = Shop(receipt_seconds=0.01)
    shop.open_gates()
    await shop.seed("s1", "r1")
    first = await shop.close("s1", "r1")
    assert await shop.close("s1", "r1") == first
    await asyncio.sleep(0.02)
    assert (await shop.close("s1", "r1")).model_extra == {}
    with pytest.raises(ServerError, match="receipt has expired"):
        await shop.ledger.close("s2", EpisodeId(rollout_id="r1"), first, was_open=True)
    with pytest.raises(ServerError, match="the session is closed"):
        await shop.ledger.open("s2", seed_of("s2"), lambda: shop.make("s2"), was_open=True)


async def test_only_open_sessions_are_active() -> None:
    shop = Shop()
    opening = asyncio.create_task(shop.seed("s1", "r1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for session_id in ("s1", "s2"):
        with pytest.raises(ServerError, match="closed or unknown"):
            shop.ledger.active(session_id)
    shop.open_gates()
    thing = await opening
    assert shop.ledger.active("s1") is thing


async def test_what_nobody_closed_is_closed_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    shop.open_gates()
    await asyncio.gather(*(shop.seed(f"s{n}", "r1") for n in range(3)))
    shop.failing.add("release")
    await shop.ledger.close_all()
    assert caplog.text.count("could not be closed: EpisodeFailure: it failed") == 3
    shop.failing.clear()
    await shop.ledger.close_all()
    assert [thing.released for thing in shop.things] == [1, 1, 1]
    await shop.ledger.close_all()


async def test_a_close_lets_an_undoing_end_and_nothing_slips_in_between() -> None:
    shop = Shop()
    shop.gates["prepare"].set()
    shop.failing.add("prepare")
    opening = asyncio.create_task(shop.seed("s1", "r1"))
    while not (shop.things and shop.things[0].releasing):
        await asyncio.sleep(0)
    closing = asyncio.create_task(shop.close("s1", "r1"))
    await asyncio.sleep(0)
    shop.open_gates()
    late = []
    while not closing.done():
        late.append(asyncio.create_task(shop.seed("s1", "r1")))
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(opening, *late, return_exceptions=True)
    assert isinstance(outcomes[0], EpisodeFailure)
    assert all(isinstance(outcome, ServerError) for outcome in outcomes[1:])
    assert (shop.interrupted, len(shop.things), shop.ledger.sessions) == (0, 1, {})


async def test_what_could_not_be_undone_is_closing_for_everyone_else() -> None:
    shop = Shop()
    for gate in shop.gates.values():
        gate.set()
    shop.failing |= {"prepare", "release"}
    with pytest.raises(EpisodeFailure):
        await shop.seed("s1", "r1")
    with pytest.raises(ServerError, match="the session is closing"):
        await shop.seed("s1", "r1")
    shop.failing.clear()
    await shop.close("s1", "r1")
    assert shop.things[0].released == 1
