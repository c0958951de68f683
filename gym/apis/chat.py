"""Responses over a Chat Completions upstream: the request there, the answer back.

Pure functions. Protocol: OpenAI API reference, Chat Completions; `reasoning_content` and `reasoning` are what vLLM,
SGLang, llama.cpp, Ollama and OpenRouter add to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from gym.apis.carry import (
    TEXT_PARTS,
    FunctionTool,
    Placed,
    cannot,
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
from gym.apis.responses import (
    Item,
    ResponsesRequest,
    ResponsesResponse,
    Usage,
    function_call,
    message,
    reasoning,
    refusal,
)
from gym.failures import EpisodeFailure
from gym.servers.base import describe

API = "Chat Completions"
CARRIED = frozenset({"parallel_tool_calls", "reasoning.effort", "text.format", "text.verbosity"})
Message = dict[str, Any]
ReasoningField = Literal["reasoning_content", "reasoning", "both"]

STOP_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons that make a response incomplete, and why it is; with any other it is complete."""


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """Where upstreams differ.

    Attributes:
        output_limit_field: The field that bounds the output tokens.
        reasoning_field: The message field that carries earlier reasoning back; None: it is not sent.
        replace_developer_role_with_system: For engines whose templates know no developer role.
    """

    output_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    reasoning_field: ReasoningField | None = None
    replace_developer_role_with_system: bool = False


def to_chat(request: ResponsesRequest, dialect: ChatDialect) -> dict[str, Any]:
    """The body of `POST /chat/completions`.

    Raises:
        ServerError: 400 for a field, tool or item that cannot be carried.
    """
    fields = carried(request, API, CARRIED)
    tools = [_tool(tool) for tool in function_tools(request, API)]
    body = {
        "model": request.model,
        "messages": _messages(request, dialect),
        "tools": tools or None,
        "tool_choice": _tool_choice(request),
        "parallel_tool_calls": fields.get("parallel_tool_calls") if tools else None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        dialect.output_limit_field: request.max_output_tokens,
        "reasoning_effort": fields.get("reasoning.effort"),
        "response_format": _response_format(fields.get("text.format")),
        "verbosity": fields.get("text.verbosity"),
    }
    return {name: value for name, value in body.items() if value is not None}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function = {key: value for key, value in asdict(tool).items() if value is not None}
    return {"type": "function", "function": function}


def _tool_choice(request: ResponsesRequest) -> Any:
    choice = tool_choice(request, API)
    if choice is None:
        return None
    mode, name = choice
    return {"type": "function", "function": {"name": name}} if mode == "function" else mode


def _response_format(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    match given:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema"}:
            schema = {key: value for key, value in given.items() if key != "type" and value is not None}
            return {"type": "json_schema", "json_schema": schema}
    raise cannot(f"`text.format: {given}`", API)


def _messages(request: ResponsesRequest, dialect: ChatDialect) -> list[Message]:
    messages = [{"role": "system", "content": request.instructions}] if request.instructions else []
    for role, items in runs(request, API):
        messages += BUILDERS[role](items, dialect)
    # Many chat templates take one system message, at the head.
    while len(messages) > 1 and messages[0]["role"] == messages[1]["role"] == "system":
        second = messages.pop(1)
        messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{second['content']}"}
    return messages


def _system(items: list[Placed], _: ChatDialect) -> Iterable[Message]:
    return [{"role": "system", "content": text_content(item, where, API)} for where, item in items]


def _developer(items: list[Placed], dialect: ChatDialect) -> Iterable[Message]:
    if dialect.replace_developer_role_with_system:
        return _system(items, dialect)
    return [{"role": "developer", "content": text_content(item, where, API)} for where, item in items]


def _user(items: list[Placed], _: ChatDialect) -> Iterable[Message]:
    return [{"role": "user", "content": _user_content(item, where)} for where, item in items]


def _user_content(item: Item, where: str) -> str | list[dict[str, Any]]:
    content = parts(item.get("content") or "", USER_PARTS, f"{where}.content", API)
    if len(content) == 1 and content[0]["type"] == "text":
        return str(content[0]["text"])
    return content


def _text_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"type": "text", "text": str(required(part, "text", where))}


def _image_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    image = {"url": image_url(part, where, API), "detail": part.get("detail")}
    return {"type": "image_url", "image_url": {key: value for key, value in image.items() if value is not None}}


USER_PARTS = {**dict.fromkeys(TEXT_PARTS, _text_part), "input_image": _image_part}


def _tool_outputs(items: list[Placed], _: ChatDialect) -> Iterable[Message]:
    for where, item in items:
        text = "\n".join(parts(item.get("output") or "", TEXT_PARTS, f"{where}.output", API))
        yield {"role": "tool", "tool_call_id": required(item, "call_id", where), "content": text}


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
    return [{"role": "assistant", "content": text or None, **further}] if text or further else []


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


class _Function(BaseModel):
    name: str
    arguments: str | dict[str, Any] | None = None


class _ToolCall(BaseModel):
    id: str | None = None
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class _Completion(BaseModel):
    model: str | None = None
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


def from_chat(answer: Mapping[str, Any], model: str) -> ResponsesResponse:
    """The response that a chat completion is; `model` is its name where the upstream tells none.

    Raises:
        EpisodeFailure: `malformed_answer`: the answer is no chat completion.
    """
    try:
        completion = _Completion.model_validate(answer)
    except ValidationError as error:
        raise EpisodeFailure("malformed_answer", f"the answer is no chat completion: {describe(error)}") from error
    choice = completion.choices[0]
    reason = STOP_REASONS.get(choice.finish_reason or "")
    return ResponsesResponse(
        model=completion.model or model,
        status="incomplete" if reason else "completed",
        incomplete_details={"reason": reason} if reason else None,
        output=list(_output(choice.message)),
        usage=_usage(completion.usage),
    )


def _output(answer: _Message) -> Iterable[Item]:
    if thoughts := answer.reasoning_content or answer.reasoning:
        yield reasoning(thoughts)
    if answer.content:
        yield message("assistant", answer.content)
    if answer.refusal:
        yield refusal(answer.refusal)
    for call in answer.tool_calls or []:
        yield function_call(call.function.name, call.function.arguments or {}, call.id)


def _usage(usage: _Usage | None) -> Usage | None:
    if usage is None or usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    cached = (usage.prompt_tokens_details or {}).get("cached_tokens")
    thought = (usage.completion_tokens_details or {}).get("reasoning_tokens")
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        input_tokens_details=None if cached is None else {"cached_tokens": cached},
        output_tokens_details=None if thought is None else {"reasoning_tokens": thought},
    )
