"""A client's Chat Completions request in neutral form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.apis.carry import cannot, neutral
from gym.apis.responses import Item, ResponsesRequest, function_call, message, reasoning
from gym.servers.base import ServerError, describe

Parts = str | list[dict[str, Any]] | None


class _Named(BaseModel):
    name: str
    arguments: str = ""
    input: str = ""


class _ToolCall(BaseModel):
    id: str
    type: Literal["function", "custom"] = "function"
    function: _Named | None = None
    custom: _Named | None = None


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Parts = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None


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
        match entry.role:
            case "assistant":
                custom |= {call.id for call in entry.tool_calls or () if call.custom is not None}
                yield from _assistant(entry, f"messages[{at}]")
            case "tool":
                yield _tool_output(entry, custom, f"messages[{at}]")
            case role:
                yield {"type": "message", "role": role, "content": _content(entry.content)}


def _content(content: Parts) -> str | list[dict[str, Any]]:
    """The content as a Responses input; a part of a type that is not known here stays, to be refused by name."""
    if content is None or isinstance(content, str):
        return content or ""
    return [_part(part) for part in content]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": text}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": dict(image)} if "url" in image:
            return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
        case {"type": "image_url", "image_url": str(url)}:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
    return part


def _assistant(entry: _Message, where: str) -> Iterator[Item]:
    for name in ("function_call", "audio"):
        if getattr(entry, name) is not None:
            raise cannot(f"`{where}.{name}`", "another API")
    if thought := entry.reasoning_content or entry.reasoning:
        yield reasoning(thought)
    if text := _spoken(entry.content, where):
        yield message("assistant", text)
    if entry.refusal:
        yield {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": entry.refusal}]}
    for call in entry.tool_calls or ():
        yield _call(call, where)


def _spoken(content: Parts, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text", part.get("refusal")) for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ServerError(400, f"{where}.content: an assistant says only text")
    return "".join(map(str, texts))


def _call(call: _ToolCall, where: str) -> Item:
    if call.custom is not None:
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.custom.name, "input": call.custom.input}
    if call.function is None:
        raise ServerError(400, f"{where}: the tool call {json.dumps(call.id)} has no `function`")
    return function_call(call.function.name, call.function.arguments, call.id)


def _tool_output(entry: _Message, custom: set[str], where: str) -> Item:
    if entry.tool_call_id is None:
        raise ServerError(400, f"{where} has no `tool_call_id`")
    kind = "custom_tool_call_output" if entry.tool_call_id in custom else "function_call_output"
    return {"type": kind, "call_id": entry.tool_call_id, "output": _content(entry.content)}
