"""What mini-SWE-agent did, from the events of `inside/drive.py`.

A command is told twice: when it has run, and as the model reads its output. The command that ends the run is never read
by the model, and so is one that was running when the time was up.
"""

from __future__ import annotations

from typing import Any

from gym.apis.responses import Item, Usage, function_call_output
from gym.harness.adapter import CallTiming, Evidence, Reading, as_dict, as_list, as_text

STOPS = {"Submitted": "completed", "RepeatedFormatError": "completed", "LimitsExceeded": "max_turns"}
"""How it may end by itself: a model that gives no command three times in a row has come to its end, too."""


OWN_KINDS = ("provider_unreachable", "malformed_answer", "tool_server_error")
"""Those that `drive.py` names."""


def read(evidence: Evidence) -> Reading:
    """Items and usage of the run, and how it ended."""
    reading = Reading()
    unread: dict[str, str] = {}
    cut = False
    for event in evidence.events():
        call_id = as_text(event.get("call_id"))
        match event.get("event"):
            case "answer":
                cut = event.get("incomplete") == "max_output_tokens"
                _take_answer(reading, event)
            case "executed":
                unread[call_id] = as_text(event.get("output"))
                reading.timings[call_id] = _timing(event)
            case "observed":
                unread.pop(call_id, None)
                reading.items.append(function_call_output(call_id, as_text(event.get("output"))))
            case "error":
                reading.error = as_text(event.get("message")) or "no reason given"
                kind = as_text(event.get("kind"))
                reading.error_kind = kind if kind in OWN_KINDS else None
            case "end":
                status = as_text(event.get("exit_status"))
                reading.stop = "max_output_tokens" if cut and status == "RepeatedFormatError" else STOPS.get(status)
    reading.gaps += [f"the MCP server {line}" for line in evidence.stderr.splitlines() if " is left out: " in line]
    reading.items += [function_call_output(call_id, output) for call_id, output in unread.items()]
    return reading


def _take_answer(reading: Reading, event: dict[str, Any]) -> None:
    reading.model_calls += 1
    reading.responses.append(as_text(event.get("id")))
    reading.items += [_item(item) for item in as_list(event.get("items"))]
    reading.usage = _usage(as_dict(event.get("usage"))).plus(reading.usage)


def _item(item: Item) -> Item:
    """An item of the model as it came; a call that lacks its name or arguments has empty ones."""
    if item.get("type") != "function_call":
        return item
    texts = {name: as_text(item.get(name)) for name in ("call_id", "name", "arguments")}
    return {**item, **texts}


def _usage(counts: dict[str, Any]) -> Usage:
    try:
        return Usage.model_validate(counts)
    except ValueError:
        return Usage()


def _timing(event: dict[str, Any]) -> CallTiming:
    begun, ended = event.get("begun"), event.get("ended")
    failed = event.get("returncode") != 0
    if not isinstance(begun, float) or not isinstance(ended, float):
        return CallTiming(failed=failed)
    return CallTiming(begun, ended, round((ended - begun) * 1000, 1), failed=failed)
