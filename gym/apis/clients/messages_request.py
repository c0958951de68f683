"""A client's Anthropic Messages request in neutral form.

Thinking comes back with a signature. One that our own answers gave (`gym.apis.clients.messages_answer`) leads back to
what the upstream had sealed, or says that nothing was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.apis.carry import neutral
from gym.apis.clients.seals import unsealed
from gym.apis.fields import cannot, only
from gym.apis.responses import Item, ResponsesRequest, function_call, message, reasoning
from gym.apis.upstreams.messages_request import REDACTED
from gym.servers.base import ServerError, describe

API = "another API than Anthropic Messages"
BILLING = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code adds for Anthropic alone; it changes with each request."""

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
BUDGETS = ((4096, "low"), (16384, "medium"))
"""Thinking budgets in tokens up to which an effort is meant; a larger one means `high`."""

FAILED = "The tool call failed:"
"""Begins the result of a call that failed: other APIs have no field for that."""

Blocks = str | list[dict[str, Any]]


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Literal["user", "assistant", "system"]
    content: Blocks


class _Body(BaseModel):
    """The fields that have another name or shape than in a Responses request; the others are kept."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[_Message] = Field(min_length=1)
    system: Blocks | None = None
    max_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    stream: bool | None = False


def from_messages(body: Mapping[str, Any]) -> ResponsesRequest:
    """The neutral form of a body of `POST /v1/messages`.

    Raises:
        ServerError: 400 for a body that is no such request.
    """
    try:
        given = _Body.model_validate(body)
    except ValidationError as error:
        raise ServerError(400, describe(error)) from error
    choice, parallel = _tool_choice(given.tool_choice)
    effort = _effort(given)
    form = (given.output_config or {}).get("format")
    fields = {
        "model": given.model,
        "instructions": _system(given.system),
        "input": list(_items(given.messages)),
        "max_output_tokens": given.max_tokens,
        "tools": [_tool(tool, f"tools[{at}]") for at, tool in enumerate(given.tools or ())] or None,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "stop": given.stop_sequences or None,
        "reasoning": {"effort": effort} if effort else None,
        "text": {"format": {"name": "answer", **form}} if form else None,
    }
    return neutral({**(given.model_extra or {}), **fields})


def _system(system: Blocks | None) -> str | None:
    if system is None or isinstance(system, str):
        return system or None
    parts = [_part({"type": "text", **block}, f"system[{at}]") for at, block in enumerate(system)]
    if odd := next((part for part in parts if part["type"] != "input_text"), None):
        raise cannot(f"a part of type `{odd['type']}` in a system prompt", API)
    texts = [part["text"] for part in parts]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING)) or None


def _effort(given: _Body) -> str | None:
    """The effort that the client names; else the one that its thinking budget means."""
    if unknown := [name for name in given.output_config or {} if name not in ("effort", "format")]:
        raise cannot(f"`output_config.{unknown[0]}`", API)
    thinking = given.thinking or {}
    if thinking.get("type") == "disabled":
        return None
    if named := (given.output_config or {}).get("effort"):
        return str(named)
    if (budget := thinking.get("budget_tokens")) is None:
        return None
    return next((effort for most, effort in BUDGETS if budget <= most), "high")


def _tool_choice(choice: Mapping[str, Any] | None) -> tuple[Any, bool | None]:
    if choice is None:
        return None, None
    parallel = False if choice.get("disable_parallel_tool_use") else None
    if choice.get("type") == "tool":
        return {"type": "function", "name": choice.get("name")}, parallel
    if choice.get("type") not in CHOICES:
        raise ServerError(400, f"`tool_choice.type: {choice.get('type')}` is unknown")
    return CHOICES[choice["type"]], parallel


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise cannot(f"a tool of type `{tool['type']}` ({where})", API)
    more = {key: value for key, value in tool.items() if key not in ("type", "input_schema")}
    return {"type": "function", "strict": False, **more, "parameters": tool.get("input_schema")}


def _items(messages: list[_Message]) -> Iterator[Item]:
    for at, entry in enumerate(messages):
        blocks = [{"type": "text", "text": entry.content}] if isinstance(entry.content, str) else entry.content
        only(entry.model_extra or {}, (), f"messages[{at}]", API)
        where = f"messages[{at}].content"
        if entry.role == "assistant":
            for place, block in enumerate(blocks):
                yield _said(block, f"{where}[{place}]")
        else:
            yield from _heard(entry.role, blocks, where)


def _said(block: Mapping[str, Any], where: str) -> Item:
    match block:
        case {"type": "text", "text": str(text)}:
            only(block, ("text",), where, API)
            return message("assistant", text)
        case {"type": "thinking", "thinking": str(text)}:
            return unsealed(text, str(block.get("signature") or ""))
        case {"type": "redacted_thinking", "data": str(data)}:
            return reasoning("", REDACTED + data)
        case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(given)}:
            only(block, ("id", "name", "input"), where, API)
            return function_call(name, given, call_id)
    raise cannot(f"an assistant's block of type `{block.get('type')}` ({where})", API)


def _heard(role: str, blocks: list[dict[str, Any]], where: str) -> Iterator[Item]:
    """Tool results are items of their own; what else a message has is one message, in its order around them."""
    parts: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts.append(_part(block, f"{where}[{place}]"))
            continue
        if parts:
            yield {"type": "message", "role": role, "content": parts}
            parts = []
        yield _tool_output(block, f"{where}[{place}]")
    if parts:
        yield {"type": "message", "role": role, "content": parts}


def _tool_output(block: Mapping[str, Any], where: str) -> Item:
    only(block, ("tool_use_id", "content", "is_error"), where, API)
    content = block.get("content") or ""
    if not isinstance(content, str):
        content = [_part(part, f"{where}.content[{place}]") for place, part in enumerate(content)]
    if block.get("is_error"):
        failed = {"type": "input_text", "text": FAILED}
        content = f"{FAILED}\n{content}" if isinstance(content, str) else [failed, *content]
    if block.get("tool_use_id") is None:
        raise ServerError(400, f"{where} has no `tool_use_id`")
    return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": content}


def _part(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = block.get("type")
    if kind in FIELDS:
        only(block, FIELDS[kind], where, API)
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}:
            return {"type": "input_image", "image_url": f"data:{media_type};base64,{data}", "detail": "auto"}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            about = [f"{name}: {block[name]}" for name in ("title", "context") if block.get(name)]
            return {"type": "input_text", "text": "\n".join([*about, text])}
        case {"type": "tool_reference", "tool_name": str(name)}:
            return {"type": "input_text", "text": f"The tool `{name}` is available."}
    raise cannot(f"a block of type `{kind}` ({where})", API)


FIELDS = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source", "title", "context"),
    "tool_reference": ("tool_name",),
}
"""What is read of each type of block."""
