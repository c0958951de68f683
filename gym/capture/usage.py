"""The tokens of a call, read from the answer that a client got, in whichever API it speaks.

A count that the answer does not give is None: unknown, not 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gym.apis.responses import Usage
from gym.apis.upstreams.api import ApiName

_TOLD = re.compile(rb'"usage"\s*:\s*\{')


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one call.

    Attributes:
        input_tokens: All of the input, what was read from or written to a cache included.
        cached_input_tokens: The part of it that was read from a cache.
        output_tokens: All of the output, reasoning included.
        reasoning_tokens: The part of it that is reasoning.
        cost_usd: What the provider itself says that the call cost.
    """

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
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
            _amount((usage.model_extra or {}).get("cost")),
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
        try:
            said = json.loads(text)
        except ValueError:
            continue
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
        _amount(usage.get("cost")),
    )


def _of_chat(usage: Mapping[str, Any]) -> Tokens:
    read, wrote = _mapping(usage.get("prompt_tokens_details")), _mapping(usage.get("completion_tokens_details"))
    return Tokens(
        _count(usage.get("prompt_tokens")),
        _count(read.get("cached_tokens")),
        _count(usage.get("completion_tokens")),
        _count(wrote.get("reasoning_tokens")),
        _amount(usage.get("cost")),
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
        _amount(usage.get("cost")),
    )


_READERS = {"responses": _of_responses, "chat": _of_chat, "messages": _of_messages}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _amount(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None
