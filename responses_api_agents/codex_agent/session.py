"""What Codex left: its session file (`rollout-*.jsonl`), which has the model's own items, and its events.

The events lack call ids, calls of unknown tools and the usage of a run that was cut short; they are read where there is
no session file.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from gym.apis.responses import Item, Usage, function_call, function_call_output, message, reasoning
from gym.harness.adapter import CallTiming, Evidence, Reading, as_count, as_dict, as_list, as_text, json_lines, tokens

LOST_TOOLS = "ERROR rmcp::"
"""How its log tells of a tool server that failed; Codex goes on without one that is not required, and names none."""

KEPT = {
    "message": ("id", "role", "content"),
    "reasoning": ("id", "summary", "content", "encrypted_content"),
    "function_call": ("id", "call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("id", "call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
}
"""The fields of each kind of item that are the protocol's, not Codex's own."""


def read(evidence: Evidence) -> Reading:
    """Items and usage of the run, and how it ended."""
    reading = Reading()
    session = next(
        (raw for name, raw in evidence.files.items() if name.rpartition("/")[2].startswith("rollout-")), None
    )
    if session is not None:
        _read_session(session, reading)
    _read_events(evidence, reading, items=session is None)
    reading.gaps += [f"an MCP server failed: {line}" for line in evidence.stderr.splitlines() if LOST_TOOLS in line][:5]
    if "required MCP servers failed" in evidence.stderr and reading.stop is None:
        reading.error, reading.error_kind = (
            evidence.stderr[evidence.stderr.index("required MCP") :],
            "tool_server_error",
        )
    if reading.error and "max_output_tokens" in reading.error:
        reading.error, reading.stop = None, "max_output_tokens"
    return reading


def _read_session(raw: bytes, reading: Reading) -> None:
    for line in json_lines(raw):
        payload = as_dict(line.get("payload"))
        match line.get("type"), payload.get("type"):
            case "session_meta", _:
                reading.session = as_text(payload.get("id")) or None
            case "response_item", _ if (item := _item(payload)) is not None:
                reading.items.append(item)
                _time(reading, item, as_text(line.get("timestamp")))
            case "token_usage_record", _:
                reading.model_calls += 1
                reading.responses.append(as_text(payload.get("response_id")))
            case "event_msg", "token_count":
                reading.usage = _usage(as_dict(as_dict(payload.get("info")).get("total_token_usage"))) or reading.usage
            case "event_msg", "task_complete" if not payload.get("error"):
                reading.stop = "completed"


def _item(payload: dict[str, Any]) -> Item | None:
    """An item of model or tools as the protocol has it; None for what Codex told the model."""
    kind = payload.get("type")
    if kind not in KEPT or (kind == "message" and payload.get("role") != "assistant"):
        return None
    item: Item = {"type": kind} | {name: payload[name] for name in KEPT[kind] if payload.get(name) is not None}
    if "output" in item and not isinstance(item["output"], str):
        item["output"] = "\n".join(as_text(part.get("text")) for part in as_list(item["output"]))
    if space := as_text(payload.get("namespace")):
        item["name"] = f"{space}__{item.get('name')}"
    return item


def _time(reading: Reading, item: Item, timestamp: str) -> None:
    """A call begins when it is written down, and ends with its output."""
    call_id = item.get("call_id")
    try:
        at = datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return
    if not isinstance(call_id, str):
        return
    begun = reading.timings.get(call_id, CallTiming()).started_at
    if begun is None:
        reading.timings[call_id] = CallTiming(started_at=at)
    else:
        reading.timings[call_id] = CallTiming(begun, at, round((at - begun) * 1000, 1))


def _usage(counts: dict[str, Any]) -> Usage | None:
    if not counts:
        return None
    return tokens(
        read=as_count(counts.get("input_tokens")),
        written=as_count(counts.get("output_tokens")),
        cached=as_count(counts.get("cached_input_tokens")),
        reasoning=as_count(counts.get("reasoning_output_tokens")),
    )


def _read_events(evidence: Evidence, reading: Reading, *, items: bool) -> None:
    if items:
        reading.gaps.append("no session file: call ids are not the model's own")
    for event in evidence.events():
        match event.get("type"):
            case "thread.started":
                reading.session = as_text(event.get("thread_id")) or reading.session
            case "item.completed" if items:
                reading.items += _of_event(as_dict(event.get("item")))
            case "turn.completed":
                reading.stop = "completed"
                reading.usage = reading.usage or _usage(as_dict(event.get("usage")))
            case "turn.failed":
                reading.stop = None
                reading.error = as_text(as_dict(event.get("error")).get("message")) or "no reason given"


def _of_event(item: dict[str, Any]) -> list[Item]:
    call_id = as_text(item.get("id"))
    match item.get("type"):
        case "agent_message":
            return [message("assistant", as_text(item.get("text")))]
        case "reasoning":
            return [reasoning(as_text(item.get("text")))]
        case "command_execution":
            call = function_call("exec_command", {"cmd": as_text(item.get("command"))}, call_id)
            return [call, function_call_output(call_id, as_text(item.get("aggregated_output")))]
        case "mcp_tool_call":
            name = f"mcp__{as_text(item.get('server'))}__{as_text(item.get('tool'))}"
            parts = as_list(as_dict(item.get("result")).get("content"))
            output = "\n".join(as_text(part.get("text")) for part in parts) or json.dumps(item.get("error"))
            return [function_call(name, as_dict(item.get("arguments")), call_id), function_call_output(call_id, output)]
    return []
