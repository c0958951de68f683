"""Fields that an API has no place for: dropped on purpose where that changes nothing, else refused by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gym.servers.base import ServerError

Dropped = Mapping[str, Callable[[Any], bool]]


def _always(_: Any) -> bool:
    return True


def _never(_: Any) -> bool:
    return False


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


DROPPED: dict[str, Callable[[Any], bool]] = {
    "background": _one_of(False),
    "cache_control": _always,
    "client_metadata": _always,
    "context_management": _always,
    "diagnostics": _always,
    "frequency_penalty": _one_of(0),
    "include": lambda value: "message.output_text.logprobs" not in str(value),
    "logit_bias": _one_of({}),
    "logprobs": _one_of(False),
    "metadata": _always,
    "modalities": _one_of(["text"]),
    "n": _one_of(1),
    "presence_penalty": _one_of(0),
    "prompt_cache_key": _always,
    "prompt_cache_retention": _always,
    "reasoning.generate_summary": _always,
    "reasoning.summary": _always,
    "safety_identifier": _always,
    "service_tier": _one_of("auto", "default", "standard_only"),
    "speed": _one_of("standard"),
    "stop": _one_of([], ""),
    "store": _always,
    "stream_options": _always,
    "top_logprobs": _one_of(0),
    "truncation": _one_of("disabled"),
    "user": _always,
}
"""Fields that are dropped on purpose, each with the values for which that changes nothing in the answer.

`context_management` asks the provider to shorten the history; without it the whole history is sent.
"""

DROPPED_OF_TOOLS: dict[str, Callable[[Any], bool]] = {
    "allowed_callers": _one_of(["direct"]),
    "async": _one_of(False),
    "cache_control": _always,
    "defer_loading": _always,
    "eager_input_streaming": _always,
    "input_examples": _always,
    "output_schema": _always,
}
"""The same for the fields of a tool. A deferred tool is offered at once, like any other."""

DROPPED_WITHIN: Dropped = {
    "annotations": _always,
    "async": _one_of(False),
    "cache_control": _always,
    "caller": _one_of({"type": "direct"}),
    "citations": _one_of({"enabled": False}),
    "finish_reason": _always,
    "generation_log_probs": _always,
    "generation_token_ids": _always,
    "id": _always,
    "index": _always,
    "logprobs": _always,
    "parsed": _always,
    "parsed_arguments": _always,
    "phase": _always,
    "prompt_cache_breakpoint": _always,
    "prompt_token_ids": _always,
    "provider_specific_fields": _always,
    "response_item_id": _always,
    "status": _always,
}
"""The same for the fields of messages, items, parts, calls and results of tools: cache marks, and what earlier answers
had about themselves."""

EMPTY: tuple[Any, ...] = (None, "", [], {})


def is_dropped(name: str, value: Any) -> bool:
    """Whether a field of that value is on the list of what is dropped on purpose."""
    return DROPPED.get(name, _never)(value)


def cannot(what: str, api: str) -> ServerError:
    """The refusal of something that the API has no place for."""
    return ServerError(400, f"{what} cannot be carried to {api}")


def only(
    mapping: Mapping[str, Any], known: Collection[str], where: str, api: str, dropped: Dropped = DROPPED_WITHIN
) -> None:
    """Refuses what a mapping has beside the fields that are known, and `type`.

    Raises:
        ServerError: 400 for a field that is neither known nor dropped.
    """
    for name, value in mapping.items():
        if name in known or name == "type" or value in EMPTY:
            continue
        if not dropped.get(name, _never)(value):
            raise cannot(f"`{where}.{name}`", api)
