"""An answer of the Chat Completions API, whole or streamed, as neutral events. A whole answer is one big chunk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from gym.apis.ending import BROKEN_OFF
from gym.apis.errors import ProviderFailure, failure_in
from gym.apis.events import Ended, Event, Flow, Kind, Started, begun, begun_call, fold
from gym.apis.fields import DROPPED_WITHIN, EMPTY, is_dropped
from gym.apis.responses import ResponsesResponse, Usage, new_id
from gym.apis.sse import Sent
from gym.apis.upstreams.token_ids import TokenIds
from gym.failures import EpisodeFailure
from gym.servers.base import describe

STOP_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons that make a response incomplete, and why it is; with any other that is no failure it is complete."""


class _Function(BaseModel):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCall(BaseModel):
    index: int | None = None
    id: str | None = None
    function: _Function


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    annotations: list[dict[str, Any]] | None = None
    prompt_token_ids: list[int] | None = None
    generation_token_ids: list[int] | None = None
    generation_log_probs: list[float] | None = None


class _Choice(BaseModel):
    message: _Message | None = Field(None, validation_alias=AliasChoices("message", "delta"))
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    logprobs: Any = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None
    cost: float | None = None
    is_byok: bool | None = None
    cost_details: dict[str, Any] | None = None


class _Completion(BaseModel):
    """A chat completion, or a chunk of one: then its choices have a `delta`, and may be none."""

    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


@dataclass(slots=True)
class _Call:
    """A call whose name may still be to come. `number` is that of its item, once it has begun."""

    id: str
    name: str = ""
    held: str = ""
    number: int | None = None


