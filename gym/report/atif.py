"""A rollout as a trajectory of the Agent Trajectory Interchange Format, ATIF-v1.7, as Harbor reads and writes it.

A step of the agent is what the model said and called at once, with the results of these calls. The format says nothing
about where a call's result comes late, or about items that are no message, reasoning or call: they are kept in `extra`.
Reference: RFC 0001 of the Harbor project; `harbor.models.trajectories` of its package checks a document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

SCHEMA = "ATIF-v1.7"
CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
"""Kinds of tool calls, and the field that has what the tool is given."""

UNKNOWN = "unknown"


@dataclass
class _Steps:
    """The steps so far. `timings` are the records of tool calls in the observations, by call id."""

    timings: Mapping[str, Mapping[str, Any]]
    done: list[dict[str, Any]] = field(default_factory=list)

    def told(self, role: str, text: str) -> None:
        """A message that the agent did not write in this rollout."""
        source = {"user": "user", "assistant": "agent"}.get(role, "system")
        step = {"step_id": len(self.done) + 1, "source": source, "message": text}
        self.done.append(step | ({"is_copied_context": True} if source == "agent" else {}))

    def take(self, item: Mapping[str, Any]) -> None:
        """One item of the response."""
        kind = str(item.get("type") or "message")
        if kind.endswith("_output"):
            self._result(item)
            return
        step = self._current()
        if kind == "message":
            _join(step, "message", text_of(item.get("content")))
        elif kind == "reasoning":
            _join(step, "reasoning_content", text_of(item.get("content")) or text_of(item.get("summary")))
        elif kind in CALLS:
            step.setdefault("tool_calls", []).append(self._call(item, kind))
        else:
            step.setdefault("extra", {}).setdefault("items", []).append(dict(item))

    def _current(self) -> dict[str, Any]:
        """The agent's step that goes on; a new one after the results of the last one's calls."""
        last = self.done[-1] if self.done else {}
        if last.get("source") == "agent" and not last.get("is_copied_context") and "observation" not in last:
            return last
        self.done.append({"step_id": len(self.done) + 1, "source": "agent", "message": ""})
        return self.done[-1]

    def _call(self, item: Mapping[str, Any], kind: str) -> dict[str, Any]:
        call_id = str(item.get("call_id") or item.get("id") or f"call_{len(self.done)}")
        arguments, raw = _arguments(item.get(CALLS[kind]))
        timing = {name: value for name in ("status", "started_at", "duration_ms")
                  if (value := self.timings.get(call_id, {}).get(name)) is not None}  # fmt: skip
        extra = timing if raw is None else {**timing, "raw_arguments": raw}
        call = {"tool_call_id": call_id, "function_name": str(item.get("name") or kind), "arguments": arguments}
        return {**call, "extra": extra} if extra else call

    def _result(self, item: Mapping[str, Any]) -> None:
        """Goes to the step with its call; without one it stands where it came, and names no call."""
        call_id = str(item.get("call_id"))
        of_call = (step for step in reversed(self.done) if call_id in _call_ids(step))
        step = next(of_call, None)
        result = {"content": text_of(item.get("output"))}
        if step is None:
            step = self._current()
        else:
            result["source_call_id"] = call_id
        step.setdefault("observation", {"results": []})["results"].append(result)


def trajectory(row: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document of a rollout.

    Args:
        row: A line of `rollouts.jsonl`.
        request: The task's `responses_create_params`; None where it is not known, and the trajectory begins with the
            agent's first step.
    """
    response, observed = _map(row.get("response")), _map(row.get("ng_agent_observations"))
    records = [record for record in _list(observed.get("records")) if record.get("kind") == "tool_call"]
    steps = _Steps({str(record.get("tool_call_id")): record for record in records})
    for role, text in _prompts(_map(request)):
        steps.told(role, text)
    if steps.done and (begun := _time(row.get("started_at"))):
        steps.done[-1]["timestamp"] = begun
    for item in _list(response.get("output")):
        steps.take(item)
    if not steps.done:
        steps.take({"type": "message", "content": ""})
    rollout = str(row.get("rollout_id"))
    document = {
        "schema_version": SCHEMA,
        "session_id": rollout,
        "trajectory_id": rollout,
        "agent": _agent(observed, response, _map(request)),
        "steps": steps.done,
        "final_metrics": _totals(_map(row.get("usage")), len(steps.done)),
        "extra": _about(row, response, observed),
    }
    return document if request is not None else {**document, "notes": "The task's prompt is not part of this document."}


def text_of(content: Any) -> str:
    """The text of a message's content or of a tool's output; a part that has none is named."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    parts = [part if isinstance(part, dict) else {"text": str(part)} for part in content]
    texts = (part.get("text") or part.get("refusal") or f"[{part.get('type')}]" for part in parts)
    return "\n".join(map(str, texts))


def _prompts(request: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Role and text of what the agent is given. Calls of a history are told as text."""
    if request.get("instructions"):
        yield "system", str(request["instructions"])
    given = request.get("input")
    if isinstance(given, str):
        yield "user", given
    for item in _list(given):
        if item.get("role"):
            yield str(item["role"]), text_of(item.get("content"))
        else:
            yield "assistant", json.dumps(item, ensure_ascii=False)


def _agent(observed: Mapping[str, Any], response: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """A harness's source is its name and its version."""
    name, _, version = str(observed.get("source") or UNKNOWN).rpartition(" ")
    agent: dict[str, Any] = {"name": name or version, "version": version if name else UNKNOWN}
    if isinstance(response.get("model"), str):
        agent["model_name"] = response["model"]
    if tools := _list(request.get("tools")):
        agent["tool_definitions"] = tools
    return agent


def _totals(usage: Mapping[str, Any], steps: int) -> dict[str, Any]:
    names = {"total_prompt_tokens": "input_tokens", "total_completion_tokens": "output_tokens"}
    counts: dict[str, Any] = {ours: usage.get(theirs) for ours, theirs in names.items()}
    counts["total_cached_tokens"] = _map(usage.get("input_tokens_details")).get("cached_tokens")
    known = {name: int(value) for name, value in counts.items() if _is_number(value)}
    cost = {"total_cost_usd": float(usage["cost_usd"])} if _is_number(usage.get("cost_usd")) else {}
    calls = {"extra": {"model_calls": usage["model_calls"]}} if _is_number(usage.get("model_calls")) else {}
    return {**known, **cost, "total_steps": steps, **calls}


def _about(row: Mapping[str, Any], response: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: row.get(name) for name in ("taskset", "task_id", "attempt", "try", "reward", "status")}
    told["incomplete_details"] = response.get("incomplete_details")
    told["gaps"] = observed.get("gaps") or None
    return {name: value for name, value in told.items() if value is not None}


def _arguments(given: Any) -> tuple[dict[str, Any], str | None]:
    """Arguments as a mapping; and as they were written, where they are no JSON object."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            return {}, str(given)
    return (dict(given), None) if isinstance(given, Mapping) else ({}, json.dumps(given))


def _call_ids(step: Mapping[str, Any]) -> set[str]:
    return {call["tool_call_id"] for call in step.get("tool_calls", ())}


def _join(step: dict[str, Any], name: str, text: str) -> None:
    if text:
        step[name] = f"{step[name]}\n{text}" if step.get(name) else text


def _time(seconds: Any) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat() if _is_number(seconds) else None
    except (OverflowError, ValueError, OSError):
        return None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
