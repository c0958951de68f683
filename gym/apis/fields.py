"""Fields that an API has no place for: dropped on purpose where that changes nothing, else refused by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
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
    "output_schema": _always,
}
"""The same for the fields of a tool. A deferred tool is offered at once, like any other."""

DROPPED_OF_REASONING: Dropped = {"exclude": _one_of(False), "summary": _always}
"""The same for the fields of OpenRouter's `reasoning` in Chat Completions."""

DROPPED_OF_THINKING: Dropped = {"display": _always}
"""The same for the fields of `thinking`: whether its text is shown is no matter of what is thought."""

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


class NoPlace(ServerError):
    """Something of a request that an API has no place for: a refusal with status 400 that names it.

    Args:
        place: Where it is, such as `messages[2].name`.
        what: What is there, where its place does not say that.
        value: The value for which there is no place, where another one would have one.
    """

    def __init__(self, place: str, api: str, what: str = "", value: Any = None) -> None:
        shown = str(value) if isinstance(value, str | int | float) else ""
        named = f"{what} ({place})" if what else f"`{place}: {shown}`" if shown else f"`{place}`"
        super().__init__(400, f"{named} cannot be carried to {api}")
        self.place, self.what, self.value = place, what, value

    def told(self, api: str, places: Mapping[str, str]) -> NoPlace:
        """The same in the words of a client, which calls some places otherwise."""
        return NoPlace(renamed(self.place, places), api, self.what, self.value)


def renamed(place: str, places: Mapping[str, str]) -> str:
    """A place by the names that `places` has for it, or for the nearest place around it.

    >>> renamed("input[3].content[0]", {"input[3]": "messages[2]"})
    'messages[2].content[0]'
    """
    around = place
    while around and around not in places:
        around = around[: max(around.rfind("."), around.rfind("["), 0)]
    return places[around] + place[len(around) :] if around else place


@contextmanager
def told(api: str, places: Callable[[], Mapping[str, str]] = dict) -> Iterator[None]:
    """Lets refusals name the API that has no place, and the place as the client calls it."""
    try:
        yield
    except NoPlace as refused:
        raise refused.told(api, places()) from refused.__cause__


def is_dropped(name: str, value: Any, dropped: Dropped = DROPPED) -> bool:
    """Whether a field of that value is on the list of what is dropped on purpose."""
    return dropped.get(name, _never)(value)


def only(
    mapping: Mapping[str, Any],
    known: Collection[str],
    where: str,
    api: str,
    dropped: Dropped = DROPPED_WITHIN,
    *,
    has_type: bool = True,
) -> None:
    """Refuses what a mapping has beside the fields that are known, and `type` where it has one.

    Raises:
        NoPlace: For a field that is neither known nor dropped.
    """
    for name, value in mapping.items():
        if name in known or value in EMPTY or (has_type and name == "type"):
            continue
        if not is_dropped(name, value, dropped):
            raise NoPlace(f"{where}.{name}", api)
