"""The end of a run's sandbox providers: each is closed, whatever became of the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.launch.supervised import Event
from gym.sandbox.interface import SandboxProvider
from gym.servers.base import one_line

SHOWN_CHARACTERS = 300
log = logging.getLogger(__name__)


async def close_all(providers: Mapping[str, SandboxProvider]) -> list[Event]:
    """Closes sandbox providers, given by their blocks. Raises nothing: results that are there must still be told.

    Returns:
        For each provider that could not be closed, that its sandboxes may be left behind, and why.
    """
    outcomes = await asyncio.gather(*(one.aclose() for one in providers.values()), return_exceptions=True)
    ended = zip(providers, outcomes, strict=True)
    return [_left(block, outcome) for block, outcome in ended if isinstance(outcome, Exception)]


def _left(block: str, error: Exception) -> Event:
    if not isinstance(error, EpisodeFailure | UserError):
        log.error("the sandbox provider `%s` failed to close", block, exc_info=error)
    why = one_line(error)
    if len(why) > SHOWN_CHARACTERS:
        why = f"{why[:SHOWN_CHARACTERS]}..."
    what = f"sandboxes of `{block}` may be left behind (`gym env sweep` with the same configuration removes them)"
    return Event("left", block, f"{what}: {why}")
