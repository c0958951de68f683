"""What a run cost: exact sums, what they leave out, and how it is told."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from gym.capture.budget import PolicyCalls
from gym.report.metrics import Scores
from gym.report.table import run_table
from gym.rollouts.policy_calls import fields

CALLS = [
    PolicyCalls(calls=1, input_tokens=1000, output_tokens=100, calls_without_price=1),
    PolicyCalls(calls=1, input_tokens=1000, output_tokens=100, cost_usd=0.0042, cost_sources={"provider": 1}),
    PolicyCalls(calls=2, cost_usd=0.00048, cost_sources={"table": 2}, calls_without_usage=1),
]


def told(usages: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
    scores, file = Scores(1, {"t": 1}), io.StringIO()
    scores.add("t", "a", 0, 1.0)
    for usage in usages:
        scores.cost.add(usage)
    summary = scores.summary()
    run_table(summary, scores.tasks(), Path("out"), file)
    return summary["cost"], next((line for line in file.getvalue().splitlines() if line.startswith("cost")), "")


def test_a_total_says_what_it_leaves_out() -> None:
    cost, line = told([fields({}, calls)["usage"] for calls in CALLS])
    assert cost is not None
    assert (cost["calls"], cost["calls_without_price"], cost["known_usd"]) == (4, 1, pytest.approx(0.00468))
    assert line.removeprefix("cost").strip() == "0.00468 USD known, 1 of 4 calls without a price"


def test_what_costs_nothing_is_not_told() -> None:
    free = PolicyCalls(calls=2, cost_usd=0.0, cost_sources={"free": 2})
    assert told([fields({}, free)["usage"]]) == (
        {"known_usd": 0.0, "calls": 2, "calls_without_price": 0, "text": "0 USD"},
        "",
    )
    assert told([fields({"input_tokens": 3}, None)["usage"]]) == (None, "")


def test_a_row_has_what_was_counted() -> None:
    row = fields({"input_tokens": 7, "total_tokens": 9}, CALLS[1])
    assert row["usage"] == {
        "input_tokens": 1000,
        "total_tokens": 1100,
        "output_tokens": 100,
        "model_calls": 1,
        "cost_usd": 0.0042,
        "calls_with_price": 1,
        "calls_without_price": 0,
    }
    assert row["policy_calls"]["input_tokens"] == 1000
    assert "cost_usd" not in fields({}, CALLS[0])["usage"]
