"""One deadline for everything that an episode causes.

The environment server sets it; whatever is awaited below inherits it, in this process as context, in another by a
header that says how many seconds are left. An inner bound asks `bounded`, so it never outlives the outer ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

HEADER = "x-gym-deadline-seconds"
_at: ContextVar[float | None] = ContextVar("gym_deadline", default=None)


def remaining() -> float | None:
    """Seconds until the deadline, at least 0; None where there is none."""
    at = _at.get()
    return None if at is None else max(0.0, at - time.monotonic())


def bounded(seconds: float | None) -> float | None:
    """The shorter of `seconds` and what is left; None for no bound at all."""
    left = remaining()
    return left if seconds is None else seconds if left is None else min(seconds, left)


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Gives what is inside at most `seconds`, and never more than what is left outside."""
    left = bounded(seconds)
    token = _at.set(None if left is None else time.monotonic() + left)
    try:
        yield
    finally:
        _at.reset(token)


@contextmanager
def of_its_own(seconds: float | None) -> Iterator[None]:
    """Gives what is inside `seconds` whatever is left outside: cleanup has its own budget."""
    token = _at.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _at.reset(token)


def to_headers() -> dict[str, str]:
    """The deadline for another process."""
    left = remaining()
    return {} if left is None else {HEADER: f"{left:.3f}"}


def from_headers(headers: Mapping[str, str]) -> float | None:
    """Seconds that a caller gave; None where it gave none, or something unreadable."""
    try:
        seconds = float(headers[HEADER])
    except (KeyError, ValueError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
