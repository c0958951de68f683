"""Anthropic Messages as an upstream speaks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gym.apis.responses import ResponsesRequest
from gym.apis.tools import flattened
from gym.apis.upstreams.api import ApiName, Decoder, restored
from gym.apis.upstreams.messages_answer import MessagesDecoder
from gym.apis.upstreams.messages_request import API, to_messages
from gym.failures import EpisodeFailure


@dataclass(frozen=True)
class MessagesUpstream:
    """An upstream's Messages API."""

    model: str

    name: ClassVar[ApiName] = "messages"
    limit_fields: ClassVar[tuple[str, ...]] = ("max_tokens",)

    def ask(self, request: ResponsesRequest, *, stream: bool) -> tuple[dict[str, Any], Decoder]:
        """A conversation with only functions as tools."""
        flat, names = flattened(request, API)
        body = to_messages(flat) | ({"stream": True} if stream else {})
        return body, restored(MessagesDecoder(self.model), names)

    def check(self, answer: Mapping[str, Any]) -> None:
        """A message has content."""
        if not isinstance(answer.get("content"), list):
            raise EpisodeFailure("malformed_answer", "the answer is no message: it has no `content`")

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """The client's body as it is."""
        return body
