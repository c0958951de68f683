"""`gym eval run` with files, flags and overrides; episodes themselves are tested elsewhere."""

from __future__ import annotations

import json

from tests.cli.commands import gym

COUNTER = ("--benchmark", "onboarding", "--agent", "onboarding", "--model-provider", "embedded")


def test_flags_reach_the_run_and_the_same_command_continues(tmp_path) -> None:
    command = ("eval", "run", *COUNTER, "sandbox.allow_unisolated=true", "--limit", "9", "--output", "my runs/a,b=c")
    first = gym(*command, "--num-repeats", "2", "--json", cwd=tmp_path)
    told = json.loads(first.stdout)
    assert (told["exit_code"], told["stop_reason"], told["results"]) == (0, None, "my runs/a,b=c")
    rows = (tmp_path / "my runs" / "a,b=c" / "rollouts.jsonl").read_text().splitlines()
    assert len(rows) == 18
    again = gym(*command, "--num-repeats", "2", cwd=tmp_path)
    assert "18 of 18 attempts" in again.stdout
    assert (tmp_path / "my runs" / "a,b=c" / "rollouts.jsonl").read_text().splitlines() == rows


def test_failed_episodes_are_exit_code_1_and_wrong_input_is_2(tmp_path) -> None:
    (tmp_path / "other.jsonl").write_text('{"task": "x", "match": "no task says this", "turns": [[{"say": "x"}]]}')
    command = ("eval", "run", *COUNTER, "--limit", "1", "--max-attempts", "1", "sandbox.allow_unisolated=true")
    failed = gym(*command, "--output", "failed", "policy_script=other.jsonl", cwd=tmp_path, code=1)
    assert "0 of 1 attempts" in failed.stdout
    wrong = gym(*command, "--output", "wrong", "policy_script=nowhere.jsonl", cwd=tmp_path, code=2)
    assert "nowhere.jsonl" in wrong.stderr


def test_tasks_are_chosen_by_their_ids(tmp_path) -> None:
    command = ("eval", "run", *COUNTER, "sandbox.allow_unisolated=true", "--output", "out")
    wrong = gym(*command, "--task-ids", "count-wrods", cwd=tmp_path, code=2)
    assert "task_ids  no task has the id `count-wrods`; did you mean `count-words`?" in wrong.stderr
    gym(*command, "--task-ids", "workspace/count-words,csv-*", "--limit", "5", cwd=tmp_path)
    rows = (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()
    assert sorted(json.loads(row)["task_id"] for row in rows) == ["count-words", "csv-to-json"]
