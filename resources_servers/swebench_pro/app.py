"""SWE-bench Pro: an issue of a repository, solved in the instance's own image, graded by its tests in a fresh one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from typing import Self

from pydantic import Field, model_validator

from gym.failures import EpisodeFailure
from gym.sandbox.interface import Network, Sandbox, SandboxProvider
from gym.sandbox.spec_config import SandboxConfig
from gym.servers.base import ServerError
from gym.servers.contract import SandboxAccess, SandboxConnection, VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session
from gym.servers.task_sandbox import created, labels_of
from gym.servers.waiting import background, ended, joined
from resources_servers.swebench_pro.grading import Grade, Limits, grade
from resources_servers.swebench_pro.repository import Repository, is_pristine, is_protected, without
from resources_servers.swebench_pro.task import SwebenchProTask

WORKDIR = "/app"
"""Where the repository lies in every image."""


class SwebenchProConfig(ResourcesServerConfig):
    """Which images, and how long everything may take."""

    sandbox_provider: str = Field("sandbox", description="Top-level block of the sandbox provider.")
    sandbox_config: SandboxConfig = Field(
        default=SandboxConfig(workdir=WORKDIR),
        description="The sandbox of a task; `image` is the instance's own. Grading takes its `resources`.",
    )
    image_repository: str = Field(
        "jefzda/sweap-images", description="Images of the instances, by their `dockerhub_tag`."
    )
    pin_digests: bool = Field(True, description="Use the digest that a row has rather than its tag.")
    setup_timeout_seconds: float = Field(600, gt=0, description="Bound of taking the solution out of the history.")
    command_timeout_seconds: float = Field(180, gt=0, description="Bound of each command beside the tests.")
    test_timeout_seconds: float = Field(1200, gt=0, description="Bound of the tests in one try of grading.")
    verification_timeout_seconds: float = Field(2700, gt=0, description="Bound of grading, all tries together.")
    grading_tries: int = Field(2, ge=1, description="How often grading that says nothing is tried in all.")
    patch_limit_bytes: int = Field(20 * 1024 * 1024, gt=0, description="Longest patch that is graded.")
    golden: bool = Field(False, description="Grade the published solution, whatever the agent did.")

    @model_validator(mode="after")
    def _nest(self) -> Self:
        if self.test_timeout_seconds >= self.verification_timeout_seconds:
            raise ValueError("test_timeout_seconds is one part of verification_timeout_seconds, and must be below it")
        return self

    def bounds(self) -> dict[str, tuple[float, bool]]:
        """Setup and grading are what takes long beside the agent."""
        return {
            "setup_timeout_seconds": (self.setup_timeout_seconds, False),
            "verification_timeout_seconds": (self.verification_timeout_seconds, False),
        }

    def image(self, task: SwebenchProTask) -> str:
        """The image of an instance."""
        if self.pin_digests and task.image_digest:
            return f"{self.image_repository}@{task.image_digest}"
        return f"{self.image_repository}:{task.dockerhub_tag}"


class SwebenchPro(ResourcesServer[SwebenchProConfig, SwebenchProTask]):
    """Rewards 1.0 when all required tests pass with the agent's patch, else 0.0."""

    config_type = SwebenchProConfig
    task_type = SwebenchProTask

    @classmethod
    def task_images(cls, task: SwebenchProTask, config: SwebenchProConfig) -> Iterable[str]:
        """The image of the instance."""
        return (config.image(task),)

    async def seed(self, session: Session[SwebenchProTask]) -> None:
        """Starts the instance's image, hides the solution in it, and lends it."""
        sandbox = session.sandbox = await self._start(session, "task")
        repository = Repository(sandbox, session.task, self.config.setup_timeout_seconds)
        await repository.hide_solution()
        session.state["pristine"] = await repository.untracked()
        connection = SandboxConnection(
            provider_config_ref=self.config.sandbox_provider, descriptor=sandbox.descriptor()
        )
        session.sandbox_access = SandboxAccess(connection=connection, workdir=sandbox.workdir)

    async def verify(self, session: Session[SwebenchProTask], request: VerifyRequest) -> VerifyResponse:  # noqa: ARG002
        """Grades once: whoever asks again gets the same verdict, for the agent's sandbox is gone by then."""
        if "verdict" not in session.state:
            session.state["verdict"] = background(self._verdict(session))
        verdict: VerifyResponse = await joined(session.state["verdict"])
        return verdict

    async def close(self, session: Session[SwebenchProTask]) -> None:
        """Ends grading, and stops all sandboxes of the session."""
        await ended(session.state.get("verdict"))
        for sandbox in session.state.get("grading", []):
            await sandbox.stop()
        await super().close(session)

    async def _verdict(self, session: Session[SwebenchProTask]) -> VerifyResponse:
        limit = self.config.verification_timeout_seconds
        try:
            async with asyncio.timeout(limit) as bound:
                return await self._graded(session)
        except TimeoutError as error:
            if not bound.expired():
                raise
            what = f"verification_timeout_seconds ({limit:g} s) ran out"
            raise EpisodeFailure("verifier_crashed", what, stage="verification") from error

    async def _graded(self, session: Session[SwebenchProTask]) -> VerifyResponse:
        assert session.sandbox is not None
        task, dropped = session.task, list[str]()
        if self.config.golden:
            patch, problem = task.patch.encode(), None
        else:
            repository = Repository(session.sandbox, task, self.config.command_timeout_seconds)
            patch, problem = await repository.patch(self.config.patch_limit_bytes)
            # What the image brought is in every work tree, and no work of the agent's.
            patch, _ = without(patch, partial(is_pristine, session.state["pristine"]))
            patch, dropped = without(patch, partial(is_protected, task))
        await session.sandbox.stop()
        if problem is None and not patch.strip():
            problem = "nothing was changed"
        if problem is not None:
            verdict = Grade(False, patch_applied=False, missing=sorted(task.required), error=problem)
        else:
            limits = Limits(
                self.config.command_timeout_seconds, self.config.test_timeout_seconds, self.config.grading_tries
            )
            verdict = await grade(task, patch, lambda role: self._start(session, role), limits)
        network = self._grading_network(self.context.sandboxes(self.config.sandbox_provider))
        return _told(verdict, patch, dropped, network)

    def _grading_network(self, provider: SandboxProvider) -> Network:
        """None, where the provider can do that."""
        return "none" if "none" in provider.capabilities.networks else "open"

    async def _start(self, session: Session[SwebenchProTask], role: str) -> Sandbox:
        """A sandbox of the instance's image, for the agent or for a step of grading."""
        spec = self.config.sandbox_config.spec(labels_of(self, session, role))
        spec = replace(spec, image=self.config.image(session.task))
        provider = self.context.sandboxes(self.config.sandbox_provider)
        if role != "task":
            spec = replace(spec, network=self._grading_network(provider))
        sandbox = await created(self, self.config.sandbox_provider, spec)
        if role != "task":
            session.state.setdefault("grading", []).append(sandbox)
            if session.closed:
                await sandbox.stop()
                raise ServerError(409, "the session was closed while it was verified")
        return sandbox


def _told(verdict: Grade, patch: bytes, dropped: list[str], network: Network) -> VerifyResponse:
    """A grade under the names that SWE-bench Pro's own results have."""
    said = asdict(verdict)
    return VerifyResponse.model_validate(
        {
            "reward": float(verdict.resolved),
            "resolved": verdict.resolved,
            "patch_applied": verdict.patch_applied,
            "eval_timed_out": verdict.timed_out,
            "model_patch": patch.decode("utf-8", "replace"),
            "dropped_paths": dropped,
            "test_results": said["tests"],
            "tests_not_passed": said["missing"],
            "test_output": verdict.output,
            "error": verdict.error,
            "grading_network": network,
        }
    )
