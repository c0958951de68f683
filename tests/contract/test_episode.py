"""A whole episode, in every way of hosting: the same outcome, the same failures, everything closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gym.servers.contract import EXTRAS_HEADER, RunRequest, RunResponse
from tests.contract.world import ENVIRONMENT, HOSTINGS, Hosting, World, world


@pytest.fixture(params=HOSTINGS)
async def here(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    hosting: Hosting = request.param
    async with world(hosting, cleanup_timeout_seconds=5) as running:
        yield running


def run_request(rollout: str = "r1", *, tool: str = "increment", by: Any = 2, **task: Any) -> RunRequest:
    text = json.dumps({"tool": tool, "arguments": {"by": by}})
    params = {"input": [{"type": "message", "role": "user", "content": text}]}
    return RunRequest.model_validate(
        {
            "episode_id": {"rollout_id": rollout},
            "task": {
                "task_id": {"taskset": "counting", "task_id": "two"},
                "task_input": {"responses_create_params": params, "expected": 2, **task},
            },
        }
    )


async def run(here: World, request: RunRequest) -> RunResponse:
    return (await here.client.post(ENVIRONMENT, "/run", request, RunResponse, headers={EXTRAS_HEADER: "1"})).body


def assert_all_closed(here: World) -> None:
    assert here.counter.sessions == {}
    assert here.agent.sessions == {}


@pytest.mark.parametrize(("by", "reward"), [(2, 1.0), (3, 0.0)])
async def test_the_verifier_decides_the_reward(here: World, by: int, reward: float) -> None:
    outcome = await run(here, run_request(by=by))
    assert outcome.failure is None
    result = outcome.result
    assert result is not None
    assert result.reward == reward
    assert result.model_extra is not None
    assert result.model_extra["count"] == by
    assert result.model_extra["ng_agent_observations"] == {"source": "tiny_agent"}
    assert result.response is not None
    assert [item["type"] for item in result.response.output] == ["function_call", "function_call_output", "message"]
    assert result.response.usage is not None
    assert result.response.usage.total_tokens == 6
    assert (outcome.episode_id.rollout_id, outcome.task_id.task_id) == ("r1", "two")
    assert set(outcome.timings) == {
        "seed_resources", "seed_agent", "agent", "close_agent", "verification", "cleanup"
    }  # fmt: skip
    assert here.counter.log == ["seed", "verify", "close"]
    assert here.agent.log == ["open", "run", "close"]
    assert here.model.rollouts == {"r1"}
    assert_all_closed(here)


async def test_sessions_keep_their_state_apart(here: World) -> None:
    outcomes = await asyncio.gather(*(run(here, run_request(f"r{n}", by=n, expected=n)) for n in range(20)))
    assert [outcome.result and outcome.result.reward for outcome in outcomes] == [1.0] * 20
    assert_all_closed(here)


async def test_wrong_arguments_and_unknown_tools_go_back_to_the_model(here: World) -> None:
    for case in (run_request("r1", by="many", expected=0), run_request("r2", tool="decrement", expected=0)):
        outcome = await run(here, case)
        assert outcome.result is not None
        assert outcome.result.reward == 1.0
        assert outcome.result.response is not None
        answer = next(item for item in outcome.result.response.output if item["type"] == "function_call_output")
        assert "error" in json.loads(answer["output"])


@pytest.mark.parametrize(
    ("fault", "stage", "kind", "reason"),
    [
        ("seed", "seed", "provider_unreachable", "seed is out of order"),
        ("seed crash", "seed", "internal", "ValueError: seed crashed"),
        ("tool", "agent", "provider_unreachable", "tool is out of order"),
        ("tool crash", "agent", "tool_server_error", "tool increment of counter: ValueError: tool crashed"),
        ("verify", "verification", "provider_unreachable", "verify is out of order"),
        ("verify crash", "verification", "verifier_crashed", "ValueError: verify crashed"),
        ("no reward", "verification", "verifier_crashed", "counter: the judge was silent"),
    ],
)
async def test_what_fails_is_a_failure_and_no_reward(
    here: World, fault: str, stage: str, kind: str, reason: str
) -> None:
    outcome = await run(here, run_request(fault=fault))
    assert outcome.result is None
    failure = outcome.failure
    assert failure is not None
    assert (failure.stage, failure.failure_kind) == (stage, kind)
    assert " ".join(failure.failure_reason.split()) == reason
    assert (failure.partial_response is not None) == (stage == "verification")
    assert_all_closed(here)


@pytest.mark.parametrize(("tool", "kind"), [("model", "provider_unreachable"), ("model crash", "agent_error")])
async def test_a_failing_model_fails_the_episode(here: World, tool: str, kind: str) -> None:
    outcome = await run(here, run_request(tool=tool))
    assert outcome.failure is not None
    assert (outcome.failure.stage, outcome.failure.failure_kind) == ("agent", kind)
    assert here.agent.log == ["open", "run", "close"]
    assert_all_closed(here)


async def test_a_task_that_does_not_fit_is_refused_by_name(here: World) -> None:
    outcome = await run(here, run_request(expected="two"))
    assert outcome.failure is not None
    assert outcome.failure.failure_kind == "malformed_task"
    assert outcome.failure.terminal
    assert "task two does not fit counter: expected" in outcome.failure.failure_reason


async def test_a_failing_cleanup_is_recorded_and_the_result_kept(here: World, caplog: pytest.LogCaptureFixture) -> None:
    outcome = await run(here, run_request(fault="close"))
    assert outcome.result is not None
    assert outcome.result.reward == 1.0
    assert outcome.result.model_extra is not None
    assert outcome.result.model_extra["cleanup_failures"] == ["close counter: close is out of order"]
    assert caplog.text.count("cleanup failed: close counter: close is out of order") == 2
    assert here.counter.log == ["seed", "verify", "close", "close"]  # closing is tried twice


async def test_a_crashed_tool_leaves_a_traceback_in_the_log(here: World, caplog: pytest.LogCaptureFixture) -> None:
    await run(here, run_request(fault="tool crash"))
    assert "tool increment of counter: ValueError: tool" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_failing_close_leaves_no_other_thing_open(here: World) -> None:
    await run(here, run_request(fault="close"))
    assert here.agent.sessions == {}


async def test_cancellation_runs_the_cleanups(here: World) -> None:
    episode = asyncio.create_task(run(here, run_request(tool="hang")))
    await here.model.answering.wait()
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    await settled(here)
    assert here.model.cancelled == 1
    assert here.agent.log == ["open", "run", "close"]
    assert here.counter.log == ["seed", "close"]
    assert_all_closed(here)


async def settled(here: World) -> None:
    """Over HTTP a server learns a moment later that its client has gone."""
    async with asyncio.timeout(10):
        while here.counter.sessions or here.agent.sessions or not here.model.cancelled:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("hosting", HOSTINGS)
async def test_the_deadline_ends_an_episode(hosting: Hosting) -> None:
    async with world(hosting, default_episode_timeout_seconds=0.2) as here:
        outcome = await run(here, run_request(tool="hang"))
        assert outcome.failure is not None
        assert (outcome.failure.stage, outcome.failure.failure_kind) == ("agent", "episode_timeout")
        assert outcome.failure.failure_reason == "default_episode_timeout_seconds (0.2 s) ran out"
        await settled(here)
        assert here.counter.log == ["seed", "close"]


@pytest.mark.parametrize("hosting", HOSTINGS)
async def test_admission_is_a_queue_with_a_bound(hosting: Hosting) -> None:
    async with world(hosting, max_concurrent_episodes=1, queue_timeout_seconds=0.2) as here:
        first = asyncio.create_task(run(here, run_request("r1", tool="hang")))
        await here.model.answering.wait()
        outcome = await run(here, run_request("r2"))
        assert outcome.failure is not None
        assert (outcome.failure.stage, outcome.failure.failure_kind) == ("admission", "admission_timeout")
        first.cancel()
        await asyncio.wait([first])
        await settled(here)
        assert (await run(here, run_request("r3"))).result is not None
