"""Prices and budgets of a plan: which models they are for, and whether they can be kept at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gym.capture.budget import Budgets
from gym.capture.prices import FREE, Price, Prices, load, price_of
from gym.composition.roots import lookup
from gym.errors import UserError
from gym.planning.routes import agent_of
from gym.servers.contract import ServerRef
from gym.servers.model import ModelServer, ModelServerConfig

if TYPE_CHECKING:
    from gym.planning.plan import Plan
    from gym.planning.resolve import Instance


def check(made: Plan) -> None:
    """Gives the model servers their prices and the policies their budgets; refuses budgets that could not be kept."""
    prices = _prices(made)
    budgets = Budgets.model_validate({name: getattr(made.resolved.settings, name) for name in Budgets.model_fields})
    policies = {item.name for item in _policies(made)}
    for item in list(made.of_type("responses_api_models")):
        if not isinstance(item.config, ModelServerConfig):
            continue
        mine = {
            **item.config.prices,
            **{name: price for name, price in prices.items() if name not in item.config.prices},
        }
        update: dict[str, object] = {"prices": mine} if mine != item.config.prices else {}
        if item.name in policies and budgets.given():
            update["budgets"] = budgets
            _one_process(made, item, budgets)
            _priced(made, item, budgets, mine)
        if update:
            made.instances[item.name] = replace(item, config=item.config.model_copy(update=update))
    _one_policy(made, budgets, sorted(policies))


def policy_of(made: Plan, taskset: str) -> ServerRef | None:
    """The model server that a taskset's agent asks; None where that is not known."""
    environment = made.instances.get(made.routes.get(taskset, ""))
    agent = made.instances.get(agent_of(environment) or "") if environment else None
    ref = getattr(agent.config, "model_server", None) if agent else None
    return ref if isinstance(ref, ServerRef) and ref.name in made.instances else None


def _policies(made: Plan) -> Iterator[Instance]:
    """The model servers that agents ask. Others, a judge's for example, have no budget of the policy."""
    for agent in made.of_type("responses_api_agents"):
        ref = getattr(agent.config, "model_server", None)
        if isinstance(ref, ServerRef) and (found := made.instances.get(ref.name)) is not None:
            yield found


def _prices(made: Plan) -> Prices:
    given = made.resolved.settings.prices
    if not isinstance(given, str):
        return given or {}
    path = lookup(given)
    if path is None:
        made.resolved.problem(("prices",), f"no such file: {given}", "name a YAML file, or write the prices here")
        return {}
    try:
        return load(path)
    except UserError as error:
        made.resolved.problems.extend(error.problems)
        return {}


def _one_process(made: Plan, item: Instance, budgets: Budgets) -> None:
    number = item.config.num_workers or 1
    if number > 1 and made.hosting[item.name].is_apart:
        name = next(iter(budgets.given()))
        what = f"{item.name} has {number} processes (num_workers), and each would count by itself"
        made.resolved.problem((name,), what, "leave num_workers out; one process serves many calls at once")


def _one_policy(made: Plan, budgets: Budgets, policies: list[str]) -> None:
    of_run = next((name for name in budgets.given() if name.startswith("max_run_")), None)
    if of_run is not None and len(policies) > 1:
        what = f"{', '.join(policies)} are several policies, and each would count by itself"
        made.resolved.problem(
            (of_run,), what, "run them one after another, or give budgets of a rollout (max_policy_...)"
        )


def _priced(made: Plan, item: Instance, budgets: Budgets, prices: dict[str, Price]) -> None:
    """A budget in money needs a price: without one nothing would ever count against it."""
    assert issubclass(item.server_class, ModelServer)
    assert isinstance(item.config, ModelServerConfig)
    free = item.server_class.scripted or item.server_class.costs_nothing
    model = item.config.served_model
    if (FREE if free else price_of(prices, model or "")) is not None:
        return
    for money, tokens in (("max_policy_cost_usd", "max_policy_tokens"), ("max_run_cost_usd", "max_run_tokens")):
        if getattr(budgets, money) is not None and getattr(budgets, tokens) is None:
            what = f"the model {model or item.name} has no price, so that its cost would never reach this budget"
            made.resolved.problem((money,), what, f"add it to `prices`, or give {tokens} as well")
