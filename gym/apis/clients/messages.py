"""Anthropic Messages as clients speak it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gym.apis import sse
from gym.apis.clients.messages_answer import MessagesEncoder, to_message
from gym.apis.clients.messages_request import from_messages
from gym.apis.errors import ApiError, anthropic_error
from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.apis.upstreams.api import ApiName


class MessagesClient:
    """`POST /v1/messages`."""

    name: ClassVar[ApiName] = "messages"
    path: ClassVar[str] = "/v1/messages"

    def request(self, body: Mapping[str, Any]) -> ResponsesRequest:
        """The messages as items, the system prompt as instructions."""
        return from_messages(body)

    def answer(self, response: ResponsesResponse, body: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """A message."""
        return to_message(response)

    def encoder(self, body: Mapping[str, Any]) -> MessagesEncoder:  # noqa: ARG002
        """A stream of blocks."""
        return MessagesEncoder()

    def broken_off(self, error: ApiError, sent: bytes, body: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        """An error event."""
        return sse.encoded({"type": "error", "error": anthropic_error(error)}, "error")

    def ends(self, event: Mapping[str, Any]) -> bool:
        """The event that stops a message."""
        return event.get("type") == "message_stop"

    def error(self, error: ApiError) -> dict[str, Any]:
        """Anthropic's shape, and what Gym's own clients read."""
        return {"type": "error", "error": anthropic_error(error), **error.extra}
