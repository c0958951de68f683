"""The outcome of a try, where an agent's word of its model is held against what the model server counted.

A harness's words come from a sandbox in which its model runs commands, so they may be forged; and each harness has its
own for the same fault. A count that is unknown changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gym.capture.budget import PolicyCalls
from gym.failures import OF_MODEL_SERVERS, POLICIES
from gym.servers.contract import Failure, RunResponse

NO_KINDS = frozenset({"cancelled", "refused"})
"""Calls that the client left, or that were no requests, say nothing of what the model server would call its failure."""

SHARE = 0.5
"""Of a harness's time: a call that was silent for longer took that time away from the policy."""


def settled(answer: RunResponse, calls: PolicyCalls | None) -> RunResponse:
    """The outcome as it is to be recorded.

    - A failure that a harness lays upon its model server has the kind that this server gave it, and is an
      `agent_error` where the server answered every call.
    - A harness whose time ran out while the model server was silent has failed: `agent_timeout`.
    """
    if calls is None:
        return answer
    if answer.failure is not None:
        return answer.model_copy(update={"failure": _held_against(answer, answer.failure, calls)})
    if answer.result is not None and (waited := _waited_for_nothing(answer, calls)):
        message = f"its time ran out while the model server had been silent for {waited:.0f} s"
        failure = _failure("agent_timeout", message, Failure(failure_reason="", terminal=True, stage="agent"))
        failure.partial_response = answer.result.response
        observed = (answer.result.model_extra or {}).get("ng_agent_observations")
        return answer.model_copy(update={"result": None, "failure": failure, "agent_observations": observed})
    return answer


def _held_against(answer: RunResponse, failure: Failure, calls: PolicyCalls) -> Failure:
    kind = failure.failure_kind
    if kind not in OF_MODEL_SERVERS or not any(
        record.get("error_source") == "harness" and record.get("error_type") == kind
        for record in _invocations(answer.agent_observations)
    ):
        return failure
    if not calls.failures:
        why = f"the model server answered each of its {calls.calls} calls, so this is the harness's word alone"
        return failure if calls.partial else _failure("agent_error", f"{failure.failure_reason}; {why}", failure)
    last = next((name for name in reversed(calls.failures) if name not in NO_KINDS), kind)
    if last == kind or last not in POLICIES:
        return failure
    return _failure(last, f"{failure.failure_reason}; the model server says {last}", failure)


def _waited_for_nothing(answer: RunResponse, calls: PolicyCalls) -> float:
    """Seconds of a call without a byte that was most of the last activation, which ran out of time; else 0."""
    assert answer.result is not None
    *_, last = ({}, *_invocations((answer.result.model_extra or {}).get("ng_agent_observations")))
    took = last.get("duration_ms")
    if last.get("stop_reason") != "timeout" or not isinstance(took, int | float):
        return 0.0
    return calls.silent_seconds if calls.silent_seconds > SHARE * took / 1000 else 0.0


def _invocations(observed: Any) -> Iterator[Mapping[str, Any]]:
    records = observed.get("records") if isinstance(observed, Mapping) else None
    for record in records if isinstance(records, list) else ():
        if isinstance(record, Mapping) and record.get("kind") == "agent_invocation":
            yield record


def _failure(kind: str, message: str, before: Failure) -> Failure:
    update = {"failure_kind": kind, "failure_reason": message[:2000], "terminal": not POLICIES[kind].retry}
    return before.model_copy(update=update)
