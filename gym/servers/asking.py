"""Asking again where a connection broke: for requests that get the answer of the first when they are repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gym.failures import EpisodeFailure
from gym.servers.base import ServerError

ASKED = 3
"""How often a server is asked for what it has kept, when the connection breaks."""

ResultT = TypeVar("ResultT")


async def persistently(ask: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """The answer to a request that may be made again: what a server did is not lost with a connection.

    Raises:
        EpisodeFailure: Whatever the answer is; `server_unreachable` where none came, also from a server that has
            started again and knows nothing of the session.
        ServerError: As the server refuses the request.
    """
    lost: EpisodeFailure | None = None
    for _ in range(ASKED):
        try:
            return await ask()
        except EpisodeFailure as failure:
            if failure.kind != "server_unreachable":
                raise
            lost = lost or failure
        except ServerError as error:
            if lost is None or error.status != 409:
                raise
            break
    assert lost is not None
    raise lost
