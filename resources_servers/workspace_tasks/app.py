"""Tasks in a workspace: files in a sandbox, a shell to work with, and a hidden test script that decides the reward.

The script never meets the agent. When the agent is closed, its work directory is copied out, its sandbox is stopped,
and the script runs in a fresh one on the copy: whatever the agent left running or changed elsewhere does not count.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field

from gym.failures import EpisodeFailure
from gym.sandbox.interface import ExecResult, Sandbox
from gym.sandbox.scratch import scratch
from gym.sandbox.spec_config import SandboxConfig
from gym.servers.base import OPERATIONAL, ServerError
from gym.servers.contract import SandboxAccess, SandboxConnection, VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, tool
from gym.servers.task_sandbox import created, labels_of
from resources_servers.workspace_tasks.settings import WorkspaceTask

COMMAND_LIMIT_BYTES = 100_000
"""Longest command of the shell tool: an argument of a Linux process has to stay below 131,072 bytes."""

VERIFIER_ENV = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""Keeps modules that the agent left in the work directory out of a Python test script's own imports."""

PASSED, NOT_PASSED = 0, 1


class WorkspaceTasksConfig(ResourcesServerConfig):
    """Where the tasks run, and their bounds."""

    sandbox_provider: str = Field("sandbox", description="Top-level block of the sandbox provider.")
    sandbox_config: SandboxConfig = Field(default=SandboxConfig(), description="The sandbox of a task.")
    verifier_timeout_seconds: float = Field(
        120, gt=0, description="Bound of a test script; a task's own `timeout_seconds` wins."
    )
    tool_output_limit_bytes: int = Field(
        16_384, gt=0, description="Output of a command that the agent sees; the middle of a longer one is left out."
    )
    workspace_limit_bytes: int = Field(
        64 * 1024 * 1024, gt=0, description="Largest work directory that is verified; a larger one earns 0."
    )
    lend_sandbox: bool = Field(
        True, description="Offer the sandbox to harnesses that bring their own tools.", json_schema_extra=OPERATIONAL
    )

    def bounds(self) -> dict[str, tuple[float, bool]]:
        """Verification is the one step with a bound of its own."""
        return {"verifier_timeout_seconds": (self.verifier_timeout_seconds, False)}


