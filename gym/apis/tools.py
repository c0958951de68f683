"""Tools that only the Responses API knows, as functions that every API knows, and their calls back again.

A namespace becomes a prefix of its tools' names. A custom (free-form) tool becomes a function with one text argument,
`input`; its grammar goes into the description. Tools that `additional_tools` items bring are tools like any other.
Any other type of tool stays, and is refused by name where it cannot be carried.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gym.apis.events import Event, ItemDone, ItemStarted, unfold_item
from gym.apis.responses import Item, ResponsesRequest
from gym.servers.base import ServerError

LONGEST_NAME = 64
"""Function names of Chat Completions and Messages are no longer."""

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """What a flat function name stands for."""

    name: str
    namespace: str | None
    custom: bool


Names = dict[str, Known]
"""The functions that stand for something else, by name."""


def flat_name(namespace: str | None, name: str) -> str:
    """The name of a tool without its namespace; one that would be too long is cut and made unique by its hash."""
    if not namespace:
        return name
    flat = namespace + ("" if namespace.endswith("__") else "__") + name
    if len(flat) <= LONGEST_NAME:
        return flat
    return f"{flat[: LONGEST_NAME - 9]}_{hashlib.sha256(flat.encode()).hexdigest()[:8]}"


def flattened(request: ResponsesRequest) -> tuple[ResponsesRequest, Names]:
    """The request with functions, function calls and their outputs in place of what other APIs do not know.

    Raises:
        ServerError: 400 where two tools would have the same name.
    """
    items = [] if isinstance(request.input, str) else request.input
    offered = [*request.tools, *(tool for item in items for tool in _brought_by(item))]
    names: Names = {}
    tools = [_flat_tool(namespace, inner, names) for tool in offered for namespace, inner in _opened(tool)]
    counts = Counter(tool.get("name") for tool in tools)
    if doubled := [name for name in names if counts[name] > 1]:
        raise ServerError(400, f"two tools have the name `{doubled[0]}`")
    update: dict[str, Any] = {"tools": tools, "tool_choice": _flat_choice(request.tool_choice)}
    if items:
        update["input"] = [_flat_item(item) for item in items if item.get("type") != "additional_tools"]
    return request.model_copy(update=update), names


def _brought_by(item: Item) -> Iterable[Tool]:
    return item.get("tools") or [] if item.get("type") == "additional_tools" else []


def _opened(tool: Tool) -> Iterator[tuple[str | None, Tool]]:
    """The tools of a namespace; any other tool as it is."""
    if tool.get("type") != "namespace":
        yield None, tool
        return
    for at, inner in enumerate(tool.get("tools") or []):
        if at == 0 and tool.get("description"):
            # It describes all of them; said once is enough.
            about = f"About the tools `{flat_name(str(tool.get('name')), '')}*`: {tool['description']}"
            inner = {**inner, "description": "\n\n".join(filter(None, (inner.get("description"), about)))}
        yield str(tool.get("name")), inner


def _flat_tool(namespace: str | None, tool: Tool, names: Names) -> Tool:
    custom = tool.get("type") == "custom"
    if namespace is None and not custom:
        return tool
    flat = flat_name(namespace, str(tool.get("name")))
    names[flat] = Known(str(tool.get("name")), namespace, custom)
    return _function_of(tool, flat) if custom else {**tool, "name": flat}


def _function_of(tool: Tool, name: str) -> Tool:
    form = tool.get("format") or {}
    about = "`input` is free text."
    if form.get("type") == "grammar":
        about = f"`input` is text of this {form.get('syntax')} grammar:\n{form.get('definition')}"
    return {
        "type": "function",
        "name": name,
        "description": "\n\n".join(filter(None, (tool.get("description"), about))),
        "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    }


def _flat_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") in ("function", "custom") and choice.get("name"):
        return {"type": "function", "name": flat_name(choice.get("namespace"), str(choice["name"]))}
    return choice


def _flat_item(item: Item) -> Item:
    match item.get("type"):
        case "function_call" if item.get("namespace"):
            flat = {**item, "name": flat_name(item["namespace"], str(item.get("name")))}
            del flat["namespace"]
            return flat
        case "custom_tool_call":
            arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
            name = flat_name(item.get("namespace"), str(item.get("name")))
            return {"type": "function_call", "call_id": item.get("call_id"), "name": name, "arguments": arguments}
        case "custom_tool_call_output":
            return {**item, "type": "function_call_output"}
    return item


class Restorer:
    """Puts the names and types of the request's tools back into an answer's events."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._custom: Known | None = None

    def __call__(self, events: list[Event]) -> list[Event]:
        """The events with calls as the client knows them; a custom call comes when it is complete."""
        return [restored for event in events for restored in self._restored(event)] if self._names else events

    def _restored(self, event: Event) -> Iterable[Event]:
        if isinstance(event, ItemStarted | ItemDone) and event.item.get("type") == "function_call":
            known = self._names.get(str(event.item.get("name")))
            if known is not None and known.custom:
                return self._custom_call(event, known)
            return (type(event)(event.item if known is None else _with_namespace(event.item, known)),)
        return () if self._custom is not None else (event,)

    def _custom_call(self, event: ItemStarted | ItemDone, known: Known) -> Iterable[Event]:
        if isinstance(event, ItemStarted):
            self._custom = known
            return ()
        self._custom = None
        return unfold_item(_custom_item(event.item, known))


def _with_namespace(item: Item, known: Known) -> Item:
    named = {**item, "name": known.name}
    return named if known.namespace is None else {**named, "namespace": known.namespace}


def _custom_item(item: Item, known: Known) -> Item:
    raw = str(item.get("arguments") or "")
    try:
        given = json.loads(raw)
    except ValueError:
        given = None
    text = given.get("input") if isinstance(given, dict) else None
    rest = {key: value for key, value in item.items() if key != "arguments"}
    # Arguments of another shape are passed on as they are: the harness tells the model what is wrong with them.
    made = {**rest, "type": "custom_tool_call", "input": text if isinstance(text, str) else raw}
    return _with_namespace(made, known)
