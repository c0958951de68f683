"""What Claude Code left: its events on standard output (`stream-json`).

A message comes as one event for each of its blocks, with the usage of its beginning; its real usage is in the
`message_delta` of the stream. Only the last `result` tells how the run ended: the exit code is 0 after some failures,
and so is the result's `subtype` a success after others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from gym.apis.responses import Item, Usage, function_call, function_call_output, message, reasoning
from gym.harness.adapter import CallTiming, Evidence, Reading, as_count, as_dict, as_list, as_text, tokens

STREAMED = ("message_start", "message_stop", "content_block_start", "content_block_delta", "content_block_stop", "ping")
NOISE = (
    *(f'{{"type":"stream_event","event":{{"type":"{kind}"' for kind in STREAMED),
    *(f'{{"type":"system","subtype":"{kind}"' for kind in ("thinking_tokens", "ui_invalidate", "status")),
)
"""Events that say in part what `assistant` events say whole, or nothing about the work."""

ALIASES = {"Agent": "Task", "default": "Bash"}
"""Other names of tools, each with one that the events have for it."""

MODEL = "<synthetic>"
"""The model of messages that Claude Code itself wrote, to tell the user of an error."""

STOPS = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}
BROKEN = re.compile(r"StreamTruncated|Malformed_HTTP|Unexpected end|connection (was )?(lost|dropped)", re.IGNORECASE)
"""How it says that an answer broke off or was no answer."""


def read(evidence: Evidence) -> Reading:
    """Items and usage of the run, and how it ended."""
    reading = Reading()
    left_out, told = 0, ""
    for event in evidence.events():
        if event.get("parent_tool_use_id") is not None:
            left_out += 1
            continue
        match event.get("type"), event.get("subtype"):
            case "system", "init":
                reading.stop = None
                reading.session = as_text(event.get("session_id")) or reading.session
                reading.gaps += [gap for gap in _unconnected(event) if gap not in reading.gaps]
            case "assistant", _:
                told = _take_said(reading, event)
            case "user", _:
                _take_results(reading, event)
            case "stream_event", _ if as_dict(event.get("event")).get("type") == "message_delta":
                reading.usage = _usage(as_dict(as_dict(event["event"]).get("usage"))).plus(reading.usage)
            case "result", _:
                _take_end(reading, event, told)
    if left_out:
        reading.gaps.append(f"what subagents did is left out ({left_out} events); the usage includes it")
    return reading


def offered_tools(evidence: Evidence) -> list[str]:
    """The tools that it began with, in its first event: what the model's commands write comes later."""
    begun = (it for it in evidence.events() if it.get("subtype") == "init" or it.get("type") == "assistant")
    names = next(begun, {}).get("tools")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _unconnected(init: dict[str, Any]) -> Iterator[str]:
    for server in as_list(init.get("mcp_servers")):
        if server.get("status") != "connected":
            yield f"the MCP server {as_text(server.get('name'))} was not connected: {as_text(server.get('status'))}"


def _take_said(reading: Reading, event: dict[str, Any]) -> str:
    """A block of a message, or Claude Code's own words about an error, whose name is returned."""
    said = as_dict(event.get("message"))
    blocks = as_list(said.get("content"))
    reading.stop = None
    if said.get("model") == MODEL:
        reading.error = " ".join(as_text(block.get("text")) for block in blocks) or "no reason given"
        return as_text(event.get("error"))
    reading.error = reading.error_kind = None
    name = as_text(said.get("id"))
    if name not in reading.responses[-1:]:
        reading.model_calls += 1
        reading.responses.append(name)
    items = [item for block in blocks for item in _items(block)]
    reading.items += items
    at = _time(event)
    reading.timings |= {item["call_id"]: CallTiming(at) for item in items if item["type"] == "function_call"}
    return ""


def _items(block: dict[str, Any]) -> list[Item]:
    match block.get("type"):
        case "text":
            return [message("assistant", as_text(block.get("text")))]
        case "thinking":
            return [reasoning(as_text(block.get("thinking")))]
        case "tool_use":
            given = as_dict(block.get("input"))
            # Arguments that are no JSON are kept there as they were written.
            broken = as_text(as_dict(given.get("__unparsedToolInput")).get("raw"))
            return [function_call(as_text(block.get("name")), broken or given, as_text(block.get("id")))]
    return []


def _take_results(reading: Reading, event: dict[str, Any]) -> None:
    """Results of tools; what else a user says here is Claude Code's."""
    at = _time(event)
    for block in as_list(as_dict(event.get("message")).get("content")):
        if block.get("type") != "tool_result":
            continue
        call_id = as_text(block.get("tool_use_id"))
        reading.items.append(function_call_output(call_id, _text(block.get("content"))))
        begun = reading.timings.get(call_id, CallTiming()).started_at
        took = None if begun is None or at is None else round((at - begun) * 1000, 1)
        reading.timings[call_id] = CallTiming(begun, at, took, failed=block.get("is_error") is True)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(as_text(part.get("text")) or f"[{as_text(part.get('type'))}]" for part in as_list(content))


def _time(event: dict[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(as_text(event.get("timestamp"))).timestamp()
    except ValueError:
        return None


def _take_end(reading: Reading, result: dict[str, Any], told: str) -> None:
    """How it ended; `told` names its last error. There may be several results: one each time that it was done."""
    if models := [as_dict(counts) for counts in as_dict(result.get("modelUsage")).values()]:
        reading.usage = None
        for counts in models:
            reading.usage = _model_usage(counts).plus(reading.usage)
    if denied := as_list(result.get("permission_denials")):
        reading.gaps.append(f"tool calls that Claude Code's permission rules denied: {len(denied)}")
    reading.error = reading.error_kind = None
    if result.get("terminal_reason") == "max_turns" or result.get("subtype") == "error_max_turns":
        reading.stop = "max_turns"
    elif result.get("is_error") is not True:
        reading.stop = STOPS.get(as_text(result.get("stop_reason")), "completed")
    elif told == "max_output_tokens":
        reading.stop = told
    else:
        reading.stop, reading.error = None, _reason(result)
        reading.error_kind = "malformed_answer" if BROKEN.search(reading.error) else None


def _reason(result: dict[str, Any]) -> str:
    errors = result.get("errors")
    listed = "; ".join(map(str, errors)) if isinstance(errors, list) else ""
    return as_text(result.get("result")) or listed or as_text(result.get("subtype")) or "no reason given"


def _usage(counts: dict[str, Any]) -> Usage:
    """The API counts what came from a cache, or went there, apart."""
    cached, kept = as_count(counts.get("cache_read_input_tokens")), as_count(counts.get("cache_creation_input_tokens"))
    details = as_dict(counts.get("output_tokens_details"))
    return tokens(
        read=as_count(counts.get("input_tokens")) + cached + kept,
        written=as_count(counts.get("output_tokens")),
        cached=cached,
        reasoning=as_count(details.get("thinking_tokens")),
    )


def _model_usage(counts: dict[str, Any]) -> Usage:
    cached = as_count(counts.get("cacheReadInputTokens"))
    return tokens(
        read=as_count(counts.get("inputTokens")) + cached + as_count(counts.get("cacheCreationInputTokens")),
        written=as_count(counts.get("outputTokens")),
        cached=cached,
        reasoning=as_count(counts.get("thinkingTokens")),
    )
