"""Grades a patch: the instance's own tests, in a fresh sandbox without a network; their log is read in another one.

What the tests run is the agent's code, so nothing of that sandbox is believed but what its tests print. A try that says
nothing about the patch is made again; if none does, the verifier has failed, and there is no reward.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gym.failures import EpisodeFailure
from gym.sandbox.interface import ExecResult, Sandbox
from resources_servers.swebench_pro.repository import Repository, last_line
from resources_servers.swebench_pro.task import SwebenchProTask

LOG_LIMIT_BYTES = 64 << 20
TAIL_CHARACTERS = 4000
PASSED, FAILED = "PASSED", "FAILED"
COLOR = re.compile(r"\x1b\[[0-9;]*m")
BEGUN = re.compile(r"^=+ test session starts =+\s*$", re.MULTILINE)
OVER = re.compile(r"^=+ .*\bin \d+(\.\d+)? ?s(econds)?\b.*=+\s*$", re.MULTILINE)
Start = Callable[[str], Awaitable[Sandbox]]


class Inconclusive(Exception):
    """A try that says nothing about the patch."""


@dataclass(frozen=True)
class Limits:
    """Bounds of grading, in seconds.

    Attributes:
        command: One command beside the tests.
        tests: The tests of one try.
        tries: How often an inconclusive try is made in all.
    """

    command: float
    tests: float
    tries: int


@dataclass(frozen=True)
class Grade:
    """What the tests say.

    Attributes:
        tests: Status of each test that was found, by name.
        missing: Required tests that did not pass.
        error: Why the patch does not fit, or its tests count for nothing.
        output: End of what the tests printed.
    """

    resolved: bool
    patch_applied: bool
    timed_out: bool = False
    tests: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    error: str | None = None
    output: str = ""


async def grade(task: SwebenchProTask, patch: bytes, start: Start, limits: Limits) -> Grade:
    """Grades a patch; `start` makes a sandbox of the task's image for a role.

    Raises:
        EpisodeFailure: `verifier_crashed`: no try said anything. Whatever the sandboxes raise.
    """
    reasons: list[str] = []
    for _ in range(limits.tries):
        try:
            return await _try(task, patch, start, limits)
        except Inconclusive as reason:
            reasons.append(str(reason))
    what = f"{task.instance_id} could not be graded in {limits.tries} tries: {'; '.join(dict.fromkeys(reasons))}"
    raise EpisodeFailure("verifier_crashed", what, stage="verification")


async def _try(task: SwebenchProTask, patch: bytes, start: Start, limits: Limits) -> Grade:
    sandbox = await start("grading")
    try:
        repository = Repository(sandbox, task, limits.command)
        problem = await repository.apply(patch)
        if problem is not None:
            return Grade(False, patch_applied=False, missing=sorted(task.required), error=problem)
        if task.set_tests:
            checked_out = await repository.run(task.set_tests)
            if checked_out.exit_code != 0:
                raise Inconclusive(f"its tests could not be put in place: {last_line(checked_out)}")
        result = await _run_tests(sandbox, task, limits.tests)
    finally:
        await sandbox.stop()
    tests = await _parsed(task, result, start, limits.command)
    return _graded(task, result, tests)


async def _run_tests(sandbox: Sandbox, task: SwebenchProTask, seconds: float) -> ExecResult:
    script = f"/tmp/gym-run-{sandbox.id}.sh"
    await sandbox.upload(task.run_script.encode(), script, mode=0o755)
    return await sandbox.exec(
        ["bash", script, ",".join(task.selected_test_files_to_run)],
        timeout_seconds=seconds,
        max_output_bytes=LOG_LIMIT_BYTES,
    )


async def _parsed(task: SwebenchProTask, result: ExecResult, start: Start, seconds: float) -> dict[str, str] | None:
    """Status of each test as the instance's parser reads the log; None where it wrote nothing."""
    if result.stdout_truncated or result.stderr_truncated:
        raise Inconclusive(f"its tests printed more than {LOG_LIMIT_BYTES} bytes")
    sandbox = await start("parser")
    try:
        folder = f"/tmp/gym-logs-{sandbox.id}"
        files = {"parser.py": task.parser_script.encode(), "stdout.txt": result.stdout, "stderr.txt": result.stderr}
        for name, content in files.items():
            await sandbox.upload(content, f"{folder}/{name}")
        paths = [f"{folder}/{name}" for name in ("parser.py", "stdout.txt", "stderr.txt", "output.json")]
        said = await sandbox.exec(["python3", *paths], timeout_seconds=seconds)
        if said.exit_code == 127:
            said = await sandbox.exec(["python", *paths], timeout_seconds=seconds)
        try:
            content = await sandbox.read_file(paths[-1], LOG_LIMIT_BYTES)
        except FileNotFoundError:
            return None
    finally:
        await sandbox.stop()
    return statuses(content)


def statuses(content: bytes) -> dict[str, str] | None:
    """Status by test of what a parser wrote; None where it is not what it should be."""
    try:
        tests = json.loads(content)["tests"]
        return {str(test["name"]): str(test["status"]).upper() for test in tests}
    except (ValueError, KeyError, TypeError):
        return None


def is_cut_short(log: str) -> bool:
    """Whether a run of pytest began in a log, and did not come to its last line: the code under test has ended it."""
    plain = COLOR.sub("", log)
    return len(BEGUN.findall(plain)) > len(OVER.findall(plain))


def _graded(task: SwebenchProTask, result: ExecResult, tests: dict[str, str] | None) -> Grade:
    """The verdict of one try.

    Raises:
        Inconclusive: The parser wrote nothing; or time ran out, and no required test was seen to fail.
    """
    if tests is None:
        raise Inconclusive(f"its parser read nothing in the log of the tests: {last_line(result)}")
    missing = sorted(name for name in task.required if tests.get(name) != PASSED)
    if result.timed_out and missing and not any(tests.get(name) == FAILED for name in missing):
        raise Inconclusive(f"its tests took longer than {result.duration_seconds:.0f} s")
    error = None
    if not missing and is_cut_short(result.stdout_text + result.stderr_text):
        if result.timed_out:
            raise Inconclusive(f"its tests took longer than {result.duration_seconds:.0f} s")
        missing, error = (
            sorted(task.required),
            "pytest was ended before it was done: what it had printed counts for nothing",
        )
    output = (result.stdout_text + result.stderr_text)[-TAIL_CHARACTERS:]
    return Grade(not missing, True, result.timed_out, tests, missing, error, output)
