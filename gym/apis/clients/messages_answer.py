"""A neutral answer as a message of the Anthropic Messages API, whole or streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gym.apis import sse
from gym.apis.carry import decoded_arguments, kind_of, reasoning_text, unread_part
from gym.apis.clients.seals import signature_of
from gym.apis.events import Delta, Ended, Event, ItemDone, ItemStarted, Started, deltas_of, ended
from gym.apis.responses import Item, ResponsesResponse, Usage, new_id
from gym.failures import EpisodeFailure

STOP_REASONS = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
Object = dict[str, Any]


def to_message(response: ResponsesResponse) -> Object:
    """The message that a response is."""
    called = any(kind_of(item) == "function_call" for item in response.output)
    refused = any(delta.kind == "refusal" for item in response.output for delta in deltas_of(item))
    end = ended(response)
    return {
        "id": response.id,
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": [block for item in response.output if (block := _block(item)) is not None],
        "stop_reason": stop_reason(end, called=called, refused=refused),
        "stop_sequence": end.stop_sequence,
        "usage": message_usage(end.usage),
    }


def _block(item: Item) -> Object | None:
    match kind_of(item):
        case "message":
            _check(item)
            text = "".join(delta.text for delta in deltas_of(item))
            return {"type": "text", "text": text} if text else None
        case "reasoning":
            return {"type": "thinking", "thinking": reasoning_text(item), "signature": signature_of(item)}
        case "function_call":
            given = _input(item)
            return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": given}
        case kind:
            raise _no_place(kind)


def _check(item: Item) -> None:
    if odd := unread_part(item):
        raise EpisodeFailure("malformed_answer", f"a part of type `{odd}` cannot be carried to Anthropic Messages")


def _no_place(kind: str) -> EpisodeFailure:
    return EpisodeFailure("malformed_answer", f"an item of type `{kind}` cannot be carried to Anthropic Messages")


def _input(item: Item) -> Object:
    """The arguments as an object; what a model wrote that is none stays readable, for the tool's caller to refuse."""
    raw = str(item.get("arguments") or "")
    given = decoded_arguments(raw)
    try:
        empty = raw.strip() == "" or json.loads(raw) == {}
    except (ValueError, RecursionError):
        empty = False
    return given if given or empty else {"malformed_arguments": raw}


def stop_reason(end: Ended, *, called: bool, refused: bool) -> str:
    """Why a message ended."""
    if end.incomplete:
        return STOP_REASONS.get(end.incomplete, "max_tokens")
    if called:
        return "tool_use"
    return "refusal" if refused else "stop_sequence" if end.stop_sequence is not None else "end_turn"


def message_usage(usage: Usage | None) -> Object:
    """Usage in the API's counts: cached tokens apart from the input. It demands counts: an unknown usage is zeros."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    details = usage.input_tokens_details or {}
    read, written = details.get("cached_tokens"), details.get("cache_write_tokens")
    thought = (usage.output_tokens_details or {}).get("reasoning_tokens")
    counts = {
        "input_tokens": usage.input_tokens - (read or 0) - (written or 0),
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": None if thought is None else {"thinking_tokens": thought},
    }
    return {name: count for name, count in counts.items() if count is not None}


@dataclass
class MessagesEncoder:
    """Streams one message. Each item is a block; a message item without text is none."""

    _block: int = 0
    _open: bool = False
    _called: bool = False
    _refused: bool = False
    _last_part: int = 0

    def event(self, event: Event) -> bytes:
        """The events of an event."""
        match event:
            case Started(id_, model):
                head = {"id": id_ or new_id("msg"), "type": "message", "role": "assistant", "model": model}
                rest: Object = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": message_usage(None)}
                return _sent("message_start", message={**head, **rest})
            case ItemStarted(item):
                return self._item_started(item)
            case Delta():
                return self._delta(event)
            case ItemDone(item):
                return self._item_done(item)
            case Ended():
                reason = stop_reason(event, called=self._called, refused=self._refused)
                delta = {"stop_reason": reason, "stop_sequence": event.stop_sequence}
                usage = message_usage(event.usage)
                return _sent("message_delta", delta=delta, usage=usage) + _sent("message_stop")

    def _item_started(self, item: Item) -> bytes:
        self._last_part = 0
        match kind_of(item):
            case "message":
                return b""
            case "reasoning":
                return self._begin({"type": "thinking", "thinking": "", "signature": ""})
            case "function_call":
                self._called = True
                return self._begin({"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": {}})
            case kind:
                raise _no_place(kind)

    def _begin(self, block: Object) -> bytes:
        self._open = True
        return _sent("content_block_start", index=self._block, content_block=block)

    def _grow(self, kind: str, **fields: str) -> bytes:
        return _sent("content_block_delta", index=self._block, delta={"type": kind, **fields})

    def _delta(self, delta: Delta) -> bytes:
        match delta.kind:
            case "arguments" | "input":
                return self._grow("input_json_delta", partial_json=delta.text)
            case "reasoning" | "summary":
                text = delta.text if delta.part == self._last_part else "\n" + delta.text
                self._last_part = delta.part
                return self._grow("thinking_delta", thinking=text)
        self._refused = self._refused or delta.kind == "refusal"
        begin = b"" if self._open else self._begin({"type": "text", "text": ""})
        return begin + self._grow("text_delta", text=delta.text)

    def _item_done(self, item: Item) -> bytes:
        if not self._open:
            _check(item)
            return b""
        signed = self._grow("signature_delta", signature=signature_of(item)) if kind_of(item) == "reasoning" else b""
        stop = _sent("content_block_stop", index=self._block)
        self._open = False
        self._block += 1
        return signed + stop


def _sent(kind: str, **fields: Any) -> bytes:
    return sse.encoded({"type": kind, **fields}, kind)