class WorkspaceTasks(ResourcesServer[WorkspaceTasksConfig, WorkspaceTask]):
    """Rewards 1.0 when the task's test script exits 0, and 0.0 when it exits 1; anything else is a failed verifier."""

    config_type = WorkspaceTasksConfig
    task_type = WorkspaceTask

    async def seed(self, session: Session[WorkspaceTask]) -> None:
        """Starts the sandbox and puts the task's files into its work directory."""
        sandbox = session.sandbox = await self._start(session, "task")
        for path, text in session.task.files.items():
            await sandbox.upload(text.encode(), f"{sandbox.workdir}/{path}")
        if self.config.lend_sandbox:
            connection = SandboxConnection(
                provider_config_ref=self.config.sandbox_provider, descriptor=sandbox.descriptor()
            )
            session.sandbox_access = SandboxAccess(connection=connection, workdir=sandbox.workdir)

    @tool
    async def shell(
        self,
        session: Session[WorkspaceTask],
        command: str,
        timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 60,
    ) -> str:
        """Run a shell command in the work directory of the task.

        Each command starts anew in the work directory. The answer is the exit code and what the command wrote.
        """
        if len(command.encode()) > COMMAND_LIMIT_BYTES or "\0" in command:
            raise ServerError(422, f"command: at most {COMMAND_LIMIT_BYTES} bytes, without NUL; use several commands")
        assert session.sandbox is not None
        result = await session.sandbox.exec(
            f"exec 2>&1\n{command}",
            timeout_seconds=timeout_seconds,
            max_output_bytes=self.config.tool_output_limit_bytes,
        )
        ended = f"timed out after {timeout_seconds:g} s" if result.timed_out else f"exit code: {result.exit_code}"
        return f"{ended}\n{result.stdout_text}"

    async def verify(self, session: Session[WorkspaceTask], request: VerifyRequest) -> VerifyResponse:  # noqa: ARG002
        """Runs the task's test script on a copy of the work directory."""
        assert session.sandbox is not None
        copy = await asyncio.to_thread(scratch, "workspace")
        try:
            workspace = Path(copy.name) / "work"
            problem = await self._take_out(session.sandbox, workspace)
            await session.sandbox.stop()
            if problem is not None:
                return VerifyResponse.model_validate({"reward": 0.0, "verifier_output": problem})
            result = await self._test(session, workspace)
        finally:
            await asyncio.to_thread(copy.cleanup)
        return _verdict(session, result)

    async def close(self, session: Session[WorkspaceTask]) -> None:
        """Stops the sandboxes of the session."""
        verifier: Sandbox | None = session.state.get("verifier")
        if verifier is not None:
            await verifier.stop()
        await super().close(session)

    async def _start(self, session: Session[WorkspaceTask], role: str) -> Sandbox:
        spec = self.config.sandbox_config.spec(labels_of(self, session, role))
        return await created(self, self.config.sandbox_provider, spec)

    async def _take_out(self, sandbox: Sandbox, target: Path) -> str | None:
        """Copies the work directory to the host. Returns why it can't be verified where the agent made it so."""
        try:
            await sandbox.download(sandbox.workdir, target, max_bytes=self.config.workspace_limit_bytes)
        except FileNotFoundError:
            target.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            return f"the work directory cannot be read: {error}"
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise EpisodeFailure("verifier_crashed", f"the work directory could not be copied: {error}") from error
            return f"the work directory holds more than {self.config.workspace_limit_bytes} bytes"
        return None

    async def _test(self, session: Session[WorkspaceTask], workspace: Path) -> ExecResult:
        sandbox = session.state["verifier"] = await self._start(session, "verifier")
        if session.closed:
            await sandbox.stop()
            raise ServerError(409, "the session was closed while it was verified")
        await sandbox.upload(workspace, sandbox.workdir)
        home, script = await self._place_test(sandbox, session.task.test_script.encode())
        return await sandbox.exec(
            [*session.task.interpreter, script],
            env={**VERIFIER_ENV, "HOME": home},
            timeout_seconds=session.task.timeout_seconds or self.config.verifier_timeout_seconds,
            max_output_bytes=self.config.tool_output_limit_bytes,
        )

    @staticmethod
    async def _place_test(sandbox: Sandbox, test: bytes) -> tuple[str, str]:
        """Puts the script beside the work directory, so that the tested code does not come across it; returns where."""
        beside = PurePosixPath(sandbox.workdir).parent
        for folder in (beside, PurePosixPath("/tmp")):
            script = str(folder / "gym-verifier" / "test")
            try:
                await sandbox.upload(test, script, mode=0o755)
                return str(folder / "gym-verifier"), script
            except OSError as error:  # the root is read-only
                problem = error
        raise EpisodeFailure("verifier_crashed", f"the test script could not be put into the sandbox: {problem}")


def _verdict(session: Session[WorkspaceTask], result: ExecResult) -> VerifyResponse:
    output = (result.stdout_text + result.stderr_text).strip()
    if result.timed_out or result.exit_code not in (PASSED, NOT_PASSED):
        ended = "ran out of time" if result.timed_out else f"exited with {result.exit_code}"
        last_line = output.splitlines()[-1:] or ["no output"]
        message = f"the test script of {session.task_id.task_id} {ended}: {last_line[0][:500]}"
        raise EpisodeFailure("verifier_crashed", message, stage="verification")
    return VerifyResponse.model_validate(
        {"reward": float(result.exit_code == PASSED), "verifier_output": output, "verifier_exit_code": result.exit_code}
    )