@dataclass
class ChatDecoder:
    """Reads one answer.

    Attributes:
        model: The model's name where the upstream tells none.
        keep_token_ids: Puts token ids and log probabilities on the last item.
    """

    model: str
    keep_token_ids: bool = False
    _flow: Flow = field(default_factory=Flow)
    _token_ids: TokenIds = field(default_factory=TokenIds)
    _calls: list[_Call] = field(default_factory=list)
    _by_index: dict[int | None, _Call] = field(default_factory=dict)
    _speaking: tuple[Kind, int] | None = None
    _annotations: list[dict[str, Any]] = field(default_factory=list)
    _unread: list[str] = field(default_factory=list)
    _started: bool = False
    _finish_reason: str | None = None
    _stop_sequence: str | None = None
    _usage: Usage | None = None

    def whole(self, answer: Mapping[str, Any]) -> ResponsesResponse:
        """The response that a chat completion is."""
        completion = _typed(answer)
        said = completion.choices[0].message if completion.choices else None
        if said is None:
            raise EpisodeFailure("malformed_answer", "the answer is no chat completion: choices: no message")
        for at, call in enumerate(said.tool_calls or ()):
            call.index = at
        return fold([*self._take(completion), *self._last_events()])

    def feed(self, sent: Sent) -> list[Event]:
        """The events that are due after one chunk."""
        if sent.data == "[DONE]":
            return []
        try:
            chunk = json.loads(sent.data)
        except ValueError as error:
            raise EpisodeFailure("malformed_answer", f"a chunk is no JSON: {sent.data[:200]}") from error
        return self._take(_typed(chunk, sent.event))

    def end(self) -> list[Event]:
        """What remains: the items that are open, and how the answer ended."""
        if self._finish_reason is None:
            raise ProviderFailure("provider_error", BROKEN_OFF)
        return self._last_events()

    def _take(self, chunk: _Completion) -> list[Event]:
        due: list[Event] = []
        if not self._started:
            self._started = True
            due.append(Started(chunk.id or "", chunk.model or self.model))
        self._usage = _usage(chunk.usage) or self._usage
        for choice in (chunk.choices or ())[:1]:
            said = choice.message or _Message()
            self._add(said)
            self._finish_reason = choice.finish_reason or self._finish_reason
            if isinstance(choice.stop_reason, str):
                self._stop_sequence = choice.stop_reason
            if self.keep_token_ids:
                self._token_ids.add(chunk.prompt_token_ids, choice.token_ids, choice.logprobs, said)
        return due + self._flow.take()

    def _add(self, said: _Message) -> None:
        if thought := said.reasoning_content or said.reasoning:
            self._speak("reasoning", thought)
        if said.content:
            self._speak("text", said.content)
        if said.refusal:
            self._speak("refusal", said.refusal)
        for call in said.tool_calls or ():
            self._call(call)
        if said.function_call is not None:  # the one call of earlier versions of the API
            self._call(_ToolCall(index=0, function=said.function_call))
        self._annotations += said.annotations or ()
        for name, value in (said.model_extra or {}).items():
            if value not in EMPTY and not is_dropped(name, value, DROPPED_WITHIN):
                self._unread.append(name)

    def _speak(self, kind: Kind, text: str) -> None:
        if self._speaking is None or self._speaking[0] != kind:
            self._close_what_is_complete()
            self._speaking = kind, self._flow.open(begun(kind), kind)
        self._flow.add(self._speaking[1], text)

    def _call(self, given: _ToolCall) -> None:
        call = self._known(given)
        call.name = call.name or given.function.name or ""
        raw = given.function.arguments
        text = json.dumps(raw) if isinstance(raw, dict) else raw or ""
        if call.number is None and call.name:
            self._close_what_is_complete()
            call.number = self._flow.open(begun_call(call.name, call.id), "arguments")
            text, call.held = call.held + text, ""
        if call.number is None:
            call.held += text
        elif text.strip() and not self._flow.is_open(call.number):
            raise EpisodeFailure("malformed_answer", f"more arguments for the call {call.id}, which was complete")
        elif self._flow.is_open(call.number):
            self._flow.add(call.number, text)

    def _known(self, given: _ToolCall) -> _Call:
        """The call that a delta belongs to. Engines that give no index, or always the same, name each call once."""
        call = self._by_index.get(given.index)
        names_another = given.function.name and (given.index is None or given.id not in (None, "", call and call.id))
        if call is None or names_another:
            call = self._by_index[given.index] = _Call(given.id or new_id("call"))
            self._calls.append(call)
        return call

    def _close_what_is_complete(self) -> None:
        """Closes what was said so far, and calls with whole arguments; other calls may grow on beside the next."""
        if self._speaking is not None:
            self._close(self._speaking[1])
            self._speaking = None
        for number in self._flow.open_numbers():
            if _is_json(self._flow.text(number)):
                self._flow.close(number)

    def _close(self, number: int, **more: Any) -> None:
        """Completes an item; a text has the sources that were told with it."""
        if self._annotations and self._speaking == ("text", number):
            told = [{"type": given.get("type"), **(given.get("url_citation") or {})} for given in self._annotations]
            more["content"] = [{"type": "output_text", "text": self._flow.text(number), "annotations": told}]
            self._annotations = []
        self._flow.close(number, **more)

    def _last_events(self) -> list[Event]:
        for call in self._calls:
            if call.number is None:  # the model's slip: who runs its calls tells it so
                call.number = self._flow.open(begun_call("", call.id), "arguments")
                self._flow.add(call.number, call.held)
        token_ids = self._token_ids.fields()
        if token_ids and not len(self._flow):  # they need a place
            self._flow.open(begun("text"), "text")
        open_numbers = self._flow.open_numbers()
        for number in open_numbers:
            if not self._flow.text(number) and any(call.number == number for call in self._calls):
                self._flow.add(number, "{}")
            self._close(number, **(token_ids if number == open_numbers[-1] else {}))
        incomplete = STOP_REASONS.get(self._finish_reason or "")
        if self._unread and not len(self._flow) and not incomplete:
            raise EpisodeFailure("malformed_answer", f"the answer is only `{self._unread[0]}`, which cannot be carried")
        return [*self._flow.take(), Ended(incomplete, self._usage, self._stop_sequence)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _typed(answer: Any, event: str = "") -> _Completion:
    if (failure := failure_in(answer, event)) is not None:
        raise failure
    try:
        return _Completion.model_validate(answer)
    except ValidationError as error:
        raise EpisodeFailure("malformed_answer", f"the answer is no chat completion: {describe(error)}") from error


def _usage(usage: _Usage | None) -> Usage | None:
    if usage is None or usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        input_tokens_details=_told(usage.prompt_tokens_details, "cached_tokens", "cache_write_tokens"),
        output_tokens_details=_told(usage.completion_tokens_details, "reasoning_tokens"),
        **usage.model_dump(include={"cost", "is_byok", "cost_details"}, exclude_none=True),
    )


def _told(details: Mapping[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return {name: details[name] for name in names if details and details.get(name) is not None} or None
