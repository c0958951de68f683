from __future__ import annotations

from typing import Any

import pytest

from gym.capture.budget import PolicyCalls
from gym.rollouts.policy_calls import fields

COUNTED = PolicyCalls(calls=3, input_tokens=100, output_tokens=20, cost_sources={"table": 3}, cost_usd=0.1)


@pytest.mark.parametrize(
    ("said", "usage", "differences"),
    [
        ({}, {"input_tokens": 100, "output_tokens": 20, "model_calls": 3}, None),
        ({"model_calls": 3, "input_tokens": 100}, {"model_calls": 3, "input_tokens": 100, "output_tokens": 20}, None),
        (
            {"model_calls": 2, "output_tokens": 18},
            {"model_calls": 2, "output_tokens": 18, "input_tokens": 100},
            {"model_calls": {"harness": 2, "counted": 3}, "output_tokens": {"harness": 18, "counted": 20}},
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
    assert {name: usage[name] for name in usage if not name.startswith("calls_")} == {"model_calls": 0}
    assert fields(said, COUNTED)["usage"]["input_tokens"] == 0


def test_a_model_server_that_does_not_count_changes_nothing() -> None:
    assert fields({"model_calls": 1}, None) == {"usage": {"model_calls": 1}}
