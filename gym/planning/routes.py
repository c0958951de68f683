"""Which environment server the tasks of a dataset go to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gym.errors import did_you_mean
from gym.planning.resolve import Instance, KeyPath
from gym.servers.contract import ServerRef
from gym.servers.environment import EnvironmentServer
from gym.tasks.datasets import DatasetConfig

if TYPE_CHECKING:
    from gym.planning.plan import Plan


def agent_of(environment: Instance) -> str | None:
    """The agent that an environment server runs, where it runs one."""
    ref = getattr(environment.config, "agent_server", None)
    return ref.name if isinstance(ref, ServerRef) else None


def check_agent_name(made: Plan) -> None:
    """`agent_name` must name an agent that some environment server runs."""
    chosen = made.resolved.settings.agent_name
    agents = sorted({name for item in made.of_type("environment_servers") if (name := agent_of(item))})
    if chosen is not None and chosen not in agents:
        fix = did_you_mean(chosen, agents) or f"agents of environment servers: {', '.join(agents) or 'none'}"
        made.resolved.problem(("agent_name",), f"no environment server runs the agent `{chosen}`", fix)


def _fronts(made: Plan, environment: Instance, declarer: Instance) -> bool:
    """Whether an environment server runs the tasks of a server: they are its own, or it or its agent names it."""
    if environment.name == declarer.name:
        return True
    agent = made.instances.get(agent_of(environment) or "")
    names_resources = getattr(environment.config, "resources_server", None) is not None
    refs = [*environment.config, *(agent.config if agent and not names_resources else ())]
    return declarer.name in {ref.name for _, ref in refs if isinstance(ref, ServerRef)}


def route(made: Plan, item: Instance, dataset: DatasetConfig, key: KeyPath) -> str | None:
    """The environment server for a dataset: the explicit route, else the only one that fronts its declarer."""
    settings = made.resolved.settings
    fronting = [environment for environment in made.of_type("environment_servers") if _fronts(made, environment, item)]
    wanted = settings.agent_name or (dataset.agent if dataset.taskset is None else None)
    if wanted is not None:
        fronting = [environment for environment in fronting if agent_of(environment) == wanted]
    name = _routed(made, item, dataset, key, [environment.name for environment in fronting])
    if name is None or dataset.taskset is not None or _takes_flat_rows(made, name):
        return name
    fix = "give the dataset a taskset, or use single_agent_turn_legacy"
    made.resolved.problem((*key, "name"), f"flat rows, which {name} does not take", fix)
    return None


def _takes_flat_rows(made: Plan, name: str) -> bool:
    server = made.instances[name].server_class
    assert issubclass(server, EnvironmentServer)
    return server.accepts_flat_rows


def _routed(made: Plan, item: Instance, dataset: DatasetConfig, key: KeyPath, fronting: list[str]) -> str | None:
    settings = made.resolved.settings
    explicit = settings.environment_server_routes.get(dataset.taskset or "")
    if dataset.taskset is None:
        explicit = settings.environment_server_name
        if settings.environment_routing_mode == "taskset":
            fix = "give the dataset a taskset, or choose another environment_routing_mode"
            made.resolved.problem((*key, "name"), "flat rows are refused by environment_routing_mode: taskset", fix)
            return None
    with_agent = f" with the agent {settings.agent_name}" if settings.agent_name else ""
    if explicit is not None and explicit not in fronting:
        taskset = dataset.taskset or dataset.name
        what = f"taskset `{taskset}` is routed to {explicit}, which does not use {item.name}{with_agent}"
        made.resolved.problem((*key, "taskset"), what, f"these do: {', '.join(fronting) or 'none'}")
        return None
    if explicit is None and len(fronting) != 1:
        what = "no environment server uses" if not fronting else "several environment servers use"
        what += f" {item.name}{with_agent}"
        fix = f"add environment_server_routes: {{{dataset.taskset}: <instance>}}"
        fix = fix if dataset.taskset else "choose with agent_name or environment_server_name"
        fix += f", one of {', '.join(fronting)}" if fronting else "; choose one with environment=single_agent_turn"
        made.resolved.problem((*key, "taskset"), what, fix)
        return None
    return explicit or fronting[0]
