"""An answer of the Anthropic Messages API, whole or streamed, as neutral events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from gym.apis.ending import BROKEN_OFF
from gym.apis.errors import ProviderFailure, failure_of_error
from gym.apis.events import Ended, Event, Flow, Started, begun, begun_call, fold
from gym.apis.responses import Item, ResponsesResponse, Usage
from gym.apis.sse import Sent, decoded
from gym.apis.upstreams.messages_request import REDACTED, THINKING
from gym.failures import EpisodeFailure
from gym.servers.base import describe

STOP_REASONS = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
}
"""Stop reasons that make a response incomplete, and why it is; with any other it is complete."""


class _Text(BaseModel):
    type: Literal["text"]
    text: str


class _Thinking(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class _Redacted(BaseModel):
    type: Literal["redacted_thinking"]
    data: str


class _ToolUse(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


_Block = Annotated[_Text | _Thinking | _Redacted | _ToolUse, Field(discriminator="type")]


class _Delta(BaseModel):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""


class _Usage(BaseModel):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: dict[str, Any] | None = None


class _Head(BaseModel):
    id: str = ""
    model: str = ""
    usage: _Usage | None = None


class _End(BaseModel):
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | None = None


class _Whole(_Head, _End):
    content: list[_Block]


class _Event(BaseModel):
    """One event of a stream; which fields it has follows from its type."""

    type: str
    index: int = 0
    message: _Head | None = None
    content_block: _Block | None = None
    delta: dict[str, Any] | None = None
    usage: _Usage | None = None


@dataclass(slots=True)
class _Open:
    """A block in the making: its item's number, or None where nothing has begun; what its end adds to the item."""

    block: _Text | _Thinking | _Redacted | _ToolUse
    number: int | None = None
    signature: str = ""
    has_arguments: bool = False


@dataclass
class MessagesDecoder:
    """Reads one answer. `model` is the model's name where the upstream tells none."""

    model: str
    _flow: Flow = field(default_factory=Flow)
    _blocks: dict[int, _Open] = field(default_factory=dict)
    _usage: _Usage = field(default_factory=_Usage)
    _end: _End = field(default_factory=_End)
    _ended: bool = False

    def whole(self, answer: Mapping[str, Any]) -> ResponsesResponse:
        """The response that a message is."""
        try:
            typed = _Whole.model_validate(answer)
        except ValidationError as error:
            raise EpisodeFailure("malformed_answer", f"the answer is no message: {describe(error)}") from error
        events: list[Event] = [self._started(typed)]
        for at, block in enumerate(typed.content):
            self._begin(at, block)
            self._finish(at)
        self._end = typed
        self._explain()
        return fold([*events, *self._flow.take(), self._last_event()])

    def feed(self, sent: Sent) -> list[Event]:
        """The events that are due after one event of the upstream."""
        try:
            event = _Event.model_validate(decoded(sent.data))
        except ValidationError as error:
            raise EpisodeFailure("malformed_answer", f"an event is not of a message: {describe(error)}") from error
        except ValueError as error:
            raise EpisodeFailure("malformed_answer", f"an event is no JSON: {sent.data[:200]}") from error
        match event.type:
            case "message_start":
                return [self._started(event.message or _Head())]
            case "content_block_start" if event.content_block is not None:
                self._begin(event.index, event.content_block)
            case "content_block_delta" if event.index in self._blocks:
                self._grow(self._blocks[event.index], _Delta.model_validate(event.delta))
            case "content_block_stop" if event.index in self._blocks:
                self._finish(event.index)
            case "message_delta":
                self._end = _End.model_validate(event.delta or {})
                self._count(event.usage)
            case "message_stop":
                self._ended = True
            case "error":
                raise failure_of_error(json.loads(sent.data))
        return self._flow.take()

    def end(self) -> list[Event]:
        """How the answer ended."""
        if not self._ended and self._end.stop_reason is None:
            raise ProviderFailure("provider_error", BROKEN_OFF)
        self._explain()
        return [*self._flow.take(), self._last_event()]

    def _started(self, head: _Head) -> Started:
        self._count(head.usage)
        return Started(head.id, head.model or self.model)

    def _count(self, usage: _Usage | None) -> None:
        """Counts are cumulative; an event that lacks one leaves it as it was."""
        if usage is not None:
            self._usage = self._usage.model_copy(update=usage.model_dump(exclude_none=True))

    def _begin(self, index: int, block: _Block) -> None:
        opened = self._blocks[index] = _Open(block)
        match block:
            case _Text(text=text) if text:
                self._add(opened, text)
            case _Thinking(thinking=text, signature=signature):
                opened.signature = signature
                opened.number = self._flow.open(begun("reasoning"), "reasoning")
                self._flow.add(opened.number, text)
            case _Redacted():
                opened.number = self._flow.open(begun("reasoning"), "reasoning")
            case _ToolUse(name=name, id=call_id):
                opened.number = self._flow.open(begun_call(name, call_id), "arguments")

    def _grow(self, opened: _Open, delta: _Delta) -> None:
        opened.signature += delta.signature
        opened.has_arguments = opened.has_arguments or bool(delta.partial_json)
        if text := delta.text or delta.thinking or delta.partial_json:
            self._add(opened, text)

    def _add(self, opened: _Open, text: str) -> None:
        if opened.number is None:  # an empty text block is no message
            opened.number = self._flow.open(begun("text"), "text")
        self._flow.add(opened.number, text)

    def _finish(self, index: int) -> None:
        opened = self._blocks.pop(index)
        if opened.number is None:
            return
        more: Item = {}
        match opened.block:
            case _Thinking() if opened.signature:
                more = {"encrypted_content": THINKING + opened.signature}
            case _Redacted(data=data):
                more = {"encrypted_content": REDACTED + data}
            case _ToolUse(input=given) if not opened.has_arguments:
                self._flow.add(opened.number, json.dumps(given))
        self._flow.close(opened.number, **more)

    def _explain(self) -> None:
        """Why the model declined, where the API tells it, is what it says last."""
        if text := str((self._end.stop_details or {}).get("explanation") or ""):
            number = self._flow.open(begun("refusal"), "refusal")
            self._flow.add(number, text)
            self._flow.close(number)

    def _last_event(self) -> Ended:
        incomplete = STOP_REASONS.get(self._end.stop_reason or "")
        return Ended(incomplete, _usage(self._usage), self._end.stop_sequence)


def _usage(usage: _Usage) -> Usage | None:
    """The API counts tokens read from and written to its cache apart; a Responses input has all of them."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    counts = {"cached_tokens": read, "cache_write_tokens": written}
    thought = (usage.output_tokens_details or {}).get("thinking_tokens")
    input_tokens = usage.input_tokens + (read or 0) + (written or 0)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=input_tokens + usage.output_tokens,
        input_tokens_details={name: count for name, count in counts.items() if count is not None} or None,
        output_tokens_details=None if thought is None else {"reasoning_tokens": thought},
    )
