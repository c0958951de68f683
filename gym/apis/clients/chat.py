"""Chat Completions as clients speak it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gym.apis import sse
from gym.apis.clients.chat_answer import ChatEncoder, include_usage, to_completion
from gym.apis.clients.chat_request import from_chat
from gym.apis.errors import ApiError, openai_error
from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.apis.upstreams.api import ApiName


class ChatClient:
    """`POST /v1/chat/completions`."""

    name: ClassVar[ApiName] = "chat"
    path: ClassVar[str] = "/v1/chat/completions"

    def request(self, body: Mapping[str, Any]) -> ResponsesRequest:
        """The messages as items."""
        return from_chat(body)

    def answer(self, response: ResponsesResponse, body: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """A chat completion."""
        return to_completion(response)

    def encoder(self, body: Mapping[str, Any]) -> ChatEncoder:
        """A stream of chunks."""
        return ChatEncoder(include_usage(body))

    def broken_off(self, error: ApiError, sent: bytes, body: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        """An error event, as gateways send it."""
        return sse.encoded({"error": openai_error(error)})

    def ends(self, event: Mapping[str, Any]) -> bool:
        """A chunk that says why the answer ended."""
        choices = event.get("choices")
        return isinstance(choices, list) and any(isinstance(one, dict) and one.get("finish_reason") for one in choices)

    def error(self, error: ApiError) -> dict[str, Any]:
        """OpenAI's shape, and what Gym's own clients read."""
        return {"error": openai_error(error), **error.extra}
