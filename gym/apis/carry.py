"""What of a Responses request another API can carry.

The rule: every field, tool and item is carried, is on the one list of what is dropped on purpose, or is refused by
name with a 400. Nothing is lost silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from gym.apis.events import TEXTS, deltas_of
from gym.apis.fields import DROPPED_OF_TOOLS, EMPTY, NoPlace, is_dropped, only
from gym.apis.responses import Item, ResponsesRequest, texts_of
from gym.servers.base import ServerError, describe

ConvertedT = TypeVar("ConvertedT")


ROLES = {"function_call": "assistant", "reasoning": "assistant", "function_call_output": "tool"}
"""The item types beside `message` that can be carried, and the role whose turn they belong to."""

ITEM_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output", "name"),
    "reasoning": ("summary", "content", "encrypted_content"),
}
"""What is read of each type of item. The name in an output is that of its call."""

PART_FIELDS = {"input_image": ("image_url", "detail", "file_id"), "refusal": ("refusal",)}
"""The same for parts; all others are texts."""

MESSAGE_ROLES = ("system", "developer", "user", "assistant")

Placed = tuple[str, Item]
"""An item with its place in the request, such as `input[3]`."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function tool; `parameters` is a JSON Schema."""

    name: str
    description: str | None
    parameters: dict[str, Any]
    strict: bool | None


def neutral(fields: Mapping[str, Any]) -> ResponsesRequest:
    """A request of the fields that are set.

    Raises:
        ServerError: 400 for values that do not fit.
    """
    try:
        return ResponsesRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise ServerError(400, describe(error)) from error


def further(extra: Mapping[str, Any] | None, neutral_names: Collection[str], api: str) -> dict[str, Any]:
    """The fields of a client's request beside those that are converted, as they are.

    Args:
        extra: The fields.
        neutral_names: Names that mean something in a neutral request, and nothing in the client's API.
        api: Of which API the client's is none.

    Raises:
        NoPlace: For a field of such a name.
    """
    for name, value in (extra or {}).items():
        if name in neutral_names and value not in EMPTY:
            raise NoPlace(name, api)
    return {name: value for name, value in (extra or {}).items() if name not in neutral_names}


def required(mapping: Mapping[str, Any], key: str, where: str) -> Any:
    """A value that must be there.

    Raises:
        ServerError: 400 where it is not.
    """
    if mapping.get(key) is None:
        raise ServerError(400, f"{where} has no `{key}`")
    return mapping[key]


def carried(request: ResponsesRequest, api: str, known: Collection[str]) -> dict[str, Any]:
    """The fields in `known` that the request sets beside the typed ones; nested ones by dotted name (`text.format`).

    Raises:
        ServerError: 400 for a field that is neither carried nor dropped.
    """
    found = {}
    for name, value in _flat(request).items():
        if name in known:
            found[name] = value
        elif not is_dropped(name, value):
            raise NoPlace(name, api, value=value)
    return found


def _flat(request: ResponsesRequest) -> dict[str, Any]:
    fields = dict(request.model_extra or {})
    for group in ("reasoning", "text"):
        nested = fields.pop(group, None) or {}
        if not isinstance(nested, Mapping):
            raise ServerError(400, f"`{group}` is not a mapping")
        fields |= {f"{group}.{name}": value for name, value in nested.items()}
    return {name: value for name, value in fields.items() if value is not None}


def function_tools(request: ResponsesRequest, api: str) -> list[FunctionTool]:
    """The request's tools.

    Raises:
        ServerError: 400 for any other type of tool.
    """
    return [_function_tool(tool, f"tools[{at}]", api) for at, tool in enumerate(request.tools)]


def _function_tool(tool: Mapping[str, Any], where: str, api: str) -> FunctionTool:
    if tool.get("type") != "function":
        raise NoPlace(where, api, f"a tool of type `{tool.get('type')}`")
    only(tool, ("name", "description", "parameters", "strict"), where, api, DROPPED_OF_TOOLS)
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    return FunctionTool(required(tool, "name", where), tool.get("description"), parameters, tool.get("strict"))


def tool_choice(request: ResponsesRequest, api: str) -> tuple[str, str] | None:
    """The choice as mode (`auto`, `none`, `required`, `function`) and function name, or None where nothing is to say.

    Raises:
        ServerError: 400 for any other choice, and for one that demands a tool where there is none.
    """
    choice = request.tool_choice
    if choice is None or (not request.tools and choice in ("auto", "none")):
        return None
    if not request.tools:
        raise ServerError(400, f"tool_choice {choice!r} without tools")
    if choice in ("auto", "none", "required"):
        return choice, ""
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        only(choice, ("name",), "tool_choice", api, {})
        return "function", required(choice, "name", "tool_choice")
    if isinstance(choice, Mapping):
        raise NoPlace("tool_choice.type", api, value=choice.get("type"))
    raise NoPlace("tool_choice", api, value=choice)


