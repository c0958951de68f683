"""Prices and budgets at planning: who gets them, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from gym.capture.budget import Budgets
from gym.composition.compose import compose
from gym.errors import UserError
from gym.planning.metering import policy_of
from gym.planning.plan import Plan, plan
from gym.planning.resolve import resolve
from gym.servers.model import ModelServerConfig

VLLM = ["model-provider=vllm", "++sandbox.allow_unisolated=true"]
KNOWN = "gpt-9: {input: 1.0, cached_input: 0.1, output: 2.0}\nlocal/*: {input: 0, output: 0}\n"


def made(*arguments: str) -> Plan:
    return plan(resolve(compose(["+experiment=onboarding", *arguments])))


def policy(found: Plan) -> ModelServerConfig:
    config = found.instances["policy_model"].config
    assert isinstance(config, ModelServerConfig)
    return config


@pytest.fixture(autouse=True)
def _model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_MODEL_NAME", "gpt-9")


def test_without_budgets_and_prices_nothing_is_added() -> None:
    found = made()
    assert policy(found).prices == {}
    assert policy(found).budgets == Budgets()
    assert policy_of(found, "counter") == policy_of(found, "workspace")
    assert getattr(policy_of(found, "counter"), "name", None) == "policy_model"


def test_a_policy_gets_its_budgets_and_prices(project) -> None:
    project({"prices.yaml": KNOWN})
    found = made("prices=prices.yaml", "max_policy_calls=3", "max_policy_cost_usd=0.5", *VLLM)
    assert policy(found).budgets == Budgets(max_policy_calls=3, max_policy_cost_usd=0.5)
    assert policy(found).prices["gpt-9"].cached_input == 0.1
    assert sorted(policy(found).prices) == ["gpt-9", "local/*"]


def test_prices_may_stand_in_the_configuration(project) -> None:
    project({"env.yaml": "prices:\n  gpt-9: {input: 1.0, output: 2.0}\n  local/*: {input: 0, output: 0}\n"})
    assert sorted(policy(made("max_run_cost_usd=4", *VLLM)).prices) == ["gpt-9", "local/*"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            [*VLLM, "max_policy_cost_usd=1"],
            "command line: max_policy_cost_usd=1  max_policy_cost_usd  the model gpt-9 has no price, so that its cost "
            "would never reach this budget; add it to `prices`, or give max_policy_tokens as well",
        ),
        ([*VLLM, "max_run_cost_usd=1", "max_policy_tokens=9"], "or give max_run_tokens as well"),
        ([*VLLM, "max_policy_cost_usd=1", "max_policy_tokens=9"], None),
        ([*VLLM, "max_policy_cost_usd=1", "prices=prices.yaml"], None),
        (["max_policy_cost_usd=1"], None),
        (["prices=no.yaml"], "command line: prices=no.yaml  prices  no such file: no.yaml"),
        (["prices=bad.yaml"], "bad.yaml:1  gpt-9.output  is missing; a price is"),
        (["max_policy_calls=0"], "max_policy_calls"),
        (
            ["max_run_calls=5", "hosting=process", "++policy_model.responses_api_models.embedded_model.num_workers=2"],
            "max_run_calls  policy_model has 2 processes (num_workers), and each would count by itself",
        ),
        (["max_run_calls=5", "++policy_model.responses_api_models.embedded_model.num_workers=2"], None),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(project, arguments: list[str], told: str | None) -> None:
    project({"prices.yaml": KNOWN, "bad.yaml": "gpt-9: {input: 1}\n"})
    if told is None:
        made(*arguments)
        return
    with pytest.raises(UserError) as caught:
        made(*arguments)
    (problem,) = map(str, caught.value.problems)
    assert told in problem
