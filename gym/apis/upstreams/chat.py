"""Chat Completions as an upstream speaks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gym.apis.responses import ResponsesRequest
from gym.apis.tools import flattened
from gym.apis.upstreams.api import ApiName, Decoder, restored
from gym.apis.upstreams.chat_answer import ChatDecoder
from gym.apis.upstreams.chat_request import API, ChatDialect, one_head, to_chat
from gym.failures import EpisodeFailure


@dataclass(frozen=True)
class ChatUpstream:
    """An upstream's Chat Completions.

    Attributes:
        dialect: Where upstreams differ.
        keep_token_ids: Keeps the token ids and log probabilities that the upstream gives.
    """

    model: str
    dialect: ChatDialect = field(default_factory=ChatDialect)
    keep_token_ids: bool = False

    name: ClassVar[ApiName] = "chat"

    @property
    def limit_fields(self) -> tuple[str, ...]:
        """The upstream's own field first."""
        own = self.dialect.output_limit_field
        return own, "max_tokens" if own == "max_completion_tokens" else "max_completion_tokens"

    def ask(self, request: ResponsesRequest, *, stream: bool) -> tuple[dict[str, Any], Decoder]:
        """A chat with only functions as tools. A stream is asked for its usage."""
        flat, names = flattened(request, API)
        body = to_chat(flat, self.dialect)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body, restored(ChatDecoder(self.model, self.keep_token_ids), names)

    def check(self, answer: Mapping[str, Any]) -> None:
        """A completion has a choice."""
        if not (isinstance(answer.get("choices"), list) and answer["choices"]):
            raise EpisodeFailure("malformed_answer", "the answer is no chat completion: it has no `choices`")

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """The client's chat, without the developer role where the upstream knows none."""
        if not self.dialect.replace_developer_role_with_system:
            return body
        messages = [
            {**entry, "role": "system"} if isinstance(entry, dict) and entry.get("role") == "developer" else entry
            for entry in body.get("messages") or []
        ]
        return body if messages == body.get("messages") else {**body, "messages": one_head(messages)}
