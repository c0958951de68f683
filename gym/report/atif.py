"""A rollout as a trajectory of the Agent Trajectory Interchange Format, ATIF-v1.7, as Harbor reads and writes it.

A step of the agent is what the model said and called at once, with the results of these calls: one answer, where its
call was captured. The format says nothing about where a call's result comes late, or about items that are no message,
reasoning or call: they are kept in `extra`.
Reference: RFC 0001 of the Harbor project; `harbor.models.trajectories` of its package checks a document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from gym.report.captured import Captured
from gym.report.lenient import Fields, is_number, iso_time, known, mapping_of, mappings_of, text_of
from gym.report.steps import NOTHING, Steps

Told: TypeAlias = tuple[Fields, Fields]
"""An item, and the record of its activation."""

SCHEMA = "ATIF-v1.7"
INVOCATION = (
    *("invocation_id", "activation", "harness_session_id", "status", "error_type", "stop_reason"),
    *("started_at", "duration_ms", "usage"),
)
"""What is kept of the record of an activation."""

NO_PROMPT = "The task's prompt is not part of this document."
NOT_JOINED = "It is not joined with captured model calls: steps have no metrics, and one may hold several answers."
NOT_TOLD = "The agent told nothing of what it did: the steps are the captured answers of its model."
UNKNOWN = "unknown"


def trajectory(row: Fields, request: Fields | None = None, captured: Captured | None = None) -> dict[str, Any]:
    """The document of a rollout, or of a failed try.

    Args:
        row: A line of `rollouts.jsonl` or `failures.jsonl`.
        request: The task's `responses_create_params`; None where it is not known, and the trajectory begins with the
            agent's first step.
        captured: The model calls of the try, where they are known.
    """
    response, rollout = _response(row), str(row.get("rollout_id"))
    observed = mapping_of(row.get("ng_agent_observations"))
    told = _told(row)
    steps = _steps(row, mapping_of(request), told or _captured_items(captured), captured)
    notes = {
        NO_PROMPT: request is None,
        NOT_JOINED: not captured,
        NOT_TOLD: not told and bool(_captured_items(captured)),
    }
    said = " ".join(note for note, is_true in notes.items() if is_true)
    return {
        "schema_version": SCHEMA,
        "session_id": rollout,
        "trajectory_id": rollout,
        "agent": _agent(observed, response, mapping_of(request)),
        "steps": steps,
        **({"notes": said} if said else {}),
        "final_metrics": _totals(mapping_of(row.get("usage")), len(steps)),
        "extra": _about(row, response, observed) | _calls(row, captured),
    }


def _steps(row: Fields, request: Fields, items: Sequence[Told], captured: Captured | None) -> list[dict[str, Any]]:
    tools = [record for record in _records(row) if record.get("kind") == "tool_call"]
    steps = Steps({str(record.get("tool_call_id")): record for record in tools})
    for role, text in _prompts(request):
        steps.told(role, text)
    if steps.done and (begun := iso_time(row.get("started_at"))):
        steps.done[-1]["timestamp"] = begun
    answers = captured.sources(item for item, _ in items) if captured else [None] * len(items)
    for (item, invocation), answer in zip(items, answers, strict=True):
        steps.take(item, invocation, answer)
    if not steps.done:
        steps.take({"type": "message", "content": ""}, NOTHING, None)
    return steps.done


def is_failed(row: Fields) -> bool:
    """Whether it is a row of `failures.jsonl`."""
    return "reward" not in row and "kind" in row


def model_servers(row: Fields) -> set[str]:
    """The instances that the agent of a rollout asked, as far as its observations name them."""
    refs = (mapping_of(call.get("model_ref")) for call in _told_calls(row))
    return {str(ref["name"]) for ref in refs if ref.get("name")}


def _told(row: Fields) -> list[Told]:
    """What the agent tells of; of a failed try, what its records have."""
    output, invocations = mappings_of(_response(row).get("output")), _invocations(row)
    recorded: list[Told] = [(item, one) for one in invocations for item in mappings_of(one.get("conversation"))]
    if not output:
        return recorded
    if len(output) == len(recorded):
        return [(item, one) for item, (_, one) in zip(output, recorded, strict=True)]
    only = invocations[0] if len(invocations) == 1 else NOTHING
    return [(item, only) for item in output]


def _captured_items(captured: Captured | None) -> list[Told]:
    return [(item, NOTHING) for answer in captured.answers for item in answer.items] if captured else []


def _response(row: Fields) -> Fields:
    return mapping_of(row.get("response") or row.get("partial_response"))


def _records(row: Fields) -> list[dict[str, Any]]:
    return mappings_of(mapping_of(row.get("ng_agent_observations")).get("records"))


def _invocations(row: Fields) -> list[dict[str, Any]]:
    return [record for record in _records(row) if record.get("kind") == "agent_invocation"]


def _told_calls(row: Fields) -> list[dict[str, Any]]:
    return [call for one in _invocations(row) for call in mappings_of(one.get("model_calls"))]


def _prompts(request: Fields) -> Iterable[tuple[str, str]]:
    """Role and text of what the agent is given. Calls of a history are told as text."""
    if request.get("instructions"):
        yield "system", str(request["instructions"])
    given = request.get("input")
    if isinstance(given, str):
        yield "user", given
    for item in mappings_of(given):
        if item.get("role"):
            yield str(item["role"]), text_of(item.get("content"))
        else:
            yield "assistant", json.dumps(item, ensure_ascii=False)


def _agent(observed: Fields, response: Fields, request: Fields) -> dict[str, Any]:
    """A harness's source is its name and its version."""
    name, _, version = str(observed.get("source") or UNKNOWN).rpartition(" ")
    agent: dict[str, Any] = {"name": name or version, "version": version if name else UNKNOWN}
    if isinstance(response.get("model"), str):
        agent["model_name"] = response["model"]
    if tools := mappings_of(request.get("tools")):
        agent["tool_definitions"] = tools
    return agent


