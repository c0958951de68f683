"""Prices: the case of an unknown price, patterns, and a table that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gym.apis.responses import Usage
from gym.capture.prices import Cost, Price, cost_of, load, price_of, shown, total_line
from gym.capture.usage import Tokens, tokens_of
from gym.errors import UserError

TABLE = """\
known: {input: 1.0, cached_input: 0.1, output: 2.0}   # USD per million tokens
local/*: {input: 0, cached_input: 0, output: 0}
"""
ROWS: list[tuple[str, Tokens, Cost]] = [
    ("vendor/new-model", Tokens(1000, 800, 100), Cost()),
    ("router/other", Tokens(1000, None, 100, cost_usd=0.0042), Cost(0.0042, "provider")),
    ("known", Tokens(1000, 800, 100), Cost(0.00048, "table")),
    ("local/free", Tokens(1000, None, 100), Cost(0.0, "table")),
]
"""Case 16, an unknown price: four calls, and what each costs."""


def test_an_unknown_price_is_no_price_of_zero(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(TABLE)
    prices = load(tmp_path / "prices.yaml")
    costs = [cost_of(tokens, price_of(prices, model)) for model, tokens, _ in ROWS]
    assert [cost.source for cost in costs] == [cost.source for _, _, cost in ROWS]
    assert [cost.usd for cost in costs] == pytest.approx([cost.usd for _, _, cost in ROWS])
    known = [cost.usd for cost in costs if cost.usd is not None]
    assert (
        total_line(sum(known), len(costs), len(costs) - len(known)) == "0.00468 USD known, 1 of 4 calls without a price"
    )


@pytest.mark.parametrize(
    ("tokens", "usd"),
    [(Tokens(), None), (Tokens(10, None, None), None), (Tokens(1_000_000, None, 0), 1.0), (Tokens(5, 10, 0), 5e-7)],
)
def test_tokens_that_are_not_known_have_no_cost(tokens: Tokens, usd: float | None, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(TABLE)
    assert cost_of(tokens, load(tmp_path / "prices.yaml")["known"]).usd == pytest.approx(usd)


@pytest.mark.parametrize(
    ("more", "usd"),
    [({"cache_write": 3.75, "cached_input": 0.3}, 0.37506), ({"cached_input": 0.3}, 0.30006), ({}, 0.3006)],
)
def test_what_is_written_to_a_cache_has_its_own_price(more: dict[str, float], usd: float) -> None:
    tokens = Tokens(100_200, 200, 0, cache_write_input_tokens=100_000)
    assert Price(input=3, output=15, **more).of(tokens) == pytest.approx(usd)


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        ({"cost": 0.01, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.01}}, 0.01),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.05}}, 0.051),
        ({"cost": 0, "cost_details": {"upstream_inference_cost": 0.05}}, 0.05),
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, None),
        ({"cost": 0, "is_byok": True}, None),
        ({"cost": 0}, 0.0),
    ],
)
def test_what_a_users_own_key_pays_is_no_zero(usage: dict[str, Any], usd: float | None) -> None:
    answer = json.dumps({"usage": {"prompt_tokens": 1, "completion_tokens": 1, **usage}}).encode()
    assert tokens_of("chat", answer, stream=False).cost_usd == pytest.approx(usd)
    assert Tokens.of(Usage(input_tokens=1, output_tokens=1, **usage)).cost_usd == pytest.approx(usd)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (total_line(0.00468, 4, 0), "0.00468 USD"),
        (total_line(None, 1, 1), "unknown, 1 of 1 call without a price"),
        (total_line(0.0, 3, 0), "0 USD"),
        (shown(12.5), "12.5"),
        (shown(2.5e-9), "2.5e-09"),
    ],
)
def test_amounts_are_told(line: str, expected: str) -> None:
    assert line == expected


NO_TABLES: list[tuple[str, list[str]]] = [
    ("known: {input: 1}", ["1  known.output  is missing"]),
    ("a: {input: 0, output: 0}\nknown:\n  input: -1\n  output: x", ["3  known.input  is no", "4  known.output  is no"]),
    ("known:\n  input: true\n  output: 1", ["2  known.input  is no amount of 0 or more"]),
    ("known:\n  input: 1\n  output: .inf", ["3  known.output  is no amount of 0 or more"]),
    ("known:\n  input: 1\n  output: 1\n  ouput: 1", ["4  known.ouput  is unknown"]),
    ("known: 3", ["1  known  is no price; a price is `{input: ..., "]),
    ("known: {input: 1, output: 1}\nknown: {input: 2, output: 2}", ["2  not valid YAML: found duplicate key known"]),
    ("- known", ["1  holds a list; a configuration file is a mapping"]),
    ("a: [", ["1  not valid YAML"]),
]


@pytest.mark.parametrize(("text", "said"), NO_TABLES)
def test_a_table_that_is_none_is_refused(text: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(UserError) as refused:
        load(tmp_path / "prices.yaml")
    lines = [str(problem).partition("prices.yaml:")[2] for problem in refused.value.problems]
    assert [line.startswith(start) for line, start in zip(lines, said, strict=True)] == [True] * len(said), lines


def test_a_switch_is_no_price() -> None:
    with pytest.raises(ValidationError, match="true and false are no amounts"):
        Price.model_validate({"input": True, "output": 1})
