"""What a harness did, in one schema for all: an invocation for each activation, with its items, calls and times.

The shape is that of NeMo Gym's agent observations (`source`, `records`, `gaps`); what only we know stands beside it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gym.apis.responses import Item, ResponsesResponse
from gym.harness.adapter import CallTiming, Evidence, Reading
from gym.harness.evidence import Verdict

CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
ERROR_SOURCE, HARNESS = "error_source", "harness"
"""How an invocation's record says that its `error_type` is the harness's own word."""

Status = Literal["completed", "failed", "incomplete", "unknown"]


@dataclass
class Record:
    """One activation.

    Attributes:
        status: `unknown` until it has ended.
        error_type: Kind of the failure that ended it.
        told_by_harness: Whether that kind is the harness's own word, which what it ran may have forged.
        stop_reason: Why an incomplete one stopped.
        log: The end of the harness's error output, where it did not end well.
    """

    activation: int
    invocation_id: str = field(default_factory=lambda: f"inv_{uuid.uuid4().hex}")
    started_at: float = field(default_factory=time.time)
    duration_ms: float | None = None
    status: Status = "unknown"
    error_type: str | None = None
    told_by_harness: bool = False
    stop_reason: str | None = None
    reading: Reading = field(default_factory=Reading)
    log: str = ""

    def ended(self, reading: Reading, evidence: Evidence) -> None:
        """Takes what was found."""
        self.reading = reading
        self.duration_ms = round(evidence.duration_seconds * 1000, 1)
        self.reading.gaps = [*evidence.gaps, *reading.gaps]
        self.log = evidence.stderr[-2000:]

    def judged(self, verdict: Verdict) -> None:
        """Takes the outcome."""
        self.status = "completed" if verdict.status == "completed" else "incomplete"
        self.stop_reason = verdict.reason or verdict.status
        self.log = "" if self.status == "completed" else self.log

    def records(self, sandbox_id: str | None, model: dict[str, str] | None) -> Iterator[dict[str, Any]]:
        """The invocation, and each of its tool calls."""
        reading = self.reading
        calls = [{"model_ref": model, "response_id": name} for name in reading.responses] if model else []
        yield {
            "kind": "agent_invocation",
            "invocation_id": self.invocation_id,
            "parent_invocation_id": None,
            "spawned_by_tool_call_id": None,
            "status": self.status,
            "duration_ms": self.duration_ms,
            "error_type": self.error_type,
            **({ERROR_SOURCE: HARNESS} if self.told_by_harness else {}),
            "model_calls": calls,
            "conversation": reading.items,
            "activation": self.activation,
            "harness_session_id": reading.session,
            "started_at": self.started_at,
            "stop_reason": self.stop_reason,
            "usage": reading.usage.model_dump(exclude_none=True) if reading.usage else None,
            **({"log": self.log} if self.log else {}),
        }
        for call, done in calls_of(reading.items):
            timing = reading.timings.get(str(call.get("call_id")), CallTiming())
            yield self._call(call, timing, sandbox_id, done=done)

    def _call(self, call: Item, timing: CallTiming, sandbox_id: str | None, *, done: bool) -> dict[str, Any]:
        return {
            "kind": "tool_call",
            "invocation_id": self.invocation_id,
            "tool_call_id": call.get("call_id"),
            "sandbox_id": sandbox_id,
            "tool_name": call.get("name"),
            "started_at": timing.started_at,
            "completed_at": timing.completed_at,
            "duration_ms": timing.duration_ms,
            "timing_source": "harness",
            "status": ("failed" if timing.failed else "completed") if done else "incomplete",
            "error_type": None,
        }


def calls_of(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    """The tool calls among items, and whether each has a result."""
    answered = {item.get("call_id") for item in items if str(item.get("type")).endswith("_call_output")}
    for item in items:
        if item.get("type") in CALLS:
            yield item, item.get("call_id") in answered


def bundle(
    source: str,
    records: Sequence[Record],
    *,
    gaps: Sequence[str] = (),
    sandbox_id: str | None,
    image_digest: str | None = None,
    model: dict[str, str] | None,
) -> dict[str, Any]:
    """The observations of a session, of all its activations; `gaps` are those of the session itself."""
    numbers = [("tool_calls", sum(1 for item in records for _ in calls_of(item.reading.items)))]
    numbers.append(("model_calls", sum(item.reading.model_calls for item in records)))
    return {
        "source": source,
        "records": [entry for item in records for entry in item.records(sandbox_id, model)],
        "gaps": [*gaps, *(gap for item in records for gap in item.reading.gaps)],
        "stop_reason": records[-1].stop_reason if records else None,
        "counters": dict(numbers),
        **({"image_digest": image_digest} if image_digest else {}),
    }


def response(record: Record, model_name: str, verdict: Verdict) -> ResponsesResponse:
    """What the agent answers: the items of the activation, and why it stopped."""
    return ResponsesResponse(
        model=model_name,
        status=verdict.status,
        incomplete_details={"reason": verdict.reason} if verdict.reason else None,
        output=[marked(item) for item in record.reading.items],
        usage=record.reading.usage,
        metadata={"invocation_id": record.invocation_id, "activation": str(record.activation)},
    )


def marked(item: Item) -> Item:
    """The item; a call whose arguments are no JSON object says so."""
    if item.get("type") != "function_call":
        return item
    try:
        good = isinstance(json.loads(item.get("arguments") or "{}"), dict)
    except (TypeError, ValueError, RecursionError):
        good = False
    return item if good else {**item, "malformed_arguments": True}
