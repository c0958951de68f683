"""Tries whose end a run has not seen, as when their environment server died: what they have left open is closed.

The next try does it before it begins; this is for a last one, for a run that is interrupted between two, and for one
that was killed before it could.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gym.failures import EpisodeFailure
from gym.servers.asking import persistently
from gym.servers.base import ServerError
from gym.servers.client import Client
from gym.servers.contract import CloseLostResponse, EpisodeId, Failure, RunRequest, ServerRef, Task
from gym.servers.tries import Tries

CLOSE_SECONDS = 600.0
log = logging.getLogger(__name__)


def is_lost(failure: Failure) -> bool:
    """Whether the run has lost sight of the try: its environment server did not answer."""
    return failure.failure_kind == "server_unreachable" and failure.stage is None


async def close(
    client: Client, server: ServerRef, rollout_id: str, task: Task, run: str, numbers: Sequence[int]
) -> None:
    """Closes what lost tries of a rollout have left open; what cannot be closed is logged.

    Args:
        run: The name of the run when it asked for them.
        numbers: Of the tries.
    """
    if not numbers:
        return
    request = RunRequest(episode_id=EpisodeId(rollout_id=rollout_id, attempt=max(numbers) + 1), task=task)
    headers = Tries(run, numbers).to_headers()
    try:
        answer = await persistently(
            lambda: client.post(
                server, "/close_lost", request, CloseLostResponse, headers=headers, timeout_seconds=CLOSE_SECONDS
            )
        )
        left = answer.body.cleanup_failures
    except (EpisodeFailure, ServerError, TimeoutError) as error:
        left = [str(error)]
    for line in left:
        log.warning("rollout %s: a lost try may have left something open: %s", rollout_id, line)
