"""Runs Harbor task folders: the agent works in the sandbox of the task, and the task's own verifier judges it.

The parts are in `gym.harbor`; here they meet the session contract.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harbor import fit, images
from gym.harbor.episode import Multipliers, Place, Trial
from gym.harbor.masking import masker
from gym.harbor.rows import HarborTaskData, task_of
from gym.harbor.task import Task
from gym.harbor.turns import Turns
from gym.rollouts.rundir import EVIDENCE
from gym.sandbox.interface import OnImageProgress, SandboxProvider
from gym.sandbox.scratch import scratch
from gym.servers.agent import AgentServer
from gym.servers.base import OPERATIONAL, describe
from gym.servers.contract import EpisodeId, ServerRef, VerifyResponse
from gym.servers.contract import Task as RowTask
from gym.servers.environment import EnvironmentServer, EnvironmentServerConfig, Episode
from gym.tasks.datasets import DatasetConfig


class HarborConfig(EnvironmentServerConfig):
    """Which agent works on the tasks, and where."""

    agent_server: ServerRef = Field(description="The agent that is evaluated.")
    sandbox_provider: str = Field("sandbox", description="Top-level block of the provider of the tasks' sandboxes.")
    datasets: list[DatasetConfig] = Field(default_factory=list, description="Rows of task folders.")
    keeps_services: bool = Field(
        True,
        description="Services that an agent leaves go on while tests run in its sandbox. False ends them: stronger "
        "against cheating, and tasks about services then fail.",
    )
    env_from_host: list[str] = Field(
        default_factory=list,
        description="Secret variables of this machine that tasks refer to, where this server has a process of its own.",
        json_schema_extra=OPERATIONAL,
    )
    timeout_multiplier: float = Field(1.0, gt=0, description="Factor of all times that tasks give.")
    agent_timeout_multiplier: float = Field(1.0, gt=0, description="Factor of the agent's times, beside that of all.")
    verifier_timeout_multiplier: float = Field(1.0, gt=0, description="Factor of verifiers' times, beside that of all.")
    build_timeout_multiplier: float = Field(1.0, gt=0, description="Factor of times of builds, beside that of all.")

    @property
    def multipliers(self) -> Multipliers:
        """By phase."""
        own = (self.agent_timeout_multiplier, self.verifier_timeout_multiplier, self.build_timeout_multiplier)
        return Multipliers(*(self.timeout_multiplier * factor for factor in own))


class HarborEnvironment(EnvironmentServer[HarborConfig]):
    """Starts the task's sandbox, lends it to the agent step by step, and runs the task's verifier."""

    config_type = HarborConfig
    prepares = True

    @classmethod
    async def prepare(
        cls,
        config: HarborConfig,
        tasks: Iterable[RowTask],
        providers: Mapping[str, SandboxProvider],
        on_progress: OnImageProgress,
    ) -> dict[str, str]:
        """Pulls and builds the images of the tasks that will run."""
        rows = [HarborTaskData.model_validate(task.task_input.task_data) for task in tasks]
        read = await asyncio.to_thread(lambda: [task_of(row) for row in rows])
        provider = providers[config.sandbox_provider]
        return await images.prepare(provider, read, config.multipliers.build, on_progress)

    async def run_episode(self, episode: Episode) -> VerifyResponse:
        """One task, all its steps."""
        data = _task_data(episode)
        provider = self._provider()
        async with episode.step("seed", "read_task"):
            task = await asyncio.to_thread(_read, data)
            agent = self._agent()
            if problems := fit.problems(task, provider, agent):
                raise EpisodeFailure("configuration", str(UserError(problems)), stage="seed")
        place = Place(
            provider=provider,
            block=self.config.sandbox_provider,
            asks_model=agent.role == "policy",
            environment=os.environ,
            multipliers=self.config.multipliers,
            keeps_services=self.config.keeps_services,
            mask=masker(task, os.environ, self.context.mask),
        )
        turns = Turns(self.context, self.config.agent_server, episode)
        async with _folder(provider, episode.request.episode_id.key) as folder:
            trial = Trial(task, data, place, episode, turns, folder)
            return await trial.run(episode.request.task.task_input.responses_create_params)

    async def close_lost(self, episode: Episode, lost: EpisodeId) -> None:
        """Closes the agent's sessions; the sandboxes of a server that died are swept."""
        task = await asyncio.to_thread(_read, _task_data(episode))
        await Turns(self.context, self.config.agent_server, episode).close_lost(lost, len(task.steps))

    def _provider(self) -> SandboxProvider:
        name = self.config.sandbox_provider
        try:
            return self.context.sandboxes(name)
        except LookupError as error:
            message = f"{self.name} needs the sandbox provider block `{name}`, which this configuration does not have"
            raise EpisodeFailure("configuration", message, stage="seed") from error

    def _agent(self) -> fit.AgentTraits:
        """What the agent can do; one in another process has been asked at planning, and refuses the rest itself."""
        name = self.config.agent_server.name
        server = self.context.client.directory.local.get(name)
        return fit.traits(name, type(server)) if isinstance(server, AgentServer) else fit.ANY_AGENT


def _task_data(episode: Episode) -> HarborTaskData:
    try:
        return HarborTaskData.model_validate(episode.request.task.task_input.task_data)
    except ValidationError as error:
        raise EpisodeFailure("malformed_task", f"no row of a Harbor task: {describe(error)}", stage="seed") from error


def _read(data: HarborTaskData) -> Task:
    try:
        return task_of(data)
    except UserError as error:
        raise EpisodeFailure("malformed_task", str(error), stage="seed") from error


@asynccontextmanager
async def _folder(provider: SandboxProvider, rollout: str) -> AsyncIterator[Path]:
    """Where the files of a trial are kept: in the run's directory, where there is one, else only meanwhile."""
    run = provider.common.labels.get("run")
    if run is not None:
        yield Path(run) / EVIDENCE / rollout
        return
    kept = await asyncio.to_thread(scratch, "harbor")
    try:
        yield Path(kept.name)
    finally:
        await asyncio.to_thread(kept.cleanup)
