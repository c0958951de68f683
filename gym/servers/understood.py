"""Requests that do not have the form of their API: refused by name, wherever on the way somebody stumbles over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from gym.apis.responses import ResponsesRequest
from gym.servers.base import ServerError, one_line

GivenT = TypeVar("GivenT", dict[str, Any], ResponsesRequest)
ResultT = TypeVar("ResultT")

STUMBLES = (TypeError, AttributeError, LookupError, ValueError, RecursionError)
"""What code does that meets another form than it reads."""


def understood(work: Callable[[GivenT], ResultT], given: GivenT) -> ResultT:
    """What `work` makes of a request.

    Raises:
        ServerError: 400, with the field without which it would work, where one can be found.
    """
    try:
        return work(given)
    except STUMBLES as error:
        name = _culprit(work, given)
        what = "the request" if name is None else f"`{name}`"
        raise ServerError(400, f"{what} is malformed: {one_line(error)}") from error


def _culprit(work: Callable[[GivenT], Any], given: GivenT) -> str | None:
    """The field without which it works, else the first without which it is refused for a reason of its own."""
    refused: str | None = None
    for name, without in _without_one(given):
        try:
            work(without)
        except ServerError:
            refused = refused or name
        except STUMBLES:
            continue
        else:
            return name
    return refused


def _without_one(given: GivenT) -> Iterator[tuple[str, GivenT]]:
    if isinstance(given, ResponsesRequest):
        for name in given.model_fields_set:
            yield name, given.model_copy(update={name: _nothing(getattr(given, name))})
    else:
        for name, value in given.items():
            yield name, {**given, name: _nothing(value)}


def _nothing(value: Any) -> Any:
    return [] if isinstance(value, list) else None
