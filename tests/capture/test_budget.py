"""Budgets: exact in calls, counted in flight, and never refusing what would still have had its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gym.capture.budget import Budgets, Meter, PolicyCalls, Spent, Ticket
from gym.capture.prices import Cost
from gym.capture.usage import Tokens
from gym.failures import POLICIES, EpisodeFailure, exhausted_budget


def settled(meter: Meter, ticket: Ticket, tokens: int, usd: float | None = None) -> None:
    cost = Cost() if usd is None else Cost(usd, "table")
    meter.settle(ticket, Tokens(tokens - 1, None, 1), cost, Spent(tokens, usd or 0.0))


@pytest.mark.parametrize(
    ("limits", "tokens", "usd", "calls", "name"),
    [
        ({"max_policy_calls": 3}, 100, None, 3, "max_policy_calls"),
        ({"max_policy_tokens": 250}, 100, None, 3, "max_policy_tokens"),
        ({"max_policy_tokens": 200}, 100, None, 2, "max_policy_tokens"),
        ({"max_policy_cost_usd": 0.25}, 1, 0.1, 3, "max_policy_cost_usd"),
        ({"max_run_calls": 2, "max_policy_calls": 3}, 1, None, 2, "max_run_calls"),
        ({"max_run_tokens": 150}, 100, None, 2, "max_run_tokens"),
        ({"max_run_cost_usd": 1.0, "max_policy_tokens": 10_000}, 1, 0.5, 2, "max_run_cost_usd"),
    ],
)
async def test_calls_end_where_a_budget_does(
    limits: dict[str, Any], tokens: int, usd: float | None, calls: int, name: str
) -> None:
    meter = Meter(Budgets(**limits))
    for _ in range(calls):
        settled(meter, await meter.admit("r", 1, 0.0), tokens, usd)
    for _ in range(2):
        with pytest.raises(EpisodeFailure) as refused:
            await meter.admit("r", 1, 0.0)
    kind = "budget_exhausted" if "policy" in name else "run_budget_exhausted"
    assert exhausted_budget(f"API Error: 400 {refused.value.message} ...") == (kind, name)
    assert refused.value.kind == kind
    assert not POLICIES[kind].retry
    used = meter.take("r")
    assert used.calls == calls
    assert used.exhausted == ([name] if "policy" in name else [])


async def test_rollouts_have_budgets_of_their_own_and_calls_of_nobody_count_for_the_run() -> None:
    meter = Meter(Budgets(max_policy_calls=1, max_run_calls=3))
    for rollout in ("a", "b", None):
        await meter.admit(rollout, 0, 0.0)
    with pytest.raises(EpisodeFailure, match="max_run_calls = 3 of the run is used up"):
        await meter.admit("c", 0, 0.0)


async def test_runs_that_share_a_server_share_no_budget_and_no_count() -> None:
    meter = Meter(Budgets(max_policy_calls=1, max_run_calls=2))
    for run in ("one", "two", None):
        settled(meter, await meter.admit("r", 1, 0.0, run=run), 10)
        with pytest.raises(EpisodeFailure, match="max_policy_calls"):
            await meter.admit("r", 1, 0.0, run=run)
        settled(meter, await meter.admit("s", 1, 0.0, run=run), 10)
        with pytest.raises(EpisodeFailure, match="max_run_calls"):
            await meter.admit("t", 1, 0.0, run=run)
    assert [meter.take("r", run=run).calls for run in ("one", "two", None)] == [1, 1, 1]
    assert meter.take("s", run="one").calls == 1
    assert meter.take("s", run="three").calls == 1  # that of an agent that does not pass on the name of its run
    assert meter.take("s", run="three").calls == 0


async def test_calls_side_by_side_wait_for_those_that_may_use_up_the_rest() -> None:
    meter = Meter(Budgets(max_policy_tokens=1000))
    settled(meter, await meter.admit("r", 1, 0.0), 2)
    first = await meter.admit("r", 900, 0.0)
    second = await meter.admit("r", 900, 0.0)
    waiting = [asyncio.create_task(meter.admit("r", 900, 0.0)) for _ in range(3)]
    other = await meter.admit("another", 900, 0.0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    settled(meter, other, 5)
    settled(meter, first, 50)
    settled(meter, second, 50)
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    admitted = [task for task in waiting if task.done()]
    assert len(admitted) == 1 or (len(admitted) == 2 and len(waiting) == 3)
    for task in admitted:
        settled(meter, task.result(), 900)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, EpisodeFailure)]
    assert len(refused) + len(admitted) == 3
    assert refused


@pytest.mark.parametrize("limits", [{"max_policy_tokens": 5000}, {"max_run_tokens": 5000}, {"max_run_cost_usd": 5.0}])
async def test_calls_that_need_more_than_they_reserved_overrun_nothing(limits: dict[str, Any]) -> None:
    """The first one goes alone while its need is a guess; then all are expected to need as much as it did."""
    meter, calls, most = Meter(Budgets(**limits)), 0, 0

    async def call() -> None:
        nonlocal calls, most
        ticket = await meter.admit("r", 520, 0.52)
        calls, most = calls + 1, max(most, ticket.accounts[0].in_flight)
        await asyncio.sleep(0)
        settled(meter, ticket, 1000, 1.0)

    await asyncio.gather(*(call() for _ in range(20)), return_exceptions=True)
    assert (calls, most) == (5, 4)


async def test_an_overrun_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter(Budgets(max_run_tokens=100_000, max_policy_tokens=500_000))
    tickets = [await meter.admit(rollout, 9, 0.0) for rollout in "abcd"]
    for ticket in tickets:
        settled(meter, ticket, 60_000)
    told = "max_run_tokens = 100000 of the run is overrun: calls side by side took more than they were expected to"
    assert [record.message for record in caplog.records] == [told]


async def test_many_at_once_never_go_beyond_by_more_than_the_last_call() -> None:
    meter, spent = Meter(Budgets(max_policy_tokens=1000)), []

    async def call(number: int) -> None:
        ticket = await meter.admit("r", 100, 0.0)
        await asyncio.sleep(0)
        spent.append(80 + number % 3 * 10)
        settled(meter, ticket, spent[-1])

    outcomes = await asyncio.gather(*map(call, range(50)), return_exceptions=True)
    assert 1000 <= sum(spent) < 1100
    assert sum(isinstance(outcome, EpisodeFailure) for outcome in outcomes) == 50 - len(spent)


async def test_what_is_unknown_stays_unknown() -> None:
    meter = Meter(Budgets())
    meter.settle(await meter.admit("r", 0, 0.0), Tokens(10, 4, 5), Cost(0.5, "provider"), Spent(15, 0.5))
    meter.settle(await meter.admit("r", 0, 0.0), Tokens(), Cost(), Spent(99, 0.7))
    assert meter.take("r") == PolicyCalls(
        calls=2,
        input_tokens=10,
        cached_input_tokens=4,
        output_tokens=5,
        calls_without_usage=1,
        cost_usd=0.5,
        cost_sources={"provider": 1},
        calls_without_price=1,
    )
    assert meter.take("r") == PolicyCalls()


async def test_failures_are_counted_by_kind_and_the_last_one_stands_last() -> None:
    meter = Meter(Budgets(max_policy_calls=4))
    for kind, silent in (("provider_error", 0.0), ("cancelled", 2.5), ("provider_error", 0.0), ("cancelled", 1.0)):
        ticket = await meter.admit("r", 0, 0.0)
        meter.settle(ticket, Tokens(), Cost(), Spent(), answered=False)
        meter.failed(ticket, kind, silent)
    with pytest.raises(EpisodeFailure):
        await meter.admit("r", 0, 0.0)
    told = meter.take("r")
    assert list(told.failures.items()) == [("provider_error", 2), ("cancelled", 2), ("budget_exhausted", 1)]
    assert told.silent_seconds == 2.5
