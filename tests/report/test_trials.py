"""A run as a job of Harbor's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym.errors import UserError
from gym.report.trials import export_trials

ROW: dict[str, Any] = {
    "rollout_id": "mine.one.0", "taskset": "mine", "task_id": "one", "attempt": 0, "try": 1, "task_digest": "abc",
    "reward": 0.5, "rewards": {"fast": 0.0, "right": 1.0}, "started_at": 1000.0, "timings": {"total": 2.5},
    "usage": {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}, "cost_usd": 0.1},
    "response": {"output": [{"type": "message", "role": "assistant", "content": "done"}]},
}  # fmt: skip
FAILED = {"rollout_id": "mine.two.0", "taskset": "mine", "task_id": "two", "attempt": 0, "try": 0, "task_digest": "d",
          "kind": "reward_missing", "message": "no reward", "started_at": 1001.0, "timings": {"total": 1}}  # fmt: skip
CONFIG = "policy_model_name: demo\nagent: {responses_api_agents: {pi_agent: {}}}\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "results/mine"
    tasks = path / "rollouts/preprocessed_datasets/benchmark.jsonl"
    tasks.parent.mkdir(parents=True)
    given = {"responses_create_params": {"input": "Go."}, "task_data": {"folder": "/t/one", "digest": "sha256:f"}}
    tasks.write_text(json.dumps({"task_id": {"taskset": "mine", "task_id": "one"}, "task_input": given}) + "\n")
    (path / "rollouts.jsonl").write_text(json.dumps(ROW) + "\n")
    earlier = {**ROW, "kind": "sandbox_lost", "message": "gone", "try": 0}
    (path / "failures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (earlier, FAILED)))
    (path / "config.yaml").write_text(CONFIG)
    kept = path / "evidence/mine.one.0-a1/verifier/reward.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"fast": 0, "right": 1}')
    return path


def test_each_attempt_is_a_trial(run: Path, tmp_path: Path) -> None:
    lines = export_trials(run, tmp_path / "jobs")
    assert [(line["trial"], line["reward"]) for line in lines] == [("mine.one.0", 0.5), ("mine.two.0", None)]
    (job,) = (tmp_path / "jobs").iterdir()
    one, two = (json.loads((job / name / "result.json").read_text()) for name in ("mine.one.0", "mine.two.0"))
    assert one["verifier_result"] == {"rewards": {"fast": 0.0, "right": 1.0}}
    assert one["agent_result"] == {"n_input_tokens": 7, "n_cache_tokens": 2, "n_output_tokens": 3, "cost_usd": 0.1}
    assert (one["task_id"], one["task_checksum"]) == ({"path": "/t/one"}, "f")
    assert (one["agent_info"]["name"], one["agent_info"]["model_info"]) == ("pi", {"name": "demo"})
    assert (one["started_at"], one["finished_at"]) == ("1970-01-01T00:16:40+00:00", "1970-01-01T00:16:42.500000+00:00")
    assert two["exception_info"]["exception_type"] == "reward_missing"
    assert "verifier_result" not in two
    assert (job / "mine.one.0/verifier/reward.json").is_file()
    assert json.loads((job / "mine.one.0/agent/trajectory.json").read_text())["steps"][0]["message"] == "Go."
    assert json.loads((job / "result.json").read_text())["stats"] == {"n_completed_trials": 2, "n_errored_trials": 1}
    assert json.loads((job / "config.json").read_text())["job_name"] == job.name


def test_exporting_again_gives_the_same_ids(run: Path, tmp_path: Path) -> None:
    found = []
    for name in ("first", "second"):
        export_trials(run, tmp_path / name)
        found.append({path.name: json.loads(path.read_text())["id"] for path in (tmp_path / name).rglob("result.json")})
    assert found[0] == found[1]


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no rollouts\.jsonl; name the results directory of a run"):
        export_trials(tmp_path, tmp_path / "jobs")
