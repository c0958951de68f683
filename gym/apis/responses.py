"""The OpenAI Responses shapes that travel between agents and model servers.

Items stay plain dictionaries: harnesses send item types that no schema lists yet, and nothing may be dropped on the
way. Only the envelope is typed. Protocol: OpenAI API reference, Responses.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

Item = dict[str, Any]
"""One Responses item: a message, reasoning, function_call, function_call_output, ..."""


def new_id(prefix: str) -> str:
    """A new id, such as `resp_3f2a...`."""
    return f"{prefix}_{uuid.uuid4().hex}"


class Usage(BaseModel):
    """Tokens of one response, or of a whole rollout. Counts are tokens; absent details are unknown, not 0."""

    model_config = ConfigDict(extra="allow")

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    input_tokens_details: dict[str, Any] | None = None
    output_tokens_details: dict[str, Any] | None = None

    def plus(self, other: Usage | None) -> Usage:
        """The sum of two usages; a detail that only one of them knows counts as it is."""
        if other is None:
            return self
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            input_tokens_details=_add(self.input_tokens_details, other.input_tokens_details),
            output_tokens_details=_add(self.output_tokens_details, other.output_tokens_details),
        )


def _add(left: dict[str, Any] | None, right: dict[str, Any] | None) -> dict[str, Any] | None:
    if left is None or right is None:
        return left or right
    return {
        key: left.get(key, 0) + right.get(key, 0)
        for key in left | right
        if isinstance(left.get(key, 0), int) and isinstance(right.get(key, 0), int)
    }


class ResponsesRequest(BaseModel):
    """The body of `POST /v1/responses`. Fields that are not listed are kept and passed on."""

    model_config = ConfigDict(extra="allow")

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: Any = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    stream: bool = False
    _places: Callable[[], Mapping[str, str]] = PrivateAttr(default=dict)

    def clients_places(self) -> Mapping[str, str]:
        """What the client calls a place, such as `messages[2]` for `input[3]`, where that is another name."""
        return self._places()

    def placed(self, places: Callable[[], Mapping[str, str]]) -> Self:
        """The request with the client's names of its places, which are only made where one is told."""
        placed = self.model_copy()
        placed._places = places
        return placed

    def items(self) -> list[Item]:
        """The input as a list of items: a text is one user message."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input


class ResponsesResponse(BaseModel):
    """The answer of `POST /v1/responses`."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(default_factory=lambda: new_id("resp"))
    object: Literal["response"] = "response"
    created_at: float = Field(default_factory=lambda: float(int(time.time())), description="Unix time, whole seconds.")
    model: str = ""
    status: str = "completed"
    output: list[Item] = Field(default_factory=list)
    usage: Usage | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    def model_post_init(self, _context: Any, /) -> None:
        """Makes the envelope travel even where only what was set is sent."""
        self.model_fields_set.update(("id", "object", "created_at", "status", "output"))

    @property
    def output_text(self) -> str:
        """The text of all assistant messages, joined by newlines."""
        return "\n".join(text for item in self.output if item.get("role") == "assistant" for text in texts_of(item))


def texts_of(item: Item) -> Iterable[str]:
    """The text parts of a message item, input or output, whatever form its content has."""
    content = item.get("content")
    if isinstance(content, str):
        return [content]
    return [str(part["text"]) for part in content or [] if isinstance(part, dict) and part.get("text") is not None]


def message(role: str, text: str) -> Item:
    """A message item: `input_text` for what goes in, `output_text` for the assistant."""
    if role != "assistant":
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
    return _assistant_message({"type": "output_text", "text": text, "annotations": []})


def refusal(text: str) -> Item:
    """An assistant message by which the model declines."""
    return _assistant_message({"type": "refusal", "refusal": text})


def _assistant_message(part: dict[str, Any]) -> Item:
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": [part]}


def reasoning(text: str, encrypted_content: str | None = None) -> Item:
    """A reasoning item; `encrypted_content` is what the provider wants back unchanged."""
    item: Item = {"type": "reasoning", "id": new_id("rs"), "summary": []}
    if text:
        item["content"] = [{"type": "reasoning_text", "text": text}]
    return item if encrypted_content is None else {**item, "encrypted_content": encrypted_content}


def function_call(name: str, arguments: dict[str, Any] | str, call_id: str | None = None) -> Item:
    """A function call item; `arguments` is a mapping or the raw JSON text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call_id = call_id or f"call_{uuid.uuid4().hex[:16]}"
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text, "status": "completed"}


def function_call_output(call_id: str, output: str) -> Item:
    """The result of a function call, as the model gets it back."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}
