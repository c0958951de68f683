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
from gym.apis.fields import DROPPED_OF_TOOLS, NoPlace, only, renamed, told
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


def flattened(request: ResponsesRequest, api: str) -> tuple[ResponsesRequest, Names]:
    """The request with functions, function calls and their outputs in place of what other APIs do not know.

    Raises:
        ServerError: 400 where two tools would have the same name, and for what functions have no place for.
    """
    with told(api, request.clients_places):
        return _flattened(request, api)


def _flattened(request: ResponsesRequest, api: str) -> tuple[ResponsesRequest, Names]:
    given = [] if isinstance(request.input, str) else request.input
    items = [(f"input[{at}]", item) for at, item in enumerate(given)]
    offered = [(f"tools[{at}]", tool) for at, tool in enumerate(request.tools)]
    offered += [entry for where, item in items for entry in _brought_by(item, where, api)]
    names: Names = {}
    opened = [inner for where, tool in offered for inner in _opened(tool, where, api)]
    tools = [(where, _flat_tool(namespace, tool, names, where, api)) for namespace, where, tool in opened]
    counts = Counter(tool.get("name") for _, tool in tools)
    if doubled := [name for name in names if counts[name] > 1]:
        raise ServerError(400, f"two tools have the name `{doubled[0]}`")
    kept = [(where, _flat_item(item, where, api)) for where, item in items if item.get("type") != "additional_tools"]
    update: dict[str, Any] = {
        "tools": [tool for _, tool in tools],
        "tool_choice": _flat_choice(request.tool_choice, api),
    }
    if items:
        update["input"] = [item for _, item in kept]
    flat = request.model_copy(update=update)
    return flat.placed(lambda: _moved(request.clients_places(), tools=tools, input=kept)), names


def _moved(places: Mapping[str, str], **lists: list[tuple[str, Any]]) -> dict[str, str]:
    """The client's names of places, where these lists have entries from elsewhere."""
    moved = {place: name for place, name in places.items() if not place.startswith(tuple(f"{key}[" for key in lists))}
    for key, entries in lists.items():
        for at, (was, _) in enumerate(entries):
            moved |= {f"{key}[{at}]{part}": renamed(was + part, places) for part in ("", ".output")}
    return moved


def _brought_by(item: Item, where: str, api: str) -> Iterable[tuple[str, Tool]]:
    if item.get("type") != "additional_tools":
        return []
    only(item, ("role", "tools"), where, api)
    return [(f"{where}.tools[{at}]", tool) for at, tool in enumerate(item.get("tools") or [])]


def _opened(tool: Tool, where: str, api: str) -> Iterator[tuple[str | None, str, Tool]]:
    """The tools of a namespace; any other tool as it is."""
    if tool.get("type") != "namespace":
        yield None, where, tool
        return
    only(tool, ("name", "description", "tools"), where, api, DROPPED_OF_TOOLS)
    for at, inner in enumerate(tool.get("tools") or []):
        if at == 0 and tool.get("description"):
            # It describes all of them; said once is enough.
            about = f"About the tools `{flat_name(str(tool.get('name')), '')}*`: {tool['description']}"
            inner = {**inner, "description": "\n\n".join(filter(None, (inner.get("description"), about)))}
        yield str(tool.get("name")), f"{where}.tools[{at}]", inner


def _flat_tool(namespace: str | None, tool: Tool, names: Names, where: str, api: str) -> Tool:
    custom = tool.get("type") == "custom"
    if namespace is None and not custom:
        return tool
    flat = flat_name(namespace, str(tool.get("name")))
    names[flat] = Known(str(tool.get("name")), namespace, custom)
    return _function_of(tool, flat, where, api) if custom else {**tool, "name": flat}


def _function_of(tool: Tool, name: str, where: str, api: str) -> Tool:
    only(tool, ("name", "description", "format"), where, api, DROPPED_OF_TOOLS)
    about = "`input` is free text."
    match tool.get("format") or {"type": "text"}:
        case {"type": "text"} as form:
            only(form, (), f"{where}.format", api, {})
        case {"type": "grammar"} as form:
            only(form, ("syntax", "definition"), f"{where}.format", api, {})
            about = f"`input` is text of this {form.get('syntax')} grammar:\n{form.get('definition')}"
        case form:
            raise NoPlace(f"{where}.format", api, value=form.get("type") if isinstance(form, Mapping) else form)
    return {
        "type": "function",
        "name": name,
        "description": "\n\n".join(filter(None, (tool.get("description"), about))),
        "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    }


def _flat_choice(choice: Any, api: str) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") in ("function", "custom") and choice.get("name"):
        only(choice, ("name", "namespace"), "tool_choice", api, {})
        return {"type": "function", "name": flat_name(choice.get("namespace"), str(choice["name"]))}
    return choice


def _flat_item(item: Item, where: str, api: str) -> Item:
    match item.get("type"):
        case "function_call" if item.get("namespace"):
            flat = {**item, "name": flat_name(item["namespace"], str(item.get("name")))}
            del flat["namespace"]
            return flat
        case "custom_tool_call":
            only(item, ("call_id", "name", "namespace", "input"), where, api)
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
    if str(made.get("id")).startswith("fc_"):
        made["id"] = f"ctc_{made['id'].removeprefix('fc_')}"
    return _with_namespace(made, known)
