"""The end of a loan: the owner of a sandbox takes it back before anything of it is read or judged."""

from __future__ import annotations

import logging

from gym.errors import UserError
from gym.sandbox.interface import Sandbox

log = logging.getLogger(__name__)


async def take_back(sandbox: Sandbox, *, keep_running: bool) -> None:
    """Fences a sandbox that was lent. Where its provider cannot do that, it stays lent, and the log says so.

    Args:
        keep_running: What the borrower has left running goes on: a verifier may look for it.

    Raises:
        EpisodeFailure: `sandbox_lost`, also when something could not be killed.
    """
    try:
        await sandbox.fence(keep_running=keep_running)
    except UserError as error:
        log.info("judged while it is lent: %s", error)