def _totals(usage: Fields, steps: int) -> dict[str, Any]:
    names = {"total_prompt_tokens": "input_tokens", "total_completion_tokens": "output_tokens"}
    counts: dict[str, Any] = {ours: usage.get(theirs) for ours, theirs in names.items()}
    counts["total_cached_tokens"] = mapping_of(usage.get("input_tokens_details")).get("cached_tokens")
    totals = {name: int(value) for name, value in counts.items() if is_number(value)}
    cost = {"total_cost_usd": float(usage["cost_usd"])} if is_number(usage.get("cost_usd")) else {}
    calls = {"extra": {"model_calls": usage["model_calls"]}} if is_number(usage.get("model_calls")) else {}
    return {**totals, **cost, "total_steps": steps, **calls}


def _about(row: Fields, response: Fields, observed: Fields) -> dict[str, Any]:
    names = ("taskset", "task_id", "attempt", "try", "reward", "status", "usage_differences")
    told = {name: row.get(name) for name in names}
    if is_failed(row):
        told |= {"status": "failed", "failure": {name: row.get(name) for name in ("stage", "kind", "message")}}
    told["incomplete_details"] = response.get("incomplete_details")
    told["gaps"] = observed.get("gaps") or None
    told["invocations"] = [known({name: one.get(name) for name in INVOCATION}) for one in _invocations(row)] or None
    return known(told)


def _calls(row: Fields, captured: Captured | None) -> dict[str, Any]:
    """Where what the harness tells of its calls and what was captured differ, and calls that were not answered."""
    if captured is None:
        return {}
    told = (call.get("response_id") for call in _told_calls(row))
    failed = [
        known({"activation": call.activation, "timestamp": iso_time(call.started_at), "status": call.status})
        | {"kind": mapping_of(call.error).get("kind")}
        for call in captured.failed
    ]
    differing = captured.differences(str(name) for name in told if name)
    found = {"model_call_differences": differing, "failed_model_calls": failed}
    return {name: value for name, value in found.items() if value}
