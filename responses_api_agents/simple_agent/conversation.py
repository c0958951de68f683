"""What is said between the model and its tools: the history that is sent, and the trajectory that is kept.

They differ in one thing: arguments that are no JSON object go back to the model as `{}`, since providers refuse a
history that they cannot decode, while the trajectory keeps the raw text under the flag `malformed_arguments`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn

from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse, Usage, function_call_output

BadCall = Literal["malformed", "unknown", "invalid"]
UNNAMED = "unnamed"
"""Stands for the name in a call that has none: providers refuse a history with such a call."""


class MalformedArguments(ValueError):
    """The arguments of a call are no JSON object; the text says where they break."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call of the model. Its id occurs once; `problem` is set where the arguments cannot be read."""

    call_id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass
class Counters:
    """What an activation did, in numbers. `tool_calls` counts all calls, also those that could not be run."""

    model_calls: int = 0
    tool_calls: int = 0
    tool_calls_malformed: int = 0
    tool_calls_unknown: int = 0
    tool_calls_invalid: int = 0


class Conversation:
    """One activation's exchange.

    Attributes:
        tool_names: Functions that the request offers to the model; nothing else may be called.
        model_cookies: Cookies of the model server, kept apart from those of the tools.
        bad_calls_in_a_row: Calls since the last one that ran.
    """

    def __init__(self, request: ResponsesRequest, system_prompt: str | None) -> None:
        prompts = [text for text in (system_prompt, request.instructions) if text]
        self._request = request.model_copy(update={"instructions": "\n\n".join(prompts)}) if system_prompt else request
        self._history: list[Item] = list(request.items())
        self._call_ids = {item["call_id"] for item in self._history if "call_id" in item}
        self._output: list[Item] = []
        self._usage: Usage | None = None
        self._last: ResponsesResponse | None = None
        self._stop_reason: str | None = None
        self.tool_names = frozenset(
            str(tool.get("name", "")) for tool in request.tools if tool.get("type", "function") == "function"
        )
        self.model_cookies: dict[str, str] = {}
        self.counters = Counters()
        self.bad_calls_in_a_row = 0

    def request(self) -> ResponsesRequest:
        """The next request to the model. Its list is its own; the items are shared and never changed."""
        return self._request.model_copy(update={"input": list(self._history), "stream": False})

    def take(self, answer: ResponsesResponse) -> list[ToolCall]:
        """Adds a model's turn, in its order, and returns the calls in it. Each wants an `accept` or a `reject`."""
        self.counters.model_calls += 1
        self._last = answer
        self._usage = answer.usage.plus(self._usage) if answer.usage else self._usage
        calls = []
        for item in answer.output:
            if item.get("type") == "function_call":
                calls.append(self._take_call(item))
            else:
                self._history.append(item)
                self._output.append(item)
        self.counters.tool_calls += len(calls)
        return calls

    def accept(self, call: ToolCall, result: Any) -> None:
        """Answers a call with the tool's result: a text as it is, anything else as JSON."""
        self.bad_calls_in_a_row = 0
        self._answer(call, result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))

    def reject(self, call: ToolCall, kind: BadCall, reason: str) -> None:
        """Answers a call that was not run with the reason, and counts it."""
        self.bad_calls_in_a_row += 1
        counter = f"tool_calls_{kind}"
        setattr(self.counters, counter, getattr(self.counters, counter) + 1)
        self._answer(call, json.dumps({"error": reason}, ensure_ascii=False))

    def response(self, status: str, incomplete_details: dict[str, Any] | None) -> ResponsesResponse:
        """The whole activation as one response: every item, and the usage of all model calls together."""
        self._stop_reason = (incomplete_details or {}).get("reason", status)
        last = self._last or ResponsesResponse()  # a budget may be used up before the first call
        return last.model_copy(
            update={
                "status": status,
                "incomplete_details": incomplete_details,
                "output": self._output,
                "usage": self._usage,
            }
        )

    def observations(self) -> dict[str, Any]:
        """Why the activation stopped (None: it did not come to its end), and its counters."""
        return {"stop_reason": self._stop_reason, "counters": asdict(self.counters)}

    def _take_call(self, item: Item) -> ToolCall:
        call_id, name = self._own_id(item.get("call_id")), str(item.get("name") or UNNAMED)
        own = {"call_id": call_id, "name": name}
        kept = item if own.items() <= item.items() else {**item, **own}
        try:
            call = ToolCall(call_id, name, parse_arguments(item.get("arguments")))
        except MalformedArguments as error:
            call = ToolCall(call_id, name, problem=str(error))
        self._output.append({**kept, "malformed_arguments": True} if call.problem else kept)
        raw = item.get("arguments")
        readable = isinstance(raw, str) and raw.strip() and not call.problem
        self._history.append(kept if readable else {**kept, "arguments": json.dumps(call.arguments)})
        return call

    def _own_id(self, given: Any) -> str:
        base = str(given or "call")
        unique, number = base, 1
        while unique in self._call_ids:
            number += 1
            unique = f"{base}_{number}"
        self._call_ids.add(unique)
        return unique

    def _answer(self, call: ToolCall, text: str) -> None:
        result = function_call_output(call.call_id, text)
        self._history.append(result)
        self._output.append(result)


def parse_arguments(raw: Any) -> dict[str, Any]:
    """The arguments of a call. Nothing at all means none, as models write it for tools without parameters.

    Raises:
        MalformedArguments: The text is no JSON object.
    """
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return {}
    try:
        arguments = raw if isinstance(raw, dict) else json.loads(raw, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        message = f"the arguments are no valid JSON: {error.msg} at character {error.pos} of {len(raw)}"
        raise MalformedArguments(message) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedArguments(f"the arguments are no valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise MalformedArguments("the arguments must be a JSON object")
    return arguments


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
