"""A client's Anthropic Messages request in neutral form.

Thinking comes back with a signature. One that our own answers gave (`gym.apis.clients.messages_answer`) leads back to
what the upstream had sealed, or says that nothing was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.apis.carry import further, neutral
from gym.apis.clients.seals import unsealed
from gym.apis.fields import DROPPED_OF_THINKING, DROPPED_OF_TOOLS, NoPlace, is_dropped, only
from gym.apis.responses import Item, ResponsesRequest, function_call, message, reasoning
from gym.apis.upstreams.messages_request import REDACTED
from gym.servers.base import ServerError, describe

API = "another API than Anthropic Messages"
NOT_OURS = frozenset({"input", "instructions", "max_output_tokens", "parallel_tool_calls", "reasoning", "stop", "text"})
"""Fields that other APIs have, and this one has not."""

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
    output_format: dict[str, Any] | None = None
    service_tier: str | None = None
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
    effort, named = _effort(given)
    form, form_named = _format(given)
    placed = list(_items(given.messages))
    fields = {
        "model": given.model,
        "instructions": _system(given.system),
        "input": [item for _, item in placed],
        "max_output_tokens": given.max_tokens,
        "tools": [_tool(tool, f"tools[{at}]") for at, tool in enumerate(given.tools or ())] or None,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "stop": given.stop_sequences or None,
        "reasoning": {"effort": effort} if effort else None,
        "service_tier": TIERS.get(given.service_tier or "", given.service_tier),
        "text": {"format": {"name": "answer", **form}} if form else None,
    }
    places = {**PLACES, "reasoning.effort": named, "text.format": form_named}
    request = neutral({**further(given.model_extra, NOT_OURS, API), **fields})
    return request.placed(lambda: places | {f"input[{at}]": where for at, (where, _) in enumerate(placed)})


PLACES = {
    "max_output_tokens": "max_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "stop": "stop_sequences",
}
"""What the API calls otherwise than a neutral request."""

TIERS = {"standard_only": "default"}


def _system(system: Blocks | None) -> str | None:
    if system is None or isinstance(system, str):
        return system or None
    parts = [_part({"type": "text", **block}, f"system[{at}]") for at, block in enumerate(system)]
    for at, part in enumerate(parts):
        if part["type"] != "input_text":
            raise NoPlace(f"system[{at}]", API, f"a part of type `{system[at].get('type')}` in a system prompt")
    texts = [part["text"] for part in parts]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING)) or None


def _effort(given: _Body) -> tuple[str | None, str]:
    """The effort that the client names, else the one that its thinking budget means; and what says it.

    Adaptive thinking without an effort is what a model does where nothing is said.
    """
    named, thinking = (given.output_config or {}).get("effort"), given.thinking or {}
    only(thinking, ("budget_tokens",), "thinking", API, DROPPED_OF_THINKING)
    budget, kind = thinking.get("budget_tokens"), thinking.get("type")
    if thinking and kind not in ("adaptive", "disabled", "enabled"):
        raise NoPlace("thinking.type", API, value=kind)
    if kind == "disabled":
        return None, "thinking"  # as where nothing is said; models that do not reason refuse the effort `none`
    if named or not isinstance(budget, int):
        return named and str(named), "output_config.effort"
    return next((effort for most, effort in BUDGETS if budget <= most), "high"), "thinking"


def _format(given: _Body) -> tuple[dict[str, Any] | None, str]:
    """The format of the output, and what says it: an earlier version of the API had it by itself."""
    config = given.output_config or {}
    only(config, ("effort", "format"), "output_config", API, {}, has_type=False)
    if config.get("format") and given.output_format:
        raise NoPlace("output_format", API, "a second format")
    if given.output_format:
        return given.output_format, "output_format"
    return config.get("format"), "output_config.format"


def _tool_choice(choice: Mapping[str, Any] | None) -> tuple[Any, bool | None]:
    if choice is None:
        return None, None
    kind = choice.get("type")
    only(choice, ("disable_parallel_tool_use", *(("name",) if kind == "tool" else ())), "tool_choice", API, {})
    parallel = False if choice.get("disable_parallel_tool_use") else None
    if kind == "tool":
        return {"type": "function", "name": choice.get("name")}, parallel
    if kind not in CHOICES:
        raise ServerError(400, f"`tool_choice.type: {kind}` is unknown")
    return CHOICES[kind], parallel


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise NoPlace(where, API, f"a tool of type `{tool['type']}`")
    if "parameters" in tool:
        raise NoPlace(f"{where}.parameters", API)
    apart = ("type", "input_schema", "input_examples")
    more = {
        name: value
        for name, value in tool.items()
        if name not in apart and not is_dropped(name, value, DROPPED_OF_TOOLS)
    }
    schema = tool.get("input_schema")
    if examples := tool.get("input_examples"):
        schema = {**(schema or {"type": "object"}), "examples": examples}
    return {"type": "function", "strict": False, **more, "parameters": schema}


def _items(messages: list[_Message]) -> Iterator[tuple[str, Item]]:
    """The items, each with its place."""
    for at, entry in enumerate(messages):
        content = entry.content or ""  # without any block it says nothing, and is a turn all the same
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        only(entry.model_extra or {}, (), f"messages[{at}]", API, has_type=False)
        where = f"messages[{at}].content"
        if entry.role == "assistant":
            for place, block in enumerate(blocks):
                yield f"{where}[{place}]", _said(block, f"{where}[{place}]")
        else:
            yield from _heard(entry.role, blocks, f"messages[{at}]")


def _said(block: Mapping[str, Any], where: str) -> Item:
    kind = block.get("type")
    only(block, SAID.get(str(kind), block.keys()), where, API)
    match block:
        case {"type": "text", "text": str(text)}:
            return message("assistant", text)
        case {"type": "thinking", "thinking": str(text)}:
            return unsealed(text, str(block.get("signature") or ""))
        case {"type": "redacted_thinking", "data": str(data)}:
            return reasoning("", REDACTED + data)
        case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(given)}:
            return function_call(name, given, call_id)
    raise NoPlace(where, API, f"an assistant's block of type `{kind}`")


SAID = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
}
"""What is read of each type of an assistant's blocks."""


def _heard(role: str, blocks: list[dict[str, Any]], where: str) -> Iterator[tuple[str, Item]]:
    """Tool results are items of their own; what else a message has is one message, in its order around them."""
    parts: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts.append(_part(block, f"{where}.content[{place}]"))
            continue
        if parts:
            yield where, {"type": "message", "role": role, "content": parts}
            parts = []
        yield f"{where}.content[{place}]", _tool_output(block, f"{where}.content[{place}]")
    if parts:
        yield where, {"type": "message", "role": role, "content": parts}


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
    if isinstance(source := block.get("source"), Mapping):
        only(source, SOURCES.get(str(source.get("type")), source.keys()), f"{where}.source", API)
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
    raise NoPlace(where, API, f"a block of type `{kind}`")


FIELDS = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source", "title", "context"),
    "tool_reference": ("tool_name",),
}
"""What is read of each type of block."""

SOURCES = {"base64": ("media_type", "data"), "url": ("url",), "text": ("media_type", "data")}
"""What is read of each type of source."""
