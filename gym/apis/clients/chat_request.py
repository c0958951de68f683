"""A client's Chat Completions request in neutral form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.apis.carry import neutral
from gym.apis.fields import DROPPED_OF_TOOLS, only
from gym.apis.responses import Item, ResponsesRequest, function_call, message, reasoning
from gym.servers.base import ServerError, describe

API = "another API"
Parts = str | list[dict[str, Any]] | None


class _Open(BaseModel):
    """Further fields are kept, to be dropped or refused by name."""

    model_config = ConfigDict(extra="allow")


class _Named(_Open):
    name: str
    arguments: str = ""
    input: str = ""


class _ToolCall(_Open):
    id: str
    type: Literal["function", "custom"] = "function"
    function: _Named | None = None
    custom: _Named | None = None


class _Message(_Open):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Parts = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None


class _Body(BaseModel):
    """The fields that have another name or shape than in a Responses request; the others are kept."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[_Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None


def from_chat(body: Mapping[str, Any]) -> ResponsesRequest:
    """The neutral form of a body of `POST /v1/chat/completions`.

    Raises:
        ServerError: 400 for a body that is no such request.
    """
    try:
        chat = _Body.model_validate(body)
    except ValidationError as error:
        raise ServerError(400, describe(error)) from error
    nested = {
        "reasoning": {"effort": chat.reasoning_effort} if chat.reasoning_effort else None,
        "text": _text(chat),
    }
    typed = {
        "model": chat.model,
        "input": list(_items(chat.messages)),
        "tools": [_tool(tool, f"tools[{at}]") for at, tool in enumerate(chat.tools or ())] or None,
        "tool_choice": _tool_choice(chat.tool_choice),
        "temperature": chat.temperature,
        "top_p": chat.top_p,
        "max_output_tokens": chat.max_completion_tokens or chat.max_tokens,
    }
    return neutral({**(chat.model_extra or {}), **nested, **typed})


def _text(chat: _Body) -> dict[str, Any] | None:
    text: dict[str, Any] = {"verbosity": chat.verbosity} if chat.verbosity else {}
    form = chat.response_format
    if form and form.get("type") == "json_schema":
        text["format"] = {"type": "json_schema", **(form.get("json_schema") or {})}
    elif form:
        text["format"] = form
    return text or None


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    described = tool.get(str(kind))
    only(tool, (str(kind),), where, API, DROPPED_OF_TOOLS)
    if kind not in ("function", "custom") or not isinstance(described, Mapping):
        raise ServerError(400, f"{where} is neither a function nor a custom tool")
    # Where nothing is said, this API is not strict, while Responses is.
    flat = {"type": kind, **({"strict": False} if kind == "function" else {}), **described}
    if isinstance(form := flat.get("format"), Mapping) and isinstance(form.get("grammar"), Mapping):
        flat["format"] = {"type": "grammar", **form["grammar"]}
    return flat


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and isinstance(named := choice.get(str(choice.get("type"))), Mapping):
        return {"type": choice["type"], **named}
    return choice


def _items(messages: list[_Message]) -> Iterator[Item]:
    custom: set[str] = set()
    for at, entry in enumerate(messages):
        where = f"messages[{at}]"
        only(entry.model_extra or {}, NAMES_OF_TOOLS if entry.role == "tool" else (), where, API)
        match entry.role:
            case "assistant":
                custom |= {call.id for call in entry.tool_calls or () if call.custom is not None}
                yield from _assistant(entry, where)
            case "tool":
                yield _tool_output(entry, custom, where)
            case role:
                yield {"type": "message", "role": role, "content": _content(entry.content, where)}


NAMES_OF_TOOLS = ("name", "tool_name")
"""Fields of a tool's message that say again what its call says."""


def _content(content: Parts, where: str) -> str | list[dict[str, Any]]:
    """The content as a Responses input; a part of a type that is not known here stays, to be refused by name."""
    if content is None or isinstance(content, str):
        return content or ""
    return [_part(part, f"{where}.content[{at}]") for at, part in enumerate(content)]


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": text}:
            only(part, ("text",), where, API)
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": dict(image)} if "url" in image:
            only(part, ("image_url",), where, API)
            only(image, ("url", "detail"), f"{where}.image_url", API)
            return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
        case {"type": "image_url", "image_url": str(url)}:
            only(part, ("image_url",), where, API)
            return {"type": "input_image", "image_url": url, "detail": "auto"}
    return part


def _assistant(entry: _Message, where: str) -> Iterator[Item]:
    if thought := entry.reasoning_content or entry.reasoning:
        yield reasoning(thought)
    if text := _spoken(entry.content, where):
        yield message("assistant", text)
    if entry.refusal:
        yield {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": entry.refusal}]}
    for at, call in enumerate(entry.tool_calls or ()):
        yield _call(call, f"{where}.tool_calls[{at}]")


def _spoken(content: Parts, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text", part.get("refusal")) for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ServerError(400, f"{where}.content: an assistant says only text")
    for at, part in enumerate(content):
        only(part, ("text", "refusal"), f"{where}.content[{at}]", API)
    return "".join(map(str, texts))


def _call(call: _ToolCall, where: str) -> Item:
    only(call.model_extra or {}, ("call_id",), where, API)
    only((call.custom or call.function or call).model_extra or {}, ("call_id",), where, API)
    if call.custom is not None:
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.custom.name, "input": call.custom.input}
    if call.function is None:
        raise ServerError(400, f"{where}: the tool call {json.dumps(call.id)} has no `function`")
    return function_call(call.function.name, call.function.arguments, call.id)


def _tool_output(entry: _Message, custom: set[str], where: str) -> Item:
    if entry.tool_call_id is None:
        raise ServerError(400, f"{where} has no `tool_call_id`")
    kind = "custom_tool_call_output" if entry.tool_call_id in custom else "function_call_output"
    return {"type": kind, "call_id": entry.tool_call_id, "output": _content(entry.content, where)}