def runs(request: ResponsesRequest, api: str) -> Iterator[tuple[str, list[Placed]]]:
    """The input as maximal runs of items of one role: system, developer, user, assistant, tool.

    Raises:
        ServerError: 400 for an item that cannot be carried.
    """
    placed = [(f"input[{at}]", item) for at, item in enumerate(request.items())]
    for role, run in groupby(placed, lambda entry: _role(entry[0], entry[1], api)):
        yield role, list(run)


def _role(where: str, item: Item, api: str) -> str:
    kind = kind_of(item)
    if kind == "message":
        role = str(item.get("role"))
        if role not in MESSAGE_ROLES:
            raise NoPlace(where, api, f"a message of role `{role}`")
    elif kind not in ROLES:
        raise NoPlace(where, api, f"an item of type `{kind}`")
    only(item, ITEM_FIELDS[kind], where, api)
    for key in ("summary", "content") if kind == "reasoning" else ():
        parts(item.get(key) or [], REASONING_PARTS, f"{where}.{key}", api)
    return role if kind == "message" else ROLES[kind]


def kind_of(item: Item) -> str:
    """The type of an item; a message may leave it out."""
    return str(item.get("type") or ("message" if "role" in item else None))


def parts(
    content: Any, table: Mapping[str, Callable[[Mapping[str, Any], str], ConvertedT]], where: str, api: str
) -> list[ConvertedT]:
    """Content parts, each converted by the entry of its type; a plain text counts as one `input_text`.

    Raises:
        ServerError: 400 for a part whose type the table lacks.
    """
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    if not isinstance(content, Sequence):
        raise ServerError(400, f"{where} is neither a text nor a list of parts")
    converted = []
    for at, part in enumerate(content):
        kind = str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
        if kind not in table:
            raise NoPlace(f"{where}[{at}]", api, f"a part of type `{kind}`")
        only(part, PART_FIELDS.get(kind, ("text",)), f"{where}[{at}]", api)
        converted.append(table[kind](part, f"{where}[{at}]"))
    return converted


def _text(part: Mapping[str, Any], where: str) -> str:
    return str(required(part, "text", where))


def _refusal(part: Mapping[str, Any], where: str) -> str:
    return str(required(part, "refusal", where))


TEXT_PARTS = {"input_text": _text, "output_text": _text, "text": _text}
SPOKEN_PARTS = {**TEXT_PARTS, "refusal": _refusal}
"""What an assistant message may hold: its own refusals are sent back as its text."""

REASONING_PARTS = dict.fromkeys(("summary_text", "reasoning_text", "text"), _text)


def image_url(part: Mapping[str, Any], where: str, api: str) -> str:
    """The URL of an `input_image` part, http(s) or data.

    Raises:
        ServerError: 400 for an image that is named by a file id.
    """
    if part.get("file_id") is not None:
        raise NoPlace(f"{where}.file_id", api)
    return str(required(part, "image_url", where))


def text_content(item: Item, where: str, api: str) -> str:
    """The text of a message that must be only text."""
    table = SPOKEN_PARTS if item.get("role") == "assistant" else TEXT_PARTS
    return "".join(parts(item.get("content") or "", table, f"{where}.content", api))


def unread_part(item: Item) -> str | None:
    """The type of a part that has no text, of a message that has no other."""
    content = item.get("content")
    if not isinstance(content, list) or any(deltas_of(item)):
        return None
    return next((str(part.get("type")) for part in content if part.get("type") not in TEXTS), None)


def spoken_text(item: Item, key: str) -> str:
    """What a message says under `key`: `text`, or `refusal`."""
    content = item.get("content") or ""
    if isinstance(content, str):
        return content if key == "text" else ""
    return "".join(str(part[key]) for part in content if part.get(key) is not None)


def reasoning_text(item: Item) -> str:
    """The text of a reasoning item: its content, else its summary."""
    return "\n".join(texts_of(item)) or "\n".join(texts_of({"content": item.get("summary")}))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def decoded_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments of a call as a mapping; `{}` where the model wrote something that is no JSON object.

    Upstreams refuse a history with undecodable arguments, so a bad call must not be sent back as it was.
    """
    try:
        decoded = json.loads(arguments, parse_constant=_no_constant) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
