"""A Responses request as the body of Anthropic's `POST /v1/messages`.

Pure functions. Protocol: Anthropic API reference, Messages, version 2023-06-01. Thinking blocks must come back to the
API with their signature, so it travels in `encrypted_content` of the reasoning item; reasoning of other origin has
none and is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gym.apis.carry import (
    SPOKEN_PARTS,
    TEXT_PARTS,
    FunctionTool,
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

API = "Anthropic Messages"
CARRIED = frozenset({"parallel_tool_calls", "reasoning.effort", "stop", "text.format", "top_k"})
Block = dict[str, Any]

EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
CHOICES = {"auto": "auto", "none": "none", "required": "any", "function": "tool"}
THINKING = "anthropic-thinking:"
REDACTED = "anthropic-redacted:"


def to_messages(request: ResponsesRequest) -> dict[str, Any]:
    """The body of `POST /v1/messages`, of a request whose tools are functions. The API demands an output limit.

    Raises:
        ServerError: 400 for a field, tool or item that cannot be carried.
    """
    with told(API, request.clients_places):
        return _body(request)


def _body(request: ResponsesRequest) -> dict[str, Any]:
    fields = carried(request, API, CARRIED)
    system, messages = _conversation(request)
    stop = fields.get("stop")
    body = {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "system": system or None,
        "messages": messages,
        "tools": [_tool(tool) for tool in function_tools(request, API)] or None,
        "tool_choice": _tool_choice(request, fields.get("parallel_tool_calls")),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": fields.get("top_k"),
        "stop_sequences": [stop] if isinstance(stop, str) else stop,
        **_thinking(fields.get("reasoning.effort")),
    }
    if (form := _output_format(fields.get("text.format"))) is not None:
        body["output_config"] = {**body.get("output_config", {}), "format": form}
    return {name: value for name, value in body.items() if value is not None}


def _thinking(effort: str | None) -> dict[str, Any]:
    if effort is None:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if effort not in EFFORTS:
        raise NoPlace("reasoning.effort", API, value=effort)
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": EFFORTS[effort]}}


def _output_format(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The format. Its name and strictness have no place, and need none: there is one format, and it always holds."""
    match given:
        case None:
            return None
        case {"type": "text"}:
            only(given, (), "text.format", API, {})
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            only(given, ("schema", "name", "strict", "description"), "text.format", API, {})
            about = [text for text in (given.get("description"), schema.get("description")) if text]
            described = {"description": "\n".join(map(str, about))} if about else {}
            return {"type": "json_schema", "schema": {**schema, **described}}
    raise NoPlace("text.format.type", API, value=given.get("type"))


def _tool(tool: FunctionTool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    strict = {"strict": True} if tool.strict else {}
    return {"name": tool.name, **described, "input_schema": tool.parameters, **strict}


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
    unsaid = ""
    for role, items in runs(request, API):
        if role in ("system", "developer") and not messages:
            system += [text_content(item, where, API) for where, item in items]
            continue
        speaker, build = BUILDERS[role]
        blocks = [block for where, item in items for block in build(item, where)]
        unsaid = "" if blocks or speaker == "assistant" else items[-1][0]
        if messages and messages[-1]["role"] == speaker:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": speaker, "content": blocks})
    if unsaid and (not messages or messages[-1]["role"] == "assistant"):
        # Left out, the model would go on with its own last message instead.
        raise NoPlace(unsaid, API, "an empty message at the end")
    for entry in messages:
        # The API wants the results of a turn's tool calls before anything else that the user says.
        entry["content"].sort(key=lambda block: block["type"] != "tool_result")
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
        raise NoPlace(where, API, "a data URL that is not base64")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


INPUT_PARTS = {**dict.fromkeys(TEXT_PARTS, _text_block), "input_image": _image_block}
OUTPUT_PARTS = dict.fromkeys(SPOKEN_PARTS, _spoken_block)


def _filled(blocks: Iterable[Block]) -> list[Block]:
    """Without empty texts, which the API refuses."""
    return [block for block in blocks if block.get("text") != ""]


def _user(item: Item, where: str) -> list[Block]:
    return _filled(parts(item.get("content") or "", INPUT_PARTS, f"{where}.content", API))


def _late_system(item: Item, where: str) -> list[Block]:
    """The API takes a system prompt only at the head; what comes later is a marked text of the user."""
    text = text_content(item, where, API)
    return [{"type": "text", "text": f"<system>\n{text}\n</system>"}] if text else []


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
    "system": ("user", _late_system),
    "developer": ("user", _late_system),
    "user": ("user", _user),
    "tool": ("user", _tool_result),
    "assistant": ("assistant", _model_item),
}
"""The speaker of a role's turn, and what an item becomes in it. Turns of one speaker are one message."""
