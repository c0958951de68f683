"""What OpenCode left: its own events, and the lines that `watch.js` writes among them.

The events are of the session that was asked. The work of subagents is in it as the result of the `task` tool; their
model calls are counted with the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gym.apis.responses import Usage, function_call, function_call_output, message, reasoning
from gym.harness.adapter import CallTiming, Evidence, Reading, as_count, as_dict, as_list, as_text, tokens

STOPS = {"stop": "completed", "length": "max_output_tokens", "content-filter": "content_filter"}
GAVE_UP = "gym gave up"
"""What `watch.js` makes OpenCode say; the reason stands in a line of its own."""


@dataclass
class _Run:
    """What was found so far.

    Attributes:
        asked: Name and arguments of the calls that the model wrote and that have no result, by session and id.
        answers: How many answers each session got.
        resting: Sessions that came to rest.
        failure: Why the last failed model call failed.
    """

    reading: Reading = field(default_factory=Reading)
    asked: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    resting: set[str] = field(default_factory=set)
    failure: str = ""


def read(evidence: Evidence) -> Reading:
    """Items and usage of the run, and how it ended."""
    run = _Run()
    for event in evidence.events():
        _take(run, event)
    reading = run.reading
    for (session, call_id), calls in run.asked.items():
        if session == reading.session:
            reading.items += [function_call(name, arguments, call_id) for name, arguments in calls]
    if reading.session not in run.resting:
        reading.stop = None
    if theirs := run.answers.total() - run.answers[reading.session or ""]:
        reading.gaps.append(f"{theirs} model calls of subagents are counted; their steps are not listed")
    return reading


def _take(run: _Run, event: dict[str, Any]) -> None:
    part, reading = as_dict(event.get("part")), run.reading
    reading.session = reading.session or as_text(event.get("sessionID")) or None
    match event.get("type"):
        case "gym.answer":
            _answer(run, event)
        case "gym.failure":
            run.failure = as_text(event.get("text"))
        case "gym.unready":
            reading.error_kind, run.failure = "tool_server_error", as_text(event.get("text"))
        case "gym.left_out":
            reading.gaps.append(f"the MCP server {as_text(event.get('text'))}")
        case "gym.idle":
            run.resting.add(as_text(event.get("session")))
        case "text" if text := as_text(part.get("text")):
            reading.items.append(message("assistant", text))
        case "reasoning" if text := as_text(part.get("text")):
            reading.items.append(reasoning(text))
        case "tool_use":
            _tool(run, as_text(event.get("sessionID")), part)
        case "step_finish":
            reading.stop, reading.error = STOPS.get(as_text(part.get("reason"))), None
        case "error":
            reading.error = _words(as_dict(event.get("error")), run.failure)


def _answer(run: _Run, event: dict[str, Any]) -> None:
    session, usage = as_text(event.get("session")), as_dict(event.get("usage"))
    run.answers[session] += 1
    run.reading.model_calls += 1
    run.reading.responses.append(as_text(event.get("id")))
    if usage:
        run.reading.usage = _usage(usage).plus(run.reading.usage)
    for call in as_list(event.get("calls")):
        written = as_text(call.get("name")), as_text(call.get("arguments"))
        run.asked.setdefault((session, as_text(call.get("id"))), []).append(written)


def _tool(run: _Run, session: str, part: dict[str, Any]) -> None:
    """A call that ended. OpenCode puts a tool named `invalid` in the place of one that it cannot make."""
    call_id, state = as_text(part.get("callID")), as_dict(part.get("state"))
    given = as_dict(state.get("input"))
    invalid = part.get("tool") == "invalid"
    name = as_text(given.get("tool") if invalid else part.get("tool"))
    written = run.asked.get((session, call_id))
    arguments = written.pop(0)[1] if written else given
    output = as_text(state.get("output")) or as_text(state.get("error"))
    run.reading.items += [function_call(name, arguments, call_id), function_call_output(call_id, output)]
    failed = invalid or state.get("status") == "error"
    run.reading.timings[call_id] = _timing(as_dict(state.get("time")), failed=failed)


def _timing(times: dict[str, Any], *, failed: bool) -> CallTiming:
    begun, ended = as_count(times.get("start")), as_count(times.get("end"))
    return CallTiming(begun / 1000, ended / 1000, ended - begun, failed=failed)


def _words(error: dict[str, Any], failure: str) -> str:
    data = as_dict(error.get("data"))
    text = as_text(data.get("message")) or as_text(error.get("name")) or "no reason given"
    if text == GAVE_UP:
        return failure or text
    status = f"HTTP {data['statusCode']}: " if as_count(data.get("statusCode")) else ""
    return f"{status}{text} {as_text(data.get('responseBody'))}".strip()


def _usage(counts: dict[str, Any]) -> Usage:
    """Of the model's own counts (Chat Completions API, `usage`)."""
    return tokens(
        read=as_count(counts.get("prompt_tokens")),
        written=as_count(counts.get("completion_tokens")),
        cached=as_count(as_dict(counts.get("prompt_tokens_details")).get("cached_tokens")),
        reasoning=as_count(as_dict(counts.get("completion_tokens_details")).get("reasoning_tokens")),
    )
