"""Episodes of task folders, with real servers of one process and real containers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym.environment_servers.harbor.app import HarborConfig, HarborEnvironment
from gym.harbor.digest import task_digest
from gym.harbor.rows import HarborTaskData
from gym.sandbox.interface import Common, SandboxProvider
from gym.servers.agent import AgentServer
from gym.servers.base import Call, ServerContext
from gym.servers.client import Client, Directory
from gym.servers.contract import RunRequest, RunResponse, ServerRef, VerifyResponse
from gym.servers.sessions import Signer

AGENT = ServerRef(type="responses_api_agents", name="agent")


@dataclass
class World:
    """An environment server with one agent.

    Attributes:
        run: Directory of the run.
    """

    environment: HarborEnvironment
    agent: AgentServer[Any]
    client: Client
    run: Path
    episodes: int = field(default=0)

    async def episode(self, folder: Path, digest: str | None = None) -> RunResponse:
        """One episode of a task; `digest` is what its row says of it."""
        self.episodes += 1
        data = HarborTaskData(folder=str(folder), digest=digest or task_digest(folder))
        body = {
            "episode_id": {"rollout_id": f"{folder.name}-{self.episodes}"},
            "task": {
                "task_id": {"taskset": "tasks", "task_id": folder.name},
                "task_input": {
                    "responses_create_params": {"input": "do it"},
                    "task_data": data.model_dump(mode="json", exclude_defaults=True),
                },
            },
        }
        return await self.environment.run(RunRequest.model_validate(body), Call())

    async def result(self, folder: Path) -> VerifyResponse:
        """What came of an episode that did not fail."""
        told = await self.episode(folder)
        assert told.result is not None, told.failure
        return told.result

    def kept(self, folder: Path) -> Path:
        """The folder of the last episode of a task."""
        return self.run / "evidence" / f"{folder.name}-{self.episodes}"

    async def stop(self) -> None:
        """Stops the servers."""
        for server in (self.environment, self.agent):
            await server.stop()
        await self.client.aclose()


def build(
    agent_class: type[AgentServer[Any]],
    provider: SandboxProvider,
    run: Path,
    *,
    remote: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
    keeps_services: bool = True,
) -> World:
    """Servers around an agent; `settings` are the agent's."""
    directory = Directory(remote=dict(remote or {}), base_url="http://gym.invalid")
    client = Client(directory, "token of the test")
    signer = Signer(b"secret of the test")
    provider.common = Common({"run": str(run)}, provider.common.mounts)

    def context(name: str) -> ServerContext:
        return ServerContext(name, client, signer, lambda _name: provider)

    agent = agent_class(agent_class.config_type.model_validate(settings or {}), context("agent"))
    config = HarborConfig(agent_server=AGENT, keeps_services=keeps_services)
    made = HarborEnvironment(config, context("experiment"))
    directory.local.update({"agent": agent, "experiment": made})
    return World(made, agent, client, run)
