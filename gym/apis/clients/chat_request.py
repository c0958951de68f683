"""A client's Chat Completions request in neutral form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.apis.carry import further, neutral
from gym.apis.fields import DROPPED_OF_REASONING, DROPPED_OF_TOOLS, NoPlace, only
from gym.apis.responses import Item, ResponsesRequest, function_call, message, reasoning
from gym.servers.base import ServerError, describe

API = "another API than Chat Completions"
NOT_OURS = frozenset({"input", "instructions", "max_output_tokens", "text"})
"""Fields that other APIs have, and this one has not."""

Parts = str | list[dict[str, Any]] | None


class _Open(BaseModel):
    """Further fields are kept, to be dropped or refused by name."""

    model_config = ConfigDict(extra="allow")


def _given(model: BaseModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.model_fields_set}


class _Function(_Open):
    name: str
    arguments: str = ""


class _Custom(_Open):
    name: str
    input: str = ""


class _ToolCall(_Open):
    id: str
    type: Literal["function", "custom"] = "function"
    function: _Function | None = None
    custom: _Custom | None = None


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
    reasoning: dict[str, Any] | None = None
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
    placed = list(_items(chat.messages))
    effort, named = _effort(chat)
    limits = [limit for limit in (chat.max_tokens, chat.max_completion_tokens) if limit is not None]
    fields = {
        "model": chat.model,
        "input": [item for _, item in placed],
        "tools": [_tool(tool, f"tools[{at}]") for at, tool in enumerate(chat.tools or ())] or None,
        "tool_choice": _tool_choice(chat.tool_choice),
        "temperature": chat.temperature,
        "top_p": chat.top_p,
        "max_output_tokens": min(limits, default=None),
        "reasoning": {"effort": effort} if effort else None,
        "text": _text(chat),
    }
    request = neutral({**further(chat.model_extra, NOT_OURS, API), **fields})
    return request.placed(lambda: _places(chat, named, [where for where, _ in placed]))


def _places(chat: _Body, effort: str, messages: list[str]) -> dict[str, str]:
    """What the API calls otherwise than a neutral request."""
    schema = ".json_schema" if (chat.response_format or {}).get("type") == "json_schema" else ""
    places = {"reasoning.effort": effort, "text.verbosity": "verbosity", "text.format": f"response_format{schema}"}
    for at, tool in enumerate(chat.tools or ()):
        places[f"tools[{at}]"] = f"tools[{at}].{tool.get('type')}"
        places[f"tools[{at}].format"] = f"tools[{at}].custom.format{'.grammar' if _grammar(tool) else ''}"
    for at, where in enumerate(messages):
        places |= {f"input[{at}]": where, f"input[{at}].output": f"{where}.content"}
    return places


def _effort(chat: _Body) -> tuple[str | None, str]:
    """The effort, and what says it: `reasoning_effort`, or `reasoning` as OpenRouter has it."""
    given = chat.reasoning or {}
    only(given, ("effort", "enabled"), "reasoning", API, DROPPED_OF_REASONING, has_type=False)
    named = given.get("effort")
    if chat.reasoning_effort is not None and named not in (None, chat.reasoning_effort):
        raise NoPlace("reasoning.effort", API, "a second effort")
    if chat.reasoning_effort is not None:
        return chat.reasoning_effort, "reasoning_effort"
    if given.get("enabled") is False:
        return "none", "reasoning.enabled"
    return named or ("medium" if given.get("enabled") else None), "reasoning.effort"


def _text(chat: _Body) -> dict[str, Any] | None:
    text: dict[str, Any] = {"verbosity": chat.verbosity} if chat.verbosity else {}
    form = chat.response_format
    if form and form.get("type") == "json_schema":
        only(form, ("json_schema",), "response_format", API, {})
        text["format"] = {"type": "json_schema", **(form.get("json_schema") or {})}
    elif form:
        text["format"] = form
    return text or None


def _grammar(tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
    custom = tool.get("custom")
    form = custom.get("format") if isinstance(custom, Mapping) else None
    grammar = form.get("grammar") if isinstance(form, Mapping) else None
    return grammar if isinstance(grammar, Mapping) else None


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    described = tool.get(str(kind))
    only(tool, (str(kind),), where, API, DROPPED_OF_TOOLS)
    if kind not in ("function", "custom") or not isinstance(described, Mapping):
        raise ServerError(400, f"{where} is neither a function nor a custom tool")
    # Where nothing is said, this API is not strict, while Responses is.
    flat = {"type": kind, **({"strict": False} if kind == "function" else {}), **described}
    if kind == "custom" and (grammar := _grammar(tool)):
        only(flat["format"], ("grammar",), f"{where}.custom.format", API, {})
        flat["format"] = {"type": "grammar", **grammar}
    return flat


def _tool_choice(choice: Any, where: str = "tool_choice") -> Any:
    """A choice of tools, or one of the tools that it allows."""
    if not isinstance(choice, Mapping):
        return choice
    kind = str(choice.get("type"))
    named = choice.get(kind)
    if not isinstance(named, Mapping):
        return choice
    only(choice, (kind,), where, API, {})
    if kind != "allowed_tools":
        only(named, ("name",), f"{where}.{kind}", API, {}, has_type=False)
        return {"type": kind, **named}
    only(named, ("mode", "tools"), f"{where}.{kind}", API, {}, has_type=False)
    tools = [_tool_choice(tool, f"{where}.{kind}.tools[{at}]") for at, tool in enumerate(named.get("tools") or ())]
    return {"type": kind, **named, "tools": tools}


def _items(messages: list[_Message]) -> Iterator[tuple[str, Item]]:
    """The items, each with the place of its message."""
    custom: set[str] = set()
    for at, entry in enumerate(messages):
        where = f"messages[{at}]"
        only(_given(entry), SAID.get(entry.role, ("role", "content")), where, API, has_type=False)
        match entry.role:
            case "assistant":
                custom |= {call.id for call in entry.tool_calls or () if call.custom is not None}
                yield from ((where, item) for item in _assistant(entry, where))
            case "tool":
                yield where, _tool_output(entry, custom, where)
            case role:
                yield where, {"type": "message", "role": role, "content": _content(entry.content, where)}


SAID = {
    "assistant": ("role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls"),
    "tool": ("role", "content", "tool_call_id", "name", "tool_name"),
}
"""What is read of each role's messages. The name of a tool's message says again what its call says."""


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
            only(image, ("url", "detail"), f"{where}.image_url", API, {}, has_type=False)
            return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
        case {"type": "image_url", "image_url": str(url)}:
            only(part, ("image_url",), where, API)
            return {"type": "input_image", "image_url": url, "detail": "auto"}
    return part


def _assistant(entry: _Message, where: str) -> Iterator[Item]:
    thoughts = dict.fromkeys(filter(None, (entry.reasoning_content, entry.reasoning)))
    if thoughts:
        yield reasoning("\n".join(thoughts))
    text = _spoken(entry.content, where)
    if text or not (thoughts or entry.refusal or entry.tool_calls):
        yield message("assistant", text)
    if entry.refusal:
        yield {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": entry.refusal}]}
    for at, call in enumerate(entry.tool_calls or ()):
        yield _call(call, f"{where}.tool_calls[{at}]")


def _spoken(content: Parts, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        kind = part.get("type")
        if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
            raise NoPlace(f"{where}.content[{at}]", API, f"an assistant's part of type `{kind}`")
        only(part, (kind,), f"{where}.content[{at}]", API)
    return "".join(part[part["type"]] for part in content)


def _call(call: _ToolCall, where: str) -> Item:
    only(_given(call), ("id", "call_id", call.type), where, API)
    given = call.custom if call.type == "custom" else call.function
    if given is None:
        raise ServerError(400, f"{where}: the tool call {json.dumps(call.id)} has no `{call.type}`")
    only(given.model_extra or {}, ("call_id",), f"{where}.{call.type}", API, has_type=False)
    if isinstance(given, _Custom):
        return {"type": "custom_tool_call", "call_id": call.id, "name": given.name, "input": given.input}
    return function_call(given.name, given.arguments, call.id)


def _tool_output(entry: _Message, custom: set[str], where: str) -> Item:
    if entry.tool_call_id is None:
        raise ServerError(400, f"{where} has no `tool_call_id`")
    kind = "custom_tool_call_output" if entry.tool_call_id in custom else "function_call_output"
    return {"type": kind, "call_id": entry.tool_call_id, "output": _content(entry.content, where)}
