from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from gym.capture.budget import PolicyCalls
from gym.report.metrics import score_rows
from gym.report.table import run_table
from gym.rollouts.journal import Journal, load
from gym.rollouts.policy_calls import fields

COUNTED = PolicyCalls(calls=3, input_tokens=100, output_tokens=20, cost_sources={"table": 3}, cost_usd=0.1)


@pytest.mark.parametrize(
    ("said", "usage", "differences"),
    [
        ({}, {"input_tokens": 100, "output_tokens": 20, "model_calls": 3}, None),
        ({"model_calls": 3, "input_tokens": 100}, {"model_calls": 3, "input_tokens": 100, "output_tokens": 20}, None),
        (
            {"model_calls": 2, "output_tokens": 10**9, "total_tokens": 10**9, "output_tokens_details": {"x": 1}},
            {"model_calls": 3, "output_tokens": 20, "input_tokens": 100, "total_tokens": 120},
            {"model_calls": {"harness": 2, "counted": 3}, "output_tokens": {"harness": 10**9, "counted": 20}},
        ),
    ],
)
def test_a_row_tells_where_harness_and_record_differ(said: Any, usage: Any, differences: Any) -> None:
    row = fields(said, COUNTED)
    assert {name: row["usage"][name] for name in usage} == usage
    assert row.get("usage_differences") == differences
    assert row["policy_calls"]["calls"] == 3


def test_a_harness_knows_no_tokens_that_nobody_told() -> None:
    """Its 0 is what Gym's Messages give where a number is demanded."""
    said = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "model_calls": 0}
    usage = fields(said, PolicyCalls(calls=2, calls_without_usage=2))["usage"]
    assert {name: usage[name] for name in usage if not name.startswith("calls_")} == {"model_calls": 2}
    assert fields(said, COUNTED)["usage"]["input_tokens"] == 100


def test_details_are_those_that_were_counted() -> None:
    said = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 9, "written": 1}}
    calls = COUNTED.model_copy(update={"cached_input_tokens": 40, "reasoning_tokens": 5})
    usage = fields(said, calls)["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 40, "written": 1}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 5}


def test_a_count_of_one_of_several_processes_replaces_nothing() -> None:
    told = fields({"input_tokens": 300}, COUNTED.model_copy(update={"partial": True}))
    assert told["usage"]["input_tokens"] == 300
    assert told["usage_differences"] == {"input_tokens": {"harness": 300, "counted": 100}}


def test_a_model_server_that_does_not_count_changes_nothing() -> None:
    assert fields({"model_calls": 1}, None) == {"usage": {"model_calls": 1}}


def test_a_run_says_in_how_many_rollouts_they_differ(tmp_path: Path) -> None:
    row = {"taskset": "t", "task_id": "a", "try": 0, "task_digest": "d", "reward": 1.0, "status": "ok"}
    said = [{"input_tokens": 10**9}, {"input_tokens": 100}, {}]
    with Journal(tmp_path / "rollouts.jsonl") as journal:
        for attempt, usage in enumerate(said):
            journal.append({**row, "rollout_id": f"t.a.{attempt}", "attempt": attempt, **fields(usage, COUNTED)})
    scores, file = score_rows(load(tmp_path / "rollouts.jsonl").rows.values(), [], 3, {"t": 1}), io.StringIO()
    assert (scores.summary()["usage_differs"], scores.summary()["usage"]["input_tokens"]) == (1, 300)
    run_table(scores.summary(), scores.tasks(), tmp_path, file)
    assert "usage differs" in file.getvalue()
