"""The tokens of a call, read from the answer that a client got, in whichever API it speaks.

A count that the answer does not give is None: unknown, not 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gym.apis.responses import Usage
from gym.apis.sse import Parser, decoded
from gym.apis.upstreams.api import ApiName

_TOLD = re.compile(rb'"usage"\s*:\s*\{')


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one call.

    Attributes:
        input_tokens: All of the input, what was read from or written to a cache included.
        cached_input_tokens: The part of it that was read from a cache.
        cache_write_input_tokens: The part of it that was written to a cache.
        output_tokens: All of the output, reasoning included.
        reasoning_tokens: The part of it that is reasoning.
        cost_usd: What the provider itself says that the call cost.
    """

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def total(self) -> int | None:
        """Input and output; None where one of them is unknown."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens

    @classmethod
    def of(cls, usage: Usage | None) -> Tokens:
        """The counts of a Responses usage."""
        if usage is None:
            return cls()
        read, wrote = usage.input_tokens_details or {}, usage.output_tokens_details or {}
        return cls(
            usage.input_tokens,
            _count(read.get("cached_tokens")),
            usage.output_tokens,
            _count(wrote.get("reasoning_tokens")),
            _count(read.get("cache_write_tokens")),
            _cost(usage.model_extra or {}),
        )

    def known(self) -> dict[str, int | float]:
        """The counts that are known, by name."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}


def tokens_of(api: ApiName, answer: bytes, *, stream: bool) -> Tokens:
    """The tokens that an answer tells: of a stream, by its last word on each count."""
    found: dict[str, Any] = {}
    for told in _usages(answer, stream=stream):
        found |= {name: value for name, value in told.items() if value is not None}
    return _READERS[api](found) if found else Tokens()


def _usages(answer: bytes, *, stream: bool) -> Iterator[Mapping[str, Any]]:
    if _TOLD.search(answer) is None:
        return
    lines = (line[5:] for line in answer.splitlines() if line.startswith(b"data:") and _TOLD.search(line))
    for text in lines if stream else (answer,):
        said = _decoded(text)
        for holder in (said, said.get("response"), said.get("message")) if isinstance(said, dict) else ():
            if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                yield holder["usage"]


def _of_responses(usage: Mapping[str, Any]) -> Tokens:
    read, wrote = _mapping(usage.get("input_tokens_details")), _mapping(usage.get("output_tokens_details"))
    return Tokens(
        _count(usage.get("input_tokens")),
        _count(read.get("cached_tokens")),
        _count(usage.get("output_tokens")),
        _count(wrote.get("reasoning_tokens")),
        _count(read.get("cache_write_tokens")),
        _cost(usage),
    )


def _of_chat(usage: Mapping[str, Any]) -> Tokens:
    read, wrote = _mapping(usage.get("prompt_tokens_details")), _mapping(usage.get("completion_tokens_details"))
    return Tokens(
        _count(usage.get("prompt_tokens")),
        _count(read.get("cached_tokens")),
        _count(usage.get("completion_tokens")),
        _count(wrote.get("reasoning_tokens")),
        _count(read.get("cache_write_tokens")),
        _cost(usage),
    )


def _of_messages(usage: Mapping[str, Any]) -> Tokens:
    """The API counts what was read from and written to its cache apart."""
    own, read = _count(usage.get("input_tokens")), _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    thought = _mapping(usage.get("output_tokens_details")).get("thinking_tokens")
    return Tokens(
        None if own is None else own + (read or 0) + (written or 0),
        read,
        _count(usage.get("output_tokens")),
        _count(thought),
        written,
        _cost(usage),
    )


_READERS = {"responses": _of_responses, "chat": _of_chat, "messages": _of_messages}


def _cost(usage: Mapping[str, Any]) -> float | None:
    """What the provider says that a call cost. OpenRouter's own price leaves out what a user's own key pays (BYOK)."""
    own, elsewhere = usage.get("cost"), _mapping(usage.get("cost_details")).get("upstream_inference_cost")
    charged, paid = _amount(own), _amount(elsewhere)
    if not (usage.get("is_byok") or (charged == 0 and paid)):
        return charged
    return None if charged is None or paid is None else charged + paid


def characters_in(answer: bytes, *, stream: bool) -> int:
    """The characters that a model wrote in an answer of any API; of a stream, in its deltas."""
    if not stream:
        return sum(map(_characters, _said_in(_decoded(answer), "message", "output", "content")))
    return sum(_characters(text) for sent in Parser().feed(answer) for text in _said_in(_decoded(sent.data), "delta"))


def _said_in(said: Any, of_choice: str, *more: str) -> Iterator[Any]:
    if isinstance(said, Mapping):
        yield from (said.get(name) for name in (of_choice, *more))
        choices = said.get("choices")
        yield from (_mapping(choice).get(of_choice) for choice in (choices if isinstance(choices, list) else ()))


NO_TEXTS = frozenset(
    {"annotations", "call_id", "encrypted_content", "id", "logprobs", "role", "signature", "status", "type"}
)
"""Fields of items, messages and deltas that are none of a model's words."""


def _characters(said: Any) -> int:
    if isinstance(said, Mapping):
        return sum(_characters(value) for name, value in said.items() if name not in NO_TEXTS)
    return sum(map(_characters, said)) if isinstance(said, list) else len(said) if isinstance(said, str) else 0


def _decoded(text: str | bytes) -> Any:
    try:
        return decoded(text)
    except ValueError:
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _amount(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None
