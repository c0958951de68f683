"""The sandboxes that a resources server makes for a session: of the task, and for grading it."""

from __future__ import annotations

from typing import Any

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Sandbox, SandboxSpec
from gym.servers.resources import ResourcesServer, Session


def labels_of(server: ResourcesServer[Any, Any], session: Session[Any], role: str) -> dict[str, str]:
    """Whose a sandbox is; `role` tells it from the others of the session."""
    return {"rollout": session.episode_id.key, "session": session.id, "server": server.name, "role": role}


async def created(server: ResourcesServer[Any, Any], block: str, spec: SandboxSpec) -> Sandbox:
    """A sandbox of a provider block, or the failure of the episode that asked for it.

    Raises:
        EpisodeFailure: `configuration`: the spec asks for something that the provider cannot do; `sandbox_start`.
    """
    try:
        return await server.context.sandboxes(block).create(spec)
    except UserError as error:
        raise EpisodeFailure("configuration", str(error)) from error
