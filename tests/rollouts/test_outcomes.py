"""What a harness says of its model, held against what the model server counted."""

from __future__ import annotations

from typing import Any

import pytest

from gym.capture.budget import PolicyCalls
from gym.failures import POLICIES
from gym.rollouts.outcomes import settled
from gym.servers.contract import RunResponse

ANSWERED = PolicyCalls(calls=3)
BROKEN = PolicyCalls(calls=3, failures={"provider_error": 1, "malformed_answer": 2, "cancelled": 1})
LEFT = PolicyCalls(calls=3, failures={"cancelled": 1, "refused": 1})
NAMES = {"episode_id": {"rollout_id": "r"}, "task_id": {"taskset": "t", "task_id": "1"}}


def observed(**fields: Any) -> dict[str, Any]:
    tool = {"kind": "tool_call", "error_type": None}
    return {"source": "tool 1", "records": [{"kind": "agent_invocation", **fields}, tool], "gaps": []}


def failed(kind: str, observations: dict[str, Any] | None) -> RunResponse:
    failure = {
        "failure_reason": "tool: x",
        "terminal": not POLICIES[kind].retry,
        "failure_kind": kind,
        "stage": "agent",
    }
    return RunResponse.model_validate({**NAMES, "failure": failure, "agent_observations": observations})


@pytest.mark.parametrize(
    ("said", "calls", "kind"),
    [
        ("provider_unreachable", ANSWERED, "agent_error"),
        ("provider_refused", ANSWERED, "agent_error"),
        ("run_budget_exhausted", ANSWERED, "agent_error"),
        ("provider_error", BROKEN, "malformed_answer"),
        ("malformed_answer", BROKEN, "malformed_answer"),
        ("provider_unreachable", LEFT, "provider_unreachable"),
        ("provider_error", ANSWERED.model_copy(update={"partial": True}), "provider_error"),
        ("provider_error", None, "provider_error"),
        ("sandbox_lost", ANSWERED, "sandbox_lost"),
        ("agent_error", BROKEN, "agent_error"),
    ],
)
def test_a_model_server_knows_best_how_it_failed(said: str, calls: PolicyCalls | None, kind: str) -> None:
    told = failed(said, observed(error_type=said, error_source="harness", status="failed"))
    failure = settled(told, calls).failure
    assert failure is not None
    assert (failure.failure_kind, failure.terminal, failure.stage) == (kind, not POLICIES[kind].retry, "agent")
    assert failure.failure_reason.startswith("tool: x")


@pytest.mark.parametrize("observations", [None, {}, {"records": None}, observed(error_type="provider_error")])
def test_what_no_harness_said_stands(observations: Any) -> None:
    """As of an agent that asks the model itself: what it saw of the connection, a model server may not know."""
    told = failed("provider_error", observations)
    assert settled(told, ANSWERED) == told


@pytest.mark.parametrize(
    ("silent", "fields", "kept"),
    [
        (6.0, {"stop_reason": "timeout", "duration_ms": 10_000.0}, False),
        (4.0, {"stop_reason": "timeout", "duration_ms": 10_000.0}, True),
        (6.0, {"stop_reason": "completed", "duration_ms": 10_000.0}, True),
        (6.0, {"stop_reason": "timeout", "duration_ms": None}, True),
    ],
)
def test_time_that_a_silent_model_server_took_is_no_fault_of_the_policy(
    silent: float, fields: dict[str, Any], kept: bool
) -> None:
    result = {
        "responses_create_params": {"input": "x"},
        "response": {"status": "incomplete", "incomplete_details": {"reason": "timeout"}, "output": []},
        "reward": 0.0,
        "ng_agent_observations": observed(status="incomplete", **fields),
    }
    told = RunResponse.model_validate({**NAMES, "result": result})
    calls = PolicyCalls(calls=2, failures={"cancelled": 1}, silent_seconds=silent)
    settled_ = settled(told, calls)
    assert settled(told, None) == told
    if kept:
        assert settled_ == told
        return
    assert settled_.result is None
    failure = settled_.failure
    assert failure is not None
    assert (failure.failure_kind, failure.stage, failure.terminal) == ("agent_timeout", "agent", True)
    assert failure.partial_response is not None
    assert settled_.agent_observations == result["ng_agent_observations"]
