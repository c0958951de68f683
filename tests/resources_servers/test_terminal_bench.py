"""Terminal-Bench 2.1 as a user prepares and runs it, on task folders of our own and a real Docker daemon."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.benchmarks.commands import gym
from tests.conftest import needs
from tests.harbor.folders import FIXTURES
from tests.sandbox.conftest import daemon_lacks

TASKS = ("plain", "image", "daemons", "users", "broken-verifier")
RUN = (
    "benchmark=terminal_bench_2_1",
    "sandbox=docker",
    "policy_script=say.jsonl",
    "allow_unsupported_pairing=true",
    "terminal_bench_2_1_folder=checkout",
)
GOLDEN = "++benchmark.resources_servers.terminal_bench_2_1.golden=true"


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    needs("Docker", present=not daemon_lacks(), reason=daemon_lacks())
    for name in TASKS:
        shutil.copytree(FIXTURES / name, tmp_path / "checkout" / name)
    line = {"task": "any", "match": " ", "turns": [[{"say": "I will not."}]]}
    (tmp_path / "say.jsonl").write_text(json.dumps(line))
    words = ("eval", "prepare", "--benchmark", "terminal_bench_2_1", "terminal_bench_2_1_folder=checkout")
    run = gym(*words, cwd=tmp_path, module="gym")
    assert run.returncode == 0, run.stderr
    return tmp_path


@pytest.mark.parametrize(("more", "reward"), [((GOLDEN,), 1.0), ((), 0.0)])
def test_solutions_get_1_and_doing_nothing_gets_0(prepared: Path, more: tuple[str, ...], reward: float) -> None:
    run = gym(*RUN, *more, "output=out", cwd=prepared)
    rewards = [json.loads(line)["reward"] for line in (prepared / "out/rollouts.jsonl").read_text().splitlines()]
    assert rewards == [reward] * 4, run.stdout + run.stderr
    failures = [json.loads(line) for line in (prepared / "out/failures.jsonl").read_text().splitlines()]
    assert {failure["task_id"] for failure in failures} == {"broken-verifier"}
    assert run.returncode == 1


def test_a_folder_that_has_changed_is_no_task_any_more(prepared: Path) -> None:
    (prepared / "checkout/plain/instruction.md").write_text("Do something else.\n")
    gym(*RUN, "output=out", cwd=prepared)
    failures = [json.loads(line) for line in (prepared / "out/failures.jsonl").read_text().splitlines()]
    (plain,) = [failure for failure in failures if failure["task_id"] == "plain"]
    assert plain["kind"] == "malformed_task"
    assert "has changed since its row was made" in plain["message"]


def test_a_checkout_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    run = gym("eval", "prepare", "--benchmark", "terminal_bench_2_1", cwd=tmp_path, module="gym")
    assert run.returncode == 2
    assert "put the task folders of a checkout of Terminal-Bench 2.1 there" in run.stderr
