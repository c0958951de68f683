"""OpenAI Responses as an upstream speaks it.

Every request has the whole history, so nothing needs to be stored at the provider: a reasoning model's reasoning comes
encrypted, and goes back that way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import ValidationError

from gym.apis.carry import kind_of
from gym.apis.ending import BROKEN_OFF
from gym.apis.errors import RESPONSE_ENDS, ProviderFailure, failure_in
from gym.apis.events import Delta, Event, ItemDone, ItemStarted, Kind, Started, deltas_of, ended, unfold
from gym.apis.fields import NoPlace, is_dropped, renamed
from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse
from gym.apis.sse import Sent
from gym.apis.upstreams.api import ApiName, Decoder
from gym.apis.upstreams.messages_request import REDACTED, THINKING
from gym.failures import EpisodeFailure
from gym.servers.base import describe

API = "Responses"
ENCRYPTED = "reasoning.encrypted_content"
OF_OTHER_APIS = frozenset(
    {
        "audio",
        "betas",
        "container",
        "frequency_penalty",
        "function_call",
        "functions",
        "inference_geo",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "mcp_servers",
        "messages",
        "min_p",
        "modalities",
        "n",
        "output_config",
        "output_format",
        "prediction",
        "presence_penalty",
        "reasoning_effort",
        "repetition_penalty",
        "response_format",
        "seed",
        "speed",
        "stop",
        "stop_sequences",
        "system",
        "thinking",
        "top_k",
        "verbosity",
        "web_search_options",
    }
)
"""Fields that this API does not have. Any other that we do not know goes on: the provider may."""

NOT_SENT = frozenset({"cache_control", "context_management", "diagnostics", "stream", "stream_options"})
"""Fields of other APIs, or of the stream that the client asked for, which change nothing here."""


@dataclass(frozen=True)
class ResponsesUpstream:
    """An upstream's Responses API.

    Attributes:
        open_reasoning: Sends back reasoning that is not encrypted, which engines take and OpenAI refuses.
    """

    model: str
    open_reasoning: bool = False

    name: ClassVar[ApiName] = "responses"
    limit_fields: ClassVar[tuple[str, ...]] = ("max_output_tokens",)

    def ask(self, request: ResponsesRequest, *, stream: bool) -> tuple[dict[str, Any], Decoder]:
        """The request, made independent of what the provider stores unless it says otherwise itself.

        Raises:
            ServerError: 400 for a field that the API does not have.
        """
        for name, value in (request.model_extra or {}).items():
            if name in OF_OTHER_APIS and value is not None and not is_dropped(name, value):
                raise NoPlace(renamed(name, request.clients_places()), API, value=value)
        body = request.model_dump(exclude_none=True, exclude_unset=True, exclude=set(OF_OTHER_APIS | NOT_SENT))
        body["input"] = [item for item in request.items() if self._goes_back(item)]
        body.setdefault("store", False)
        if body.get("reasoning") and not body["store"]:
            body["include"] = [*{*body.get("include", []), ENCRYPTED}]
        return body | ({"stream": True} if stream else {}), ResponsesDecoder(self.model)

    def _goes_back(self, item: Item) -> bool:
        """Reasoning that another provider sealed stays away, and open reasoning where it is not taken."""
        if kind_of(item) != "reasoning":
            return True
        sealed = str(item.get("encrypted_content") or "")
        return not sealed.startswith((THINKING, REDACTED)) and bool(sealed or self.open_reasoning)

    def check(self, answer: Mapping[str, Any]) -> None:
        """A response has output."""
        if not isinstance(answer.get("output"), list):
            raise EpisodeFailure("malformed_answer", "the answer is no response: it has no `output`")

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """The client's body as it is."""
        return body


KINDS: dict[str, tuple[Kind, str]] = {
    "response.output_text.delta": ("text", "content_index"),
    "response.refusal.delta": ("refusal", "content_index"),
    "response.reasoning_text.delta": ("reasoning", "content_index"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index"),
    "response.function_call_arguments.delta": ("arguments", ""),
    "response.custom_tool_call_input.delta": ("input", ""),
}
"""The kind of each delta, and where its part's place is."""


@dataclass(slots=True)
class _Open:
    events: list[Event]
    grown: bool = False
    done: bool = False


@dataclass
class ResponsesDecoder:
    """Reads one answer. `model` is the model's name where the upstream tells none."""

    model: str
    _items: dict[int, _Open] = field(default_factory=dict)
    _any: bool = False
    _last: ResponsesResponse | None = None

    def whole(self, answer: Mapping[str, Any]) -> ResponsesResponse:
        """The response, with all that it has."""
        if (failure := failure_in(answer)) is not None:
            raise failure
        try:
            response = ResponsesResponse.model_validate(answer)
        except ValidationError as error:
            raise EpisodeFailure("malformed_answer", f"the answer is no response: {describe(error)}") from error
        if "output" not in answer:
            raise EpisodeFailure("malformed_answer", "the answer is no response: it has no `output`")
        return response

    def feed(self, sent: Sent) -> list[Event]:
        """The events that are due after one event of the upstream."""
        if sent.data == "[DONE]":
            return []
        try:
            return self._event(json.loads(sent.data))
        except (ValueError, KeyError, TypeError) as error:
            raise EpisodeFailure("malformed_answer", f"an event is not of a response: {sent.data[:200]}") from error

    def _event(self, event: Mapping[str, Any]) -> list[Event]:
        kind = event["type"]
        if kind in KINDS:
            self._grow(event, *KINDS[kind])
        elif kind == "response.created":
            created = event["response"]
            return [Started(str(created.get("id") or ""), str(created.get("model") or self.model))]
        elif kind == "response.output_item.added":
            self._open(event["output_index"], event["item"])
        elif kind == "response.output_item.done":
            self._close(event["output_index"], event["item"])
        elif kind in RESPONSE_ENDS:
            self._last = self.whole(event["response"])
        elif (failure := failure_in(event)) is not None:
            raise failure
        return self._take()

    def end(self) -> list[Event]:
        """How the answer ended; of one that came without items' events, all its items."""
        if self._last is None:
            raise ProviderFailure("provider_error", BROKEN_OFF)
        return [ended(self._last)] if self._any else [*unfold(self._last)][1:]

    def _open(self, index: int, item: Item) -> None:
        self._any = True
        self._items[index] = _Open([ItemStarted(item)])

    def _grow(self, event: Mapping[str, Any], kind: Kind, place: str) -> None:
        if opened := self._items.get(event["output_index"]):
            opened.grown = True
            opened.events.append(Delta(kind, event["delta"], event.get(place, 0)))

    def _close(self, index: int, item: Item) -> None:
        if index not in self._items:
            self._open(index, item)
        opened = self._items[index]
        opened.events += [*([] if opened.grown else deltas_of(item)), ItemDone(item)]
        opened.done = True

    def _take(self) -> list[Event]:
        """The events of the first open item, and of what is complete before it."""
        due: list[Event] = []
        for index, opened in list(self._items.items()):
            due += opened.events
            opened.events = []
            if not opened.done:
                break
            del self._items[index]
        return due
