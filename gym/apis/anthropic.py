"""Responses over an Anthropic Messages upstream: the request there, the answer back.

Pure functions. Protocol: Anthropic API reference, Messages, version 2023-06-01. Thinking blocks must come back to the
API with their signature, so it travels in `encrypted_content` of the reasoning item; reasoning of other origin has
none and is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from gym.apis.carry import (
    SPOKEN_PARTS,
    TEXT_PARTS,
    FunctionTool,
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
)
from gym.failures import EpisodeFailure
from gym.servers.base import describe

API = "Anthropic Messages"
CARRIED = frozenset({"parallel_tool_calls", "reasoning.effort", "text.format"})
Block = dict[str, Any]

STOP_REASONS = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
}
"""Stop reasons that make a response incomplete, and why it is; with any other it is complete."""

EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
CHOICES = {"auto": "auto", "none": "none", "required": "any", "function": "tool"}
THINKING = "anthropic-thinking:"
REDACTED = "anthropic-redacted:"


def to_anthropic(request: ResponsesRequest) -> dict[str, Any]:
    """The body of `POST /v1/messages`; the API demands that `max_output_tokens` is set.

    Raises:
        ServerError: 400 for a field, tool or item that cannot be carried.
    """
    fields = carried(request, API, CARRIED)
    if (form := fields.get("text.format")) is not None and form != {"type": "text"}:
        raise cannot(f"`text.format: {form}`", API)
    system, messages = _conversation(request)
    body = {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "system": system or None,
        "messages": messages,
        "tools": [_tool(tool) for tool in function_tools(request, API)] or None,
        "tool_choice": _tool_choice(request, fields.get("parallel_tool_calls")),
        "temperature": request.temperature,
        "top_p": request.top_p,
        **_thinking(fields.get("reasoning.effort")),
    }
    return {name: value for name, value in body.items() if value is not None}


def _thinking(effort: str | None) -> dict[str, Any]:
    if effort is None:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if effort not in EFFORTS:
        raise cannot(f"`reasoning.effort: {effort}`", API)
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": EFFORTS[effort]}}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    # `strict` is dropped on purpose: only some models take it, and every verifier must cope with bad arguments.
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "input_schema": tool.parameters}


def _tool_choice(request: ResponsesRequest, parallel: bool | None) -> dict[str, Any] | None:
    choice = tool_choice(request, API)
    if choice is None and (parallel is not False or not request.tools):
        return None
    mode, name = choice or ("auto", "")
    named = {"name": name} if mode == "function" else {}
    single = {"disable_parallel_tool_use": True} if parallel is False and mode != "none" else {}
    return {"type": CHOICES[mode], **named, **single}


def _conversation(request: ResponsesRequest) -> tuple[str, list[dict[str, Any]]]:
    system = [request.instructions] if request.instructions else []
    messages: list[dict[str, Any]] = []
    for role, items in runs(request, API):
        if role not in BUILDERS:
            if messages:
                raise cannot(f"a {role} message after the first turn ({items[0][0]})", API)
            system += [text_content(item, where, API) for where, item in items]
            continue
        speaker, build = BUILDERS[role]
        blocks = [block for where, item in items for block in build(item, where)]
        if messages and messages[-1]["role"] == speaker:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": speaker, "content": blocks})
    return "\n\n".join(system), messages


def _text_block(part: Mapping[str, Any], where: str) -> Block:
    return {"type": "text", "text": str(required(part, "text", where))}


def _spoken_block(part: Mapping[str, Any], where: str) -> Block:
    return {"type": "text", "text": SPOKEN_PARTS[part["type"]](part, where)}


def _image_block(part: Mapping[str, Any], where: str) -> Block:
    url = image_url(part, where, API)
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    media_type, separator, data = url.removeprefix("data:").partition(";base64,")
    if not separator:
        raise cannot(f"a data URL that is not base64 ({where})", API)
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


INPUT_PARTS = {**dict.fromkeys(TEXT_PARTS, _text_block), "input_image": _image_block}
OUTPUT_PARTS = dict.fromkeys(SPOKEN_PARTS, _spoken_block)


def _filled(blocks: Iterable[Block]) -> list[Block]:
    """Without empty texts, which the API refuses."""
    return [block for block in blocks if block.get("text") != ""]


def _user(item: Item, where: str) -> list[Block]:
    return _filled(parts(item.get("content") or "", INPUT_PARTS, f"{where}.content", API))


def _tool_result(item: Item, where: str) -> list[Block]:
    output = item.get("output") or ""
    content = output if isinstance(output, str) else _filled(parts(output, INPUT_PARTS, f"{where}.output", API))
    return [{"type": "tool_result", "tool_use_id": required(item, "call_id", where), "content": content}]


def _spoken(item: Item, where: str) -> list[Block]:
    return _filled(parts(item.get("content") or "", OUTPUT_PARTS, f"{where}.content", API))


def _tool_use(item: Item, where: str) -> list[Block]:
    name, call_id = required(item, "name", where), required(item, "call_id", where)
    return [{"type": "tool_use", "id": call_id, "name": name, "input": decoded_arguments(item.get("arguments"))}]


def _thought(item: Item, _: str) -> list[Block]:
    sealed = str(item.get("encrypted_content") or "")
    if sealed.startswith(REDACTED):
        return [{"type": "redacted_thinking", "data": sealed.removeprefix(REDACTED)}]
    if sealed.startswith(THINKING):
        text = reasoning_text(item)
        return [{"type": "thinking", "thinking": text, "signature": sealed.removeprefix(THINKING)}]
    return []


MODEL_ITEMS = {"message": _spoken, "function_call": _tool_use, "reasoning": _thought}


def _model_item(item: Item, where: str) -> list[Block]:
    return MODEL_ITEMS[kind_of(item)](item, where)


BUILDERS: dict[str, tuple[str, Callable[[Item, str], list[Block]]]] = {
    "user": ("user", _user),
    "tool": ("user", _tool_result),
    "assistant": ("assistant", _model_item),
}
"""The speaker of a role's turn, and what an item becomes in it. Turns of one speaker are one message."""


