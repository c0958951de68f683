"""What Pi left: the messages among its events. Its exit code is always 0; the last message tells how it ended."""

from __future__ import annotations

from typing import Any

from gym.apis.responses import Item, Usage, function_call, function_call_output, message, reasoning
from gym.harness.adapter import CallTiming, Evidence, Reading, as_count, as_dict, as_list, as_text, tokens

STOPS = {"stop": "completed", "length": "max_output_tokens"}


def read(evidence: Evidence) -> Reading:
    """Items and usage of the run, and how it ended."""
    reading = Reading()
    for event in evidence.events():
        match event.get("type"):
            case "session":
                reading.session = as_text(event.get("id")) or None
            case "message_end":
                _take(reading, as_dict(event.get("message")))
            case "auto_retry_start" | "compaction_start":
                reading.error = None
            case "agent_settled" if reading.error is None and event.get("aborted") is not True:
                reading.stop = reading.stop or "completed"
                return reading
    reading.stop = None
    return reading


def _take(reading: Reading, said: dict[str, Any]) -> None:
    """One finished message. A failed model call is none: Pi asks again, or ends."""
    if said.get("role") == "toolResult":
        call_id = as_text(said.get("toolCallId"))
        reading.items.append(function_call_output(call_id, _text(said.get("content"))))
        reading.timings[call_id] = _timing(said)
    if said.get("role") != "assistant":
        return
    reading.stop = STOPS.get(as_text(said.get("stopReason")))
    if said.get("stopReason") in ("error", "aborted"):
        reading.error = as_text(said.get("errorMessage")) or "no reason given"
        return
    reading.error = None
    reading.model_calls += 1
    reading.responses.append(as_text(said.get("responseId")))
    reading.usage = _usage(as_dict(said.get("usage"))).plus(reading.usage)
    reading.items += [item for part in as_list(said.get("content")) for item in _items(part)]


def _items(part: dict[str, Any]) -> list[Item]:
    match part.get("type"):
        case "text":
            return [message("assistant", as_text(part.get("text")))]
        case "thinking":
            return [reasoning(as_text(part.get("thinking")))]
        case "toolCall":
            # Arguments that could not be read stand in the text of the error.
            broken = as_text(part.get("argumentsError")).partition("Received arguments:\n")[2]
            arguments = broken or as_dict(part.get("arguments"))
            return [function_call(as_text(part.get("name")), arguments, as_text(part.get("id")))]
    return []


def _text(content: Any) -> str:
    return "\n".join(as_text(part.get("text")) for part in as_list(content))


def _timing(result: dict[str, Any]) -> CallTiming:
    duration, ended = as_count(result.get("durationMs")), as_count(result.get("timestamp"))
    return CallTiming((ended - duration) / 1000, ended / 1000, duration, failed=result.get("isError") is True)


def _usage(counts: dict[str, Any]) -> Usage:
    """Pi counts what came from the cache apart."""
    cached = as_count(counts.get("cacheRead"))
    return tokens(
        read=as_count(counts.get("input")) + cached + as_count(counts.get("cacheWrite")),
        written=as_count(counts.get("output")),
        cached=cached,
        reasoning=as_count(counts.get("reasoning")),
    )
