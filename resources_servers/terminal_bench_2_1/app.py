"""Terminal-Bench 2.1: task folders in Harbor's format, each an image, an instruction and tests that run in it.

The folders are read, started and verified by `gym.harbor`; here they meet a resources server, so that a task goes with
every environment server and harness.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harbor import fit, shared, verifier
from gym.harbor.boxes import Box, start, told, wait_until_healthy
from gym.harbor.images import image_in_episode
from gym.harbor.masking import masker
from gym.harbor.rewards import one_reward
from gym.harbor.rows import HarborTaskData, task_of
from gym.harbor.task import Task
from gym.harbor.variables import fill_env
from gym.sandbox.interface import Network
from gym.sandbox.scratch import scratch
from gym.servers.contract import VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData
from gym.servers.task_sandbox import labels_of

SOLUTION = "/solution"


class TerminalBenchConfig(ResourcesServerConfig):
    """Where tasks run, and how long their tests may take."""

    sandbox_provider: str = Field("sandbox", description="Top-level block of the sandbox provider; it starts images.")
    network: Network | None = Field(
        None, description="Network of the agent; null: as the task says, and `gym_only` for a task without one."
    )
    verification_timeout_seconds: float = Field(3600, gt=0, description="Bound of the tests; a task's own is shorter.")
    verifier_timeout_multiplier: float = Field(1.0, gt=0, description="Factor of the tasks' own bounds of their tests.")
    keeps_services: bool = Field(
        True, description="What the agent leaves running goes on while the tests run; tasks about services need it."
    )
    golden: bool = Field(False, description="Run the task's own solution before its tests, whatever the agent did.")

    def bounds(self) -> dict[str, tuple[float, bool]]:
        """The tests are what takes long beside the agent."""
        return {"verification_timeout_seconds": (self.verification_timeout_seconds, False)}


class TerminalBenchTask(TaskData):
    """A task folder."""

    folder: str = Field(description="The task folder.")
    digest: str = Field(description="Its content digest when the row was made.")
    docker_image: str | None = Field(None, description="Its image; null: built from its Dockerfile.")


class TerminalBench(ResourcesServer[TerminalBenchConfig, TerminalBenchTask]):
    """Rewards what the task's tests say."""

    config_type = TerminalBenchConfig
    task_type = TerminalBenchTask
    verifies_services = True

    @classmethod
    def task_images(cls, task: TerminalBenchTask, config: TerminalBenchConfig) -> Iterable[str]:  # noqa: ARG003
        """The task's image, unless it is built."""
        return (task.docker_image,) if task.docker_image else ()

    async def seed(self, session: Session[TerminalBenchTask]) -> None:
        """Starts the task's image, and lends it."""
        task = session.state["task"] = await asyncio.to_thread(_read, session.task)
        block = self.config.sandbox_provider
        provider = self.context.sandboxes(block)
        if problems := fit.problems(task, provider, fit.ANY_AGENT):
            raise EpisodeFailure("configuration", str(UserError(problems)), stage="seed")
        image = await image_in_episode(provider, task, task.environment, 1.0)
        labels = labels_of(self, session, "task")
        network = self.config.network or ("open" if task.steps[0].agent.network.mode == "public" else "gym_only")
        box = await start(provider, block, task.environment, image, network, labels, os.environ)
        session.state["box"], session.sandbox = box, box.sandbox
        if (check := task.environment.config.healthcheck) is not None:
            await wait_until_healthy(box, check, None)
        session.state["before"] = await shared.look(box)
        session.sandbox_access = box.lent(task.steps[0].agent.user, keeps_services=self.config.keeps_services)

    async def verify(self, session: Session[TerminalBenchTask], request: VerifyRequest) -> VerifyResponse:  # noqa: ARG002
        """Runs the tests in the sandbox that the agent has left."""
        task, box = session.state["task"], session.state["box"]
        if self.config.golden:
            await _solve(task, box)
        phase = task.steps[0].verifier
        kept = await asyncio.to_thread(scratch, "terminal-bench")
        try:
            order = verifier.Order(
                box=box,
                phase=phase,
                env=fill_env(phase.env, os.environ).values,
                timeout_seconds=self._seconds(phase.timeout_seconds),
                kept=Path(kept.name) / "verifier",
                mask=masker(task, os.environ, self.context.mask),
                keeps_services=self.config.keeps_services,
            )
            outcome = await verifier.verify_shared(order, session.state["before"])
        finally:
            with suppress(OSError):
                await asyncio.to_thread(kept.cleanup)
        return VerifyResponse.model_validate(
            {
                "reward": one_reward(outcome.rewards),
                "rewards": outcome.rewards,
                "verifier_output": outcome.output,
                "verifier_notes": outcome.notes,
                "image_digest": box.image.digest,
            }
        )

    def _seconds(self, own: float) -> float:
        return min(own * self.config.verifier_timeout_multiplier, self.config.verification_timeout_seconds)


def _read(data: TerminalBenchTask) -> Task:
    """The task of a row.

    Raises:
        EpisodeFailure: `malformed_task`: it has changed, is broken, or is one of several steps.
    """
    try:
        task = task_of(HarborTaskData(folder=data.folder, digest=data.digest))
    except UserError as error:
        raise EpisodeFailure("malformed_task", str(error), stage="seed") from error
    if task.has_steps or task.steps[0].verifier.container is not None:
        what = f"{task.task_id} has steps, or a verifier of its own sandbox: run its folder with `gym eval run FOLDER`"
        raise EpisodeFailure("malformed_task", what, stage="seed")
    return task


async def _solve(task: Task, box: Box) -> None:
    """Runs the task's own solution, as an agent would."""
    step = task.steps[0]
    if step.solution is None:
        raise EpisodeFailure("malformed_task", f"{task.task_id} has no solution to run", stage="verification")
    await box.put(step.solution, SOLUTION)
    env = {"DEBIAN_FRONTEND": "noninteractive", **fill_env(task.table.solution.env, os.environ).values}
    words = ["/bin/sh", "-c", 'exec bash "$1"', "sh", f"{SOLUTION}/solve.sh"]
    seconds = step.agent.timeout_seconds or 3600
    done = await box.run(words, user=step.agent.user, env=env, timeout_seconds=seconds)
    if done.timed_out:
        raise EpisodeFailure("task_setup", f"the solution of {task.task_id} failed: {told(done)}")