class _Text(BaseModel):
    type: Literal["text"]
    text: str

    def item(self) -> Item | None:
        return message("assistant", self.text) if self.text else None


class _Thinking(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""

    def item(self) -> Item:
        return reasoning(self.thinking, THINKING + self.signature if self.signature else None)


class _Redacted(BaseModel):
    type: Literal["redacted_thinking"]
    data: str

    def item(self) -> Item:
        return reasoning("", REDACTED + self.data)


class _ToolUse(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]

    def item(self) -> Item:
        return function_call(self.name, self.input, self.id)


class _Usage(BaseModel):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Answer(BaseModel):
    model: str | None = None
    content: list[Annotated[_Text | _Thinking | _Redacted | _ToolUse, Field(discriminator="type")]]
    stop_reason: str | None = None
    usage: _Usage | None = None


def from_anthropic(answer: Mapping[str, Any], model: str) -> ResponsesResponse:
    """The response that an answer of the Messages API is; `model` is its name where the upstream tells none.

    Raises:
        EpisodeFailure: `malformed_answer`: the answer is no message, or has a block of an unknown type.
    """
    try:
        typed = _Answer.model_validate(answer)
    except ValidationError as error:
        raise EpisodeFailure("malformed_answer", f"the answer is no message: {describe(error)}") from error
    reason = STOP_REASONS.get(typed.stop_reason or "")
    return ResponsesResponse(
        model=typed.model or model,
        status="incomplete" if reason else "completed",
        incomplete_details={"reason": reason} if reason else None,
        output=[item for block in typed.content if (item := block.item()) is not None],
        usage=_usage(typed.usage),
    )


def _usage(usage: _Usage | None) -> Usage | None:
    """The API counts tokens read from and written to its cache apart; a Responses input has all of them."""
    if usage is None:
        return None
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    counts = {"cached_tokens": read, "cache_creation_tokens": written}
    details = {name: count for name, count in counts.items() if count is not None}
    input_tokens = usage.input_tokens + (read or 0) + (written or 0)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=input_tokens + usage.output_tokens,
        input_tokens_details=details or None,
    )
