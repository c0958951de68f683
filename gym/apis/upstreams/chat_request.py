"""A Responses request as the body of `POST /chat/completions`.

Pure functions. Protocol: OpenAI API reference, Chat Completions; `reasoning_content` and `reasoning` are what vLLM,
SGLang, llama.cpp, Ollama and OpenRouter add to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gym.apis.carry import (
    TEXT_PARTS,
    FunctionTool,
    Placed,
    carried,
    decoded_arguments,
    function_tools,
    image_url,
    kind_of,
    parts,
    reasoning_text,
    required,
    runs,
    text_content,
    tool_choice,
)
from gym.apis.fields import NoPlace, only, told
from gym.apis.responses import Item, ResponsesRequest

API = "Chat Completions"
AS_THEY_ARE = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "min_p",
        "parallel_tool_calls",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "top_k",
    }
)
CARRIED = AS_THEY_ARE | {"reasoning.effort", "text.format", "text.verbosity"}
Message = dict[str, Any]
ReasoningField = Literal["reasoning_content", "reasoning", "both"]
LimitField = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """Where upstreams differ.

    Attributes:
        output_limit_field: The field that bounds the output tokens.
        reasoning_field: The message field that carries earlier reasoning back; None: it is not sent.
        replace_developer_role_with_system: For engines whose templates know no developer role.
    """

    output_limit_field: LimitField = "max_tokens"
    reasoning_field: ReasoningField | None = None
    replace_developer_role_with_system: bool = False


def to_chat(request: ResponsesRequest, dialect: ChatDialect) -> dict[str, Any]:
    """The body of `POST /chat/completions`, of a request whose tools are functions.

    Raises:
        ServerError: 400 for a field, tool or item that cannot be carried.
    """
    with told(API, request.clients_places):
        return _body(request, dialect)


def _body(request: ResponsesRequest, dialect: ChatDialect) -> dict[str, Any]:
    fields = carried(request, API, CARRIED)
    tools = [_tool(tool) for tool in function_tools(request, API)]
    if not tools:
        fields.pop("parallel_tool_calls", None)
    body = {
        "model": request.model,
        "messages": _messages(request, dialect),
        "tools": tools or None,
        "tool_choice": _tool_choice(request),
        "temperature": request.temperature,
        "top_p": request.top_p,
        dialect.output_limit_field: request.max_output_tokens,
        "reasoning_effort": fields.get("reasoning.effort"),
        "response_format": _response_format(fields.get("text.format")),
        "verbosity": fields.get("text.verbosity"),
        **{name: fields[name] for name in fields.keys() & AS_THEY_ARE},
    }
    return {name: value for name, value in body.items() if value is not None}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    described = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": described | ({"strict": True} if tool.strict else {})}


def _tool_choice(request: ResponsesRequest) -> Any:
    choice = tool_choice(request, API)
    if choice is None:
        return None
    mode, name = choice
    return {"type": "function", "function": {"name": name}} if mode == "function" else mode


def _response_format(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    kind = (given or {}).get("type")
    if given is None or kind == "json_schema":
        schema = {key: value for key, value in (given or {}).items() if key != "type" and value is not None}
        return {"type": "json_schema", "json_schema": schema} if given else None
    if kind not in ("text", "json_object"):
        raise NoPlace("text.format.type", API, value=kind)
    only(given, (), "text.format", API, {})
    return {"type": "json_object"} if kind == "json_object" else None


def _messages(request: ResponsesRequest, dialect: ChatDialect) -> list[Message]:
    messages = [{"role": "system", "content": request.instructions}] if request.instructions else []
    for role, items in runs(request, API):
        messages += BUILDERS[role](items, dialect)
    return one_head(messages)


def one_head(messages: list[Message]) -> list[Message]:
    """The messages with the system messages at the head as one: many chat templates take no more.

    One that has more than a text, such as a name, would lose that: then they stay as they are.
    """
    head = next((at for at, entry in enumerate(messages) if entry["role"] != "system"), len(messages))
    if head < 2 or not all(_is_text_alone(entry) for entry in messages[:head]):
        return messages
    text = "\n\n".join(entry["content"] for entry in messages[:head])
    return [{"role": "system", "content": text}, *messages[head:]]


def _is_text_alone(entry: Message) -> bool:
    return entry.keys() == {"role", "content"} and isinstance(entry["content"], str)


def _system(items: list[Placed], _: ChatDialect) -> Iterable[Message]:
    return [{"role": "system", "content": text_content(item, where, API)} for where, item in items]


def _developer(items: list[Placed], dialect: ChatDialect) -> Iterable[Message]:
    if dialect.replace_developer_role_with_system:
        return _system(items, dialect)
    return [{"role": "developer", "content": text_content(item, where, API)} for where, item in items]


def _user(items: list[Placed], _: ChatDialect) -> Iterable[Message]:
    return [{"role": "user", "content": _user_content(item, where)} for where, item in items]


def _user_content(item: Item, where: str) -> str | list[dict[str, Any]]:
    content = parts(item.get("content") or "", PARTS, f"{where}.content", API)
    if len(content) == 1 and content[0]["type"] == "text":
        return str(content[0]["text"])
    return content


def _text_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"type": "text", "text": str(required(part, "text", where))}


def _image_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    image = {"url": image_url(part, where, API), "detail": part.get("detail")}
    return {"type": "image_url", "image_url": {key: value for key, value in image.items() if value is not None}}


PARTS = {**dict.fromkeys(TEXT_PARTS, _text_part), "input_image": _image_part}


def _tool_outputs(items: list[Placed], _: ChatDialect) -> Iterable[Message]:
    """The outputs, and behind them their images as a user's message: a tool message takes only text."""
    images: list[dict[str, Any]] = []
    for where, item in items:
        call_id = required(item, "call_id", where)
        content = parts(item.get("output") or "", PARTS, f"{where}.output", API)
        text = "\n".join(part["text"] for part in content if part["type"] == "text")
        shown = [part for part in content if part["type"] != "text"]
        if shown:
            images += [{"type": "text", "text": f"Images of the tool call {call_id}:"}, *shown]
        yield {"role": "tool", "tool_call_id": call_id, "content": text or ("(an image, shown below)" if shown else "")}
    if images:
        yield {"role": "user", "content": images}


