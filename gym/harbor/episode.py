"""One episode of a Harbor task: its sandbox, the agent's turn in each step, and what the verifier says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym.apis.responses import ResponsesRequest
from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harbor import artifacts, programs, shared, verifier
from gym.harbor.boxes import Box, start, told, wait_until_healthy
from gym.harbor.config import NetworkMode, User
from gym.harbor.fit import network_of
from gym.harbor.images import image_in_episode
from gym.harbor.rewards import Rewards, missed_gate, of_task, one_reward
from gym.harbor.rows import HarborTaskData
from gym.harbor.task import Container, Step, Task
from gym.harbor.task import Network as TaskNetwork
from gym.harbor.turns import Told, Turns, grants, request_of
from gym.harbor.variables import fill_env
from gym.report.atif import trajectory
from gym.sandbox.interface import Network, SandboxProvider
from gym.servers.contract import VerifyResponse
from gym.servers.environment import Cleanup, Episode

AGENT_LOGS, TRAJECTORY = "/logs/agent", "trajectory.json"
AGENT_LOGS_BYTES = 64 * 1024 * 1024
SETUP_SECONDS = 600.0
SKILLS = 'mkdir -p "$HOME/.agents/skills" && cp -R -- "$1"/. "$HOME/.agents/skills/"'


@dataclass(frozen=True)
class Multipliers:
    """What the times that a task gives are multiplied with."""

    agent: float = 1.0
    verifier: float = 1.0
    build: float = 1.0


@dataclass(frozen=True)
class Place:
    """Where and how tasks run.

    Attributes:
        block: Block of the provider.
        asks_model: The agent has to reach a model from its sandbox.
        environment: Where `${VAR}` gets its values from.
        keeps_services: What an agent leaves running goes on into a verifier that shares its sandbox.
        mask: Takes secrets out of what is kept.
    """

    provider: SandboxProvider
    block: str
    asks_model: bool
    environment: Mapping[str, str]
    multipliers: Multipliers
    keeps_services: bool = True
    mask: Callable[[str], str] = str


@dataclass
class StepResult:
    """What came of a step."""

    name: str
    rewards: Rewards
    output: str
    notes: list[str]
    missed: str | None = None

    def row(self) -> dict[str, Any]:
        """As a row tells it."""
        told = {"name": self.name, "reward": one_reward(self.rewards), "rewards": self.rewards, "notes": self.notes}
        return {**told, "missed_gate": self.missed, "verifier_output": self.output}


@dataclass
class Trial:
    """A running episode of a task.

    Attributes:
        folder: Where its files are kept on this machine, laid out as a trial of Harbor's.
    """

    task: Task
    data: HarborTaskData
    place: Place
    episode: Episode
    turns: Turns
    folder: Path
    results: list[StepResult] = field(default_factory=list)
    _mode: NetworkMode = "public"

    async def run(self, request: ResponsesRequest) -> VerifyResponse:
        """All steps, until one misses the reward that the next one asks for.

        Raises:
            EpisodeFailure: Something failed, and nothing is said about the outcome.
        """
        for name in ("agent", "verifier", "artifacts", "steps"):
            # Of an earlier start of the run: nothing of it may be taken for this one's.
            await asyncio.to_thread(artifacts.remove, self.folder / name)
        async with self.episode.step("seed", "seed_sandbox"):
            first = self.task.steps[0].agent.network
            network = network_of(first, asks_model=self.place.asks_model)
            box, stopping = await self._start(self.task.environment, network, "agent")
            self._mode = first.mode
            if (check := self.task.environment.config.healthcheck) is not None:
                await wait_until_healthy(box, check, None)
        before: shared.Before | None = None
        for step in self.task.steps:
            async with self.episode.step("seed", "seed_step"):
                await self._change_network(box, step.agent.network, asks_model=self.place.asks_model)
                await self._prepare(box, step)
                # What the task itself has set up is no agent's doing.
                before = before or await shared.look(box)
            notes = await self._act(box, step, request, before)
            async with self.episode.step("verification"):
                result = await self._verify(box, step, before, stopping)
            result.notes[:0] = notes
            self.results.append(result)
            if result.missed is not None:
                break
        return self._verdict(box)

    async def _start(self, container: Container, network: Network, role: str) -> tuple[Box, Cleanup]:
        image = await image_in_episode(self.place.provider, self.task, container, self.place.multipliers.build)
        labels = {"rollout": self.episode.request.episode_id.key, "task": self.task.task_id, "role": role}
        place = self.place
        box = await start(place.provider, place.block, container, image, network, labels, place.environment)
        return box, self.episode.cleanup(f"stop the sandbox of the {role}", box.sandbox.stop)

    async def _change_network(self, box: Box, wanted: TaskNetwork, *, asks_model: bool) -> None:
        """Gives the agent's sandbox another network, where a phase wants another one than that before it."""
        if wanted.mode == self._mode:
            return
        try:
            await box.sandbox.change_network(network_of(wanted, asks_model=asks_model))
        except UserError as error:
            raise EpisodeFailure("configuration", str(error)) from error
        self._mode = wanted.mode

    async def _prepare(self, box: Box, step: Step) -> None:
        """The files of a step, its setup script, and its healthcheck, all as the agent's user."""
        user = step.agent.user
        if step.index:
            await box.as_root('rm -rf -- "$1"; mkdir -p "$1"; chmod 777 "$1"', AGENT_LOGS)
        if step.workdir is not None:
            await box.put(step.workdir, box.workdir)
        if step.setup is not None:
            words = ["/bin/sh", "-c", 'exec bash "$1"', "sh", f"{box.workdir.rstrip('/')}/setup.sh"]
            done = await box.run(words, user=user, timeout_seconds=SETUP_SECONDS)
            if done.exit_code or done.timed_out:
                raise EpisodeFailure("task_setup", f"setup.sh of the step `{step.name}` failed: {told(done)}")
        if step.healthcheck is not None:
            await wait_until_healthy(box, step.healthcheck, user)
        if (skills := self.task.environment.config.skills_dir) is not None:
            await _give_skills(box, skills, user)

    async def _act(self, box: Box, step: Step, request: ResponsesRequest, before: shared.Before) -> list[str]:
        """The agent's turn; then the image's own programs are put back. Returns notes on that."""
        seconds = step.agent.timeout_seconds
        bound = None if seconds is None else seconds * self.place.multipliers.agent
        asked = request_of(request, step.instruction, bound, self.data, step.index)
        keeps = self.place.keeps_services and step.verifier.container is None
        access = box.lent(step.agent.user, keeps_services=keeps)
        servers = grants(self.task.environment.config.mcp_servers, self.place.environment)
        try:
            told = await self.turns.take(step.index, asked, access, servers)
            await box.take_back()
            notes = await programs.mend(box, before.programs)
        finally:
            with suppress(EpisodeFailure, OSError):
                await box.sandbox.download(AGENT_LOGS, self._kept(step) / "agent", max_bytes=AGENT_LOGS_BYTES)
        if told.observations is not None:
            await self._keep_trajectory(box, step, told)
        return notes

    async def _keep_trajectory(self, box: Box, step: Step, told: Told) -> None:
        """What a harness did, as ATIF: beside its logs, and where a verifier in the same sandbox looks for it."""
        assert told.response is not None
        row = {
            "rollout_id": self.episode.request.episode_id.key,
            "response": told.response.model_dump(mode="json", exclude_none=True),
            "usage": told.response.usage.model_dump(mode="json") if told.response.usage else {},
            "ng_agent_observations": told.observations,
        }
        text = self.place.mask(json.dumps(trajectory(row, {"input": step.instruction}), indent=2))
        await asyncio.to_thread(artifacts.write, self._kept(step) / "agent" / TRAJECTORY, text)
        if step.verifier.container is None:
            await box.put(text.encode(), f"{AGENT_LOGS}/{TRAJECTORY}")

    async def _verify(self, box: Box, step: Step, before: shared.Before, stopping: Cleanup) -> StepResult:
        kept = self._kept(step)
        await box.make_workdir()
        notes = await artifacts.run_hooks(box, step.verifier.collect)
        collected = await artifacts.collect(box, step.artifacts, kept / "artifacts")
        notes += collected.notes
        is_last = step is self.task.steps[-1]
        order = verifier.Order(
            box=box,
            phase=step.verifier,
            env=fill_env(step.verifier.env, self.place.environment).values,
            timeout_seconds=step.verifier.timeout_seconds * self.place.multipliers.verifier,
            kept=kept / "verifier",
            mask=self.place.mask,
            keeps_services=self.place.keeps_services,
        )
        if step.verifier.container is None:
            await self._change_network(box, step.verifier.network, asks_model=False)
            outcome = await verifier.verify_shared(order, before)
            if not is_last:
                await verifier.forget(box, step.verifier)
        else:
            if is_last:
                await self.episode.clean(stopping)
            outcome = await self._apart(order, step, step.verifier.container, collected)
        missed = missed_gate(outcome.rewards, step.min_rewards)
        return StepResult(step.name, outcome.rewards, outcome.output, [*notes, *outcome.notes], missed)

    async def _apart(
        self, order: verifier.Order, step: Step, container: Container, collected: artifacts.Collected
    ) -> verifier.Outcome:
        """Verifies in a fresh container, which gets the artifacts and nothing else of the agent's."""
        network = network_of(step.verifier.network, asks_model=False)
        box, stopping = await self._start(container, network, "verifier")
        if (check := container.config.healthcheck) is not None:
            await wait_until_healthy(box, check, None)
        await artifacts.put_back(box, step.artifacts, collected, order.kept.parent / "artifacts")
        fresh = verifier.Order(box, order.phase, order.env, order.timeout_seconds, order.kept, order.mask)
        outcome = await verifier.verify_apart(fresh)
        await self.episode.clean(stopping)
        return outcome

    def _kept(self, step: Step) -> Path:
        return self.folder / "steps" / step.name if self.task.has_steps else self.folder

    def _verdict(self, box: Box) -> VerifyResponse:
        rewards = of_task((result.rewards for result in self.results), self.task.reward_strategy)
        last, agent = self.results[-1], self.turns.told
        row: dict[str, Any] = {
            "reward": one_reward(rewards),
            "response": agent.response,
            "rewards": rewards,
            "task_name": self.task.name,
            "verifier_output": last.output,
            "verifier_notes": [note for result in self.results for note in result.notes],
            "image_digest": box.image.digest,
        }
        if self.task.has_steps:
            row["step_results"] = [result.row() for result in self.results]
        if agent.observations is not None:
            row["ng_agent_observations"] = agent.observations
        return VerifyResponse.model_validate(row)


async def _give_skills(box: Box, folder: str, user: User | None) -> None:
    """Puts the skills of a task where harnesses look for those of their user."""
    done = await box.run(["/bin/sh", "-c", SKILLS, "sh", folder], user=user)
    if done.exit_code:
        raise EpisodeFailure("task_setup", f"the skills in {folder} cannot be copied: {told(done)}")
