"""5,000 episodes at concurrency 500, one call in a hundred going wrong: each task is accounted for exactly once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TASKS = 5000

FAULTY = '''
import asyncio
import random

from gym.failures import EpisodeFailure
from gym.responses_api_models.embedded_model.app import EmbeddedModel
from gym.servers.base import ServerError
from resources_servers.example_session_state_mgmt.app import ExampleSessionStateMgmt

dice = random.Random(20)


async def maybe(kind):
    """One time in a hundred, something that really happens."""
    roll = dice.random()
    if roll < 0.0025:
        raise EpisodeFailure(kind, "the other side went away")
    if roll < 0.005:
        raise ServerError(503, "overloaded")
    if roll < 0.0075:
        raise RuntimeError("a bug")
    if roll < 0.01:
        await asyncio.sleep(0.2)


class Model(EmbeddedModel):
    async def respond(self, request, call):
        await maybe("provider_unreachable")
        return await super().respond(request, call)


class Counter(ExampleSessionStateMgmt):
    async def seed(self, session):
        await maybe("tool_server_error")
        await super().seed(session)

    async def verify(self, session, request):
        await maybe("verifier_crashed")
        return await super().verify(session, request)

    async def close(self, session):
        await maybe("tool_server_error")
        await super().close(session)
'''
BENCHMARK = """
config_paths:
  - resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
policy_script: policy.jsonl
policy_model: {responses_api_models: {embedded_model: {_target_: faulty.Model}}}
benchmark:
  _inherit_from: example_session_state_mgmt_resources_server
  resources_servers:
    example_session_state_mgmt:
      _target_: faulty.Counter
      datasets:
        - {name: many, type: benchmark, taskset: many, jsonl_fpath: rows.jsonl}
"""
TASK = {"responses_create_params": {"input": "Add three to the counter."}, "initial_count": 1, "expected_count": 4}
POLICY = {
    "task": "add",
    "match": "Add three",
    "turns": [[{"call": "increment_counter", "arguments": {"count": 3}}], [{"say": "Done."}]],
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "benchmarks" / "many").mkdir(parents=True)
    (folder / "benchmarks" / "many" / "benchmark.yaml").write_text(BENCHMARK)
    (folder / "faulty.py").write_text(FAULTY)
    rows = (json.dumps({"task_id": f"t{index}", **TASK}) for index in range(TASKS))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "policy.jsonl").write_text(json.dumps(POLICY) + "\n")
    command = [sys.executable, "-m", "gym.run", "benchmark=many", "concurrency=500", "output=out", "max_attempts=2"]
    run = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stderr
    assert "Traceback" not in run.stderr
    assert "never retrieved" not in run.stderr
    return folder / "out"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_task_is_accounted_for_exactly_once(output) -> None:
    finished = Counter(row["task_id"] for row in rows_of(output / "rollouts.jsonl"))
    failures = rows_of(output / "failures.jsonl")
    given_up = {row["task_id"] for row in failures if row["terminal"] or row["try"] == 1} - set(finished)
    assert max(finished.values()) == 1
    assert set(finished) | given_up == {f"t{index}" for index in range(TASKS)}
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["coverage"]["attempts"] == {"valid": len(finished), "failed": len(given_up), "planned": TASKS}


def test_no_failure_became_a_reward(output) -> None:
    assert {row["reward"] for row in rows_of(output / "rollouts.jsonl")} == {1.0}


def test_the_failures_are_named(output) -> None:
    kinds = Counter((row["stage"], row["kind"]) for row in rows_of(output / "failures.jsonl"))
    assert ("agent", "provider_unreachable") in kinds
    assert ("seed", "tool_server_error") in kinds
    assert ("verification", "verifier_crashed") in kinds
    assert all(kind for _, kind in kinds)
