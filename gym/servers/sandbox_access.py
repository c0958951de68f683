"""Where a harness runs: in the sandbox that Resources lends, or in one of the agent's own.

A lent sandbox is only left at close; one of the agent's own is stopped then, or when its setup fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Network, Sandbox, SandboxProvider
from gym.sandbox.spec_config import SandboxConfig
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession


class AgentSandboxConfig(SandboxConfig):
    """A sandbox of the agent's own. The harness in it has to reach the model server."""

    network: Network = Field("open", description="open, gym_only (the Gym servers and nothing else) or none.")


class SandboxedAgentConfig(AgentServerConfig):
    """Settings of every agent whose harness runs in a sandbox."""

    sandbox_provider: str | None = Field(
        None, description="Top-level block of the provider, for tasks whose Resources server lends no sandbox."
    )
    sandbox_config: AgentSandboxConfig = Field(
        default=AgentSandboxConfig(), description="The sandbox that the agent then makes."
    )


@dataclass(frozen=True)
class AgentSandbox:
    """The sandbox of an agent session.

    Attributes:
        workdir: Where the task's files lie, as the owner says it.
        owned: False for a sandbox of Resources.
        user: Whom the task wants the agent to be; None: it does not say.
        keeps_services: What the agent has left running as a service goes on after its end.
    """

    sandbox: Sandbox
    workdir: str
    owned: bool
    user: str | None = None
    keeps_services: bool = False

    async def release(self) -> None:
        """Stops a sandbox of the agent's own; in a lent one, ends only what the agent started.

        Raises:
            EpisodeFailure: `cleanup_failed`; it can be tried again.
        """
        await self.sandbox.stop()


async def take_sandbox(agent: AgentServer[Any], config: SandboxedAgentConfig, session: AgentSession) -> AgentSandbox:
    """The sandbox of a session, borrowed or made. Call it in `open`; closing the session releases it.

    Raises:
        EpisodeFailure: `configuration` where there is none, or its provider is not set up as it is needed;
            `sandbox_lost` or `sandbox_start`.
    """
    access = session.request.sandbox_access
    try:
        if access is not None:
            provider = _provider(agent, access.connection.provider_config_ref)
            sandbox = await provider.connect(access.connection.descriptor)
            session.sandbox = AgentSandbox(
                sandbox, access.workdir, owned=False, user=access.user, keeps_services=access.keeps_services
            )
        elif config.sandbox_provider is not None:
            provider = _provider(agent, config.sandbox_provider)
            labels = {"agent": agent.name, "session": session.id, "rollout": session.request.episode_id.key}
            sandbox = await provider.create(config.sandbox_config.spec(labels))
            session.sandbox = AgentSandbox(sandbox, sandbox.workdir, owned=True)
        else:
            what = "the task's Resources server lends none, and the agent has no `sandbox_provider`"
            raise EpisodeFailure("configuration", f"{agent.name} needs a sandbox: {what}", stage="seed")
    except UserError as error:
        raise EpisodeFailure("configuration", str(error), stage="seed") from error
    return session.sandbox


def _provider(agent: AgentServer[Any], name: str) -> SandboxProvider:
    try:
        return agent.context.sandboxes(name)
    except LookupError as error:
        message = f"{agent.name} needs the sandbox provider block `{name}`, which this configuration does not have"
        raise EpisodeFailure("configuration", message, stage="seed") from error