def _assistant(items: list[Placed], dialect: ChatDialect) -> Iterable[Message]:
    """One message of a whole model turn: Chat Completions has one place for text, one for calls, one for reasoning."""
    by_kind: dict[str, list[Placed]] = {"message": [], "function_call": [], "reasoning": []}
    for where, item in items:
        by_kind[kind_of(item)].append((where, item))
    text = "\n".join(text_content(item, where, API) for where, item in by_kind["message"])
    calls = [_call(item, where) for where, item in by_kind["function_call"]]
    further: Message = {"tool_calls": calls} if calls else {}
    thoughts = "\n".join(reasoning_text(item) for _, item in by_kind["reasoning"])
    if thoughts and dialect.reasoning_field:
        further |= dict.fromkeys(REASONING_FIELDS[dialect.reasoning_field], thoughts)
    if not (by_kind["message"] or further):
        return []
    return [{"role": "assistant", "content": text or (None if further else ""), **further}]


REASONING_FIELDS: dict[ReasoningField, tuple[str, ...]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
}


def _call(item: Item, where: str) -> dict[str, Any]:
    raw = item.get("arguments")
    arguments = raw if isinstance(raw, str) and decoded_arguments(raw) else json.dumps(decoded_arguments(raw))
    function = {"name": required(item, "name", where), "arguments": arguments}
    return {"id": required(item, "call_id", where), "type": "function", "function": function}


BUILDERS: dict[str, Callable[[list[Placed], ChatDialect], Iterable[Message]]] = {
    "system": _system,
    "developer": _developer,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool_outputs,
}
