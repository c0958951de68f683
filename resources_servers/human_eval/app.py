"""Python functions to complete, in the format of HumanEval (Chen et al. 2021): run against their tests in a sandbox."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

from pydantic import Field

from gym.failures import EpisodeFailure
from gym.sandbox.interface import ExecResult
from gym.sandbox.spec_config import SandboxConfig
from gym.servers.contract import VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData
from gym.servers.task_sandbox import created, labels_of

JUDGE = Path(__file__).with_name("judge.py").read_text(encoding="utf-8")
BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
OUTPUT_LIMIT_BYTES = 16_384


class HumanEvalConfig(ResourcesServerConfig):
    """Where the functions are tested, and for how long."""

    sandbox_provider: str = Field("sandbox", description="Top-level block of the sandbox provider.")
    sandbox_config: SandboxConfig = Field(default=SandboxConfig(), description="The sandbox; it needs `python3`.")
    test_timeout_seconds: float = Field(15, gt=0, description="Bound of the tests of one function.")

    def bounds(self) -> dict[str, tuple[float, bool]]:
        """The tests are the one step that takes long."""
        return {"test_timeout_seconds": (self.test_timeout_seconds, False)}


class HumanEvalTask(TaskData):
    """One function."""

    prompt: str = Field(description="The beginning of the program: imports, helpers, signature and docstring.")
    entry_point: str = Field(description="Name of the function.")
    test: str = Field(description="Python code that defines `check(candidate)`.")


class HumanEval(ResourcesServer[HumanEvalConfig, HumanEvalTask]):
    """Rewards 1.0 when the function passes its tests, else 0.0."""

    config_type = HumanEvalConfig
    task_type = HumanEvalTask

    async def verify(self, session: Session[HumanEvalTask], request: VerifyRequest) -> VerifyResponse:
        """Runs what was answered, and its tests, in a fresh sandbox."""
        task = session.task
        solution = program(task.prompt, task.entry_point, request.response.output_text)
        if solution is None:
            return VerifyResponse.model_validate({"reward": 0.0, "outcome": "no code in the answer"})
        mark = secrets.token_hex(16)
        asked = {"program": solution, "test": task.test, "entry_point": task.entry_point, "mark": mark}
        result = await self._judged(session, json.dumps(asked).encode())
        outcome = told(result, mark, session.task_id.task_id)
        return VerifyResponse.model_validate({"reward": float(outcome == "passed"), "outcome": outcome})

    async def _judged(self, session: Session[HumanEvalTask], asked: bytes) -> ExecResult:
        spec = self.config.sandbox_config.spec(labels_of(self, session, "verifier"))
        session.sandbox = sandbox = await created(self, self.config.sandbox_provider, spec)
        return await sandbox.exec(
            ["python3", "-I", "-c", JUDGE],
            stdin=asked,
            timeout_seconds=self.config.test_timeout_seconds,
            max_output_bytes=OUTPUT_LIMIT_BYTES,
        )


def program(prompt: str, entry_point: str, answer: str) -> str | None:
    """The program that an answer makes of a prompt; None for an answer without code.

    An answer that defines the function replaces it, and keeps what the prompt has before it; any other one is taken as
    the rest of the prompt's function.
    """
    blocks: list[str] = BLOCK.findall(answer)
    definition = re.compile(rf"^(?:async +)?def +{re.escape(entry_point)}\b", re.MULTILINE)
    whole = next((block for block in reversed(blocks) if definition.search(block)), None)
    if whole is None and definition.search(answer) and not blocks:
        whole = answer
    if whole is not None:
        start = definition.search(prompt)
        return f"{prompt[: start.start()] if start else ''}\n{whole}\n"
    rest = blocks[-1] if blocks else answer
    return f"{prompt}{rest}\n" if rest.strip() else None


def told(result: ExecResult, mark: str, task_id: str) -> str:
    """What became of a function: `passed`, or why not.

    Raises:
        EpisodeFailure: `verifier_crashed`: the tests were never begun.
    """
    begun, _, rest = result.stdout_text.partition("\n")
    if begun != "begun" and not result.timed_out:
        said = (result.stderr_text.strip().splitlines() or [f"exit code {result.exit_code}"])[-1]
        raise EpisodeFailure("verifier_crashed", f"the tests of {task_id} could not be run: {said[:300]}")
    if result.timed_out:
        return "timed out"
    if result.exit_code == 0 and rest.rstrip("\n").endswith(mark):
        return "passed"
    lines = result.stderr_text.strip().splitlines()
    return lines[-1][:300] if lines else f"ended with exit code {result.exit_code} before its tests did"
