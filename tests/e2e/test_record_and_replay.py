"""Runs that record their model calls, stay within budgets and are played back, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gym.capture.reader import calls, of_rollout
from gym.responses_api_models.replay_model.tape import base_of

ROOT = Path(__file__).resolve().parents[2]
SECRET = "hush-hush-4711"


def gym_run(*arguments: str, cwd: Path, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gym.run", "+experiment=onboarding", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    run = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == code, run.stdout + run.stderr
    return run


def rows(path: Path, name: str = "rollouts") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / f"{name}.jsonl").read_text().splitlines()]


def rewards(path: Path) -> dict[str, float]:
    return {row["rollout_id"]: row["reward"] for row in rows(path)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cwd = tmp_path_factory.mktemp("recorded")
    gym_run("output=out", cwd=cwd)
    return cwd / "out"


def test_every_call_of_a_run_is_recorded_and_counted(recorded: Path) -> None:
    for row in rows(recorded):
        tried = f"-a{row['try']}" if row["try"] else ""
        mine = list(of_rollout(recorded, row["rollout_id"] + tried))
        assert row["usage"]["model_calls"] == row["policy_calls"]["calls"] == len(mine)
        assert row["usage"]["input_tokens"] == sum(call.tokens.input_tokens or 0 for call in mine)
        assert len({call.session for call in mine}) == 1
        assert {call.activation for call in mine} == {1}
        said = [item for call in mine for item in call.answer_json()["output"]]
        assert said == [item for item in row["response"]["output"] if item["type"] != "function_call_output"]
    kept = {*rewards(recorded)}
    assert {base_of(call.rollout) for call in calls(recorded)} == kept
    assert json.loads((recorded / "metrics.json").read_text())["cost"]["known_usd"] == 0.0


@pytest.mark.parametrize("hosting", ["in_process", "process"])
def test_a_run_is_played_back_with_the_same_rewards(recorded: Path, hosting: str, tmp_path: Path) -> None:
    limit = ["limit=3"] if hosting == "process" else []
    replay = ["model-provider=replay", f"replay_from={recorded}", f"hosting={hosting}", "output=again", *limit]
    gym_run(*replay, cwd=tmp_path)
    again = rewards(tmp_path / "again")
    assert again.items() <= rewards(recorded).items()
    assert len(again) == (3 if limit else len(rewards(recorded)))
    # A busy machine may make a try fail; of several the last one is played.
    played = {base_of(call.rollout): call.answer for call in calls(tmp_path / "again")}
    before = {base_of(call.rollout): call.answer for call in calls(recorded)}
    assert played.items() <= before.items()


def test_another_prompt_is_told_as_the_difference_that_it_is(recorded: Path, tmp_path: Path) -> None:
    changed = "agent.responses_api_agents.simple_agent.system_prompt=Hello"
    replay = ["model-provider=replay", f"replay_from={recorded}", "output=again", "limit=1", changed]
    gym_run(*replay, cwd=tmp_path, code=1)
    (failure,) = rows(tmp_path / "again", "failures")
    assert (failure["kind"], failure["stage"], failure["terminal"]) == ("replay_mismatch", "agent", True)
    assert "call 1 differs from the recorded one at instructions: recorded " in failure["message"]
    assert json.loads((tmp_path / "again" / "metrics.json").read_text())["usage"]["model_calls"] == 1


def test_a_budget_of_a_rollout_leaves_a_graded_part(tmp_path: Path) -> None:
    gym_run("output=out", "limit=4", "max_policy_calls=1", cwd=tmp_path)
    for row in rows(tmp_path / "out"):
        assert (row["status"], row["usage"]["model_calls"]) == ("limit", 1)
        assert row["response"]["incomplete_details"] == {"reason": "max_policy_calls"}
        assert row["policy_calls"]["exhausted"] == ["max_policy_calls"]
        assert row["response"]["output"]


def test_the_budget_of_the_run_ends_it_and_the_rest_can_be_done_later(tmp_path: Path) -> None:
    few = gym_run("output=out", "concurrency=1", "max_run_calls=8", cwd=tmp_path, code=1)
    assert "stopped early: max_run_calls = 8 of the run is used up" in few.stderr
    assert "run_budget_exhausted: max_run_calls = 8" in few.stderr
    assert "max_run_calls" in json.loads((tmp_path / "out" / "metrics.json").read_text())["stop_reason"]
    done = rewards(tmp_path / "out")
    assert 0 < len(done) < 12
    failure = rows(tmp_path / "out", "failures")[-1]
    assert (failure["kind"], failure["usage"]["model_calls"] > 0) == ("run_budget_exhausted", True)
    gym_run("output=out", cwd=tmp_path)
    assert len(rewards(tmp_path / "out")) == 12
    assert sorted(path.name for path in (tmp_path / "out" / "model_calls").iterdir()) == [
        "policy_model.2.jsonl",
        "policy_model.jsonl",
    ]


@pytest.mark.parametrize("hosting", ["in_process", "process"])
def test_no_secret_is_recorded_wherever_the_model_server_runs(hosting: str, tmp_path: Path) -> None:
    prompt = "agent.responses_api_agents.simple_agent.system_prompt=${oc.env:MY_TOKEN}"
    gym_run("output=out", "limit=1", f"hosting={hosting}", prompt, cwd=tmp_path, MY_TOKEN=SECRET)
    recorded = list(calls(tmp_path / "out"))
    assert recorded[0].request["instructions"].startswith("***")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and SECRET in path.read_text()]


def test_capture_can_be_left_out(tmp_path: Path) -> None:
    gym_run("output=out", "limit=1", "capture=false", cwd=tmp_path)
    assert not (tmp_path / "out" / "model_calls").exists()
    assert rows(tmp_path / "out")[0]["policy_calls"]["calls"] > 0
