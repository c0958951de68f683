"""A resolved configuration becomes a plan: what starts, where each taskset goes, what was checked.

Everything that can be known is checked here, before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gym.composition.groups import GROUPS
from gym.environment_servers.legacy_agent.app import LegacyAgentConfig
from gym.environment_servers.single_agent_turn.app import SingleAgentTurnConfig
from gym.errors import did_you_mean
from gym.planning import budget, capabilities, hosting, metering, routes
from gym.planning.datasets import PlannedDataset, choose_datasets
from gym.planning.hosting import Hosted
from gym.planning.resolve import Component, Instance, KeyPath, Resolved
from gym.sandbox.spec_config import SandboxConfig
from gym.servers.agent import AgentServer, AgentServerConfig
from gym.servers.base import Server, routes_of
from gym.servers.contract import ServerRef, Transport
from gym.servers.model import ModelServer
from gym.servers.resources import ResourcesServer, ResourcesServerConfig

if TYPE_CHECKING:
    from gym.sandbox.interface import SandboxProvider


@dataclass
class Plan:
    """What a run will do.

    Attributes:
        routes: Environment server of each taskset.
        providers: Sandbox providers by block, and `blocks` what they are made of.
        hosting: How each instance runs.
        notes: Things worth knowing that are no errors: waived checks, how sandboxes isolate.
    """

    resolved: Resolved
    instances: dict[str, Instance] = field(default_factory=dict)
    datasets: list[PlannedDataset] = field(default_factory=list)
    routes: dict[str, str] = field(default_factory=dict)
    providers: dict[str, SandboxProvider] = field(default_factory=dict)
    blocks: dict[str, Component] = field(default_factory=dict)
    hosting: dict[str, Hosted] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of_type(self, server_type: str) -> Iterator[Instance]:
        """The instances of a server type."""
        return (item for item in self.instances.values() if item.type == server_type)


def plan(resolved: Resolved, *, datasets: bool = True) -> Plan:
    """Checks a configuration and plans its run.

    Args:
        datasets: Whether the run's datasets are needed, and so checked.

    Raises:
        UserError: Every problem of the configuration, in the order of files and lines.
    """
    made = Plan(resolved, dict(resolved.instances))
    if resolved.composed.problems:
        resolved.raise_problems()
    _available(made)
    _references(made)
    _bindings(made)
    capabilities.check(made)
    _sandboxes(made)
    hosting.check(made)
    budget.check(made)
    metering.check(made)
    if datasets and not resolved.problems:
        choose_datasets(made)
        _harbor(made)
    resolved.raise_problems()
    return made


def _available(made: Plan) -> None:
    """Some implementations have settings but cannot run yet."""
    for item in made.instances.values():
        if item.server_class.unavailable:
            made.resolved.problem(item.key, f"{item.implementation} cannot run yet: {item.server_class.unavailable}")
    for component in made.resolved.components.values():
        if component.component_class.unavailable:
            what = f"{component.component_class.name} cannot run yet: {component.component_class.unavailable}"
            made.resolved.problem((component.name,), what)


def _references(made: Plan) -> None:
    for item in made.instances.values():
        for name, value in item.config:
            if isinstance(value, ServerRef):
                _reference(made, (*item.key, name), value)


def _reference(made: Plan, key: KeyPath, ref: ServerRef) -> None:
    found = made.instances.get(ref.name)
    if found is not None and found.type == ref.type:
        return
    if found is None and ref.name in made.resolved.composed.values and made.resolved.problems:
        return  # the instance exists, and its own problem is told already
    names = [item.name for item in made.of_type(ref.type)]
    if found is None and ref.name in GROUPS and not names:
        fix = f"choose one: {ref.name}=NAME (`gym list {ref.name}s`)"
        fix += ", or give `gym eval run` a folder of Harbor tasks" if ref.name == "benchmark" else ""
        made.resolved.problem((ref.name,), f"no {ref.name} is chosen", fix)
        return
    what = f"refers to {ref.type} `{ref.name}`, "
    what += f"but `{ref.name}` is one of {found.type}" if found else "which does not exist"
    listed = f"instances of that type: {', '.join(names)}" if names else "no instance of that type starts"
    made.resolved.problem((*key, "name"), what, did_you_mean(ref.name, names) or listed)


def _bindings(made: Plan) -> None:
    for item in made.of_type("environment_servers"):
        config = item.config
        if isinstance(config, SingleAgentTurnConfig):
            resources = made.instances.get(config.resources_server.name)
            agent = made.instances.get(config.agent_server.name)
            if resources and agent and resources.type == "resources_servers" and agent.type == "responses_api_agents":
                _pairing(made, item, resources, agent)
                _transports(made, item, resources, agent)
                _place(made, item, resources, agent)
                _network(made, resources, agent)
        elif isinstance(config, LegacyAgentConfig):
            _relay(made, item, config)
    _unused_agent(made)


def _relay(made: Plan, environment: Instance, config: LegacyAgentConfig) -> None:
    """An agent that is to run whole episodes must have a `/run`; one that makes its routes itself may have one."""
    agent = made.instances.get(config.agent_server.name)
    if agent is None or agent.type != "responses_api_agents":
        return
    server = agent.server_class
    makes_routes = server.build_routes is not Server.build_routes
    if not makes_routes and "/run" not in {path for path, *_ in routes_of(server)}:  # type: ignore[arg-type]
        what = f"{agent.name} ({agent.implementation}) has no `/run` that runs whole episodes; it has sessions"
        fix = "use single_agent_turn, with a resources_server"
        made.resolved.problem((*environment.key, "agent_server"), what, fix)


def _pairing(made: Plan, environment: Instance, resources: Instance, agent: Instance) -> None:
    config, agent_config = resources.config, agent.config
    assert isinstance(config, ResourcesServerConfig)
    assert isinstance(agent_config, AgentServerConfig)
    ref = agent_config.model_server
    model = made.instances.get(ref.name) if ref else None
    checks = [("allowed_agents", config.allowed_agents, agent)]
    checks += [("allowed_model_types", config.allowed_model_types, model)] if model else []
    for name, allowed, partner in checks:
        if allowed is None or partner.implementation in allowed:
            continue
        what = (
            f"{resources.implementation} does not declare {partner.implementation} in its {name} ({', '.join(allowed)})"
        )
        if made.resolved.settings.allow_unsupported_pairing:
            made.notes.append(f"waived by --allow-unsupported-pairing: {what}")
        else:
            fix = "choose one of these, or pass --allow-unsupported-pairing"
            made.resolved.problem((*environment.key, "agent_server"), what, fix)


def _place(made: Plan, environment: Instance, resources: Instance, agent: Instance) -> None:
    """A harness that needs a sandbox gets one of the task, or makes one."""
    assert issubclass(agent.server_class, AgentServer)
    if not agent.server_class.needs_sandbox:
        return
    on_host = getattr(agent.config, "execution", "sandbox") == "host"
    lent = getattr(resources.config, "sandbox_provider", None) is not None
    if on_host and lent:
        what = f"{agent.name} would run on this machine, but the task's files are in the sandboxes of {resources.name}"
        made.resolved.problem((*agent.key, "execution"), what, "leave it out: the harness then runs in the sandbox")
    elif not on_host and not lent and getattr(agent.config, "sandbox_provider", None) is None:
        what = f"{agent.name} needs a sandbox: {resources.name} lends none, and the agent has no `sandbox_provider`"
        fix = "set sandbox_provider: sandbox, and choose one with sandbox=local or sandbox=docker"
        made.resolved.problem((*environment.key, "agent_server"), what, fix)


def _network(made: Plan, resources: Instance, agent: Instance) -> None:
    """A harness inside a task's sandbox must reach its model: there, no network means the Gym servers only."""
    spec = getattr(resources.config, "sandbox_config", None)
    assert issubclass(agent.server_class, AgentServer)
    if not agent.server_class.needs_sandbox or not isinstance(spec, SandboxConfig) or spec.network != "none":
        return
    settled = spec.model_copy(update={"network": "gym_only"})
    config = resources.config.model_copy(update={"sandbox_config": settled})
    made.instances[resources.name] = replace(resources, config=config)
    made.notes.append(f"{agent.name} runs in the sandboxes of {resources.name}, which get the network gym_only for it")


def _transports(made: Plan, environment: Instance, resources: Instance, agent: Instance) -> None:
    """Settles how the agent gets the tools of Resources; what is asked for must suit both sides."""
    config = environment.config
    assert isinstance(config, SingleAgentTurnConfig)
    assert issubclass(resources.server_class, ResourcesServer)
    assert issubclass(agent.server_class, AgentServer)
    offered, accepted = resources.server_class.transports, agent.server_class.transports
    wanted = config.resources_tool_transports
    if wanted is None:
        has_tools = bool(resources.server_class.tools())
        order: tuple[Transport, ...] = ("direct_http", "mcp") if has_tools else ("direct_http",)
        common = [kind for kind in order if kind in offered & accepted][:1]
        if not common and has_tools:
            made.notes.append(
                f"{agent.name} gets no tools of {resources.name}: offered over {_listed(offered)}, "
                f"accepted over {_listed(accepted)}"
            )
        settled = config.model_copy(update={"resources_tool_transports": common})
        made.instances[environment.name] = replace(environment, config=settled)
        return
    for kind in wanted:
        for name, kinds, does in ((resources.name, offered, "offers"), (agent.name, accepted, "accepts")):
            if kind not in kinds:
                made.resolved.problem(
                    (*environment.key, "resources_tool_transports"),
                    f"asks for {kind}, but {name} {does} {_listed(kinds)}",
                    "leave it out to take what both sides support",
                )


def _listed(kinds: frozenset[Transport]) -> str:
    return ", ".join(sorted(kinds)) or "none"


def _unused_agent(made: Plan) -> None:
    """A harness chosen on the command line that no environment server uses would be ignored silently."""
    chosen = made.resolved.composed.overrides.choices.get("agent")
    used = {name for item in made.of_type("environment_servers") if (name := routes.agent_of(item))}
    if chosen and "agent" in made.instances and used and "agent" not in used:
        what = f"agent `{chosen}` would not be used: the environment servers use {', '.join(sorted(used))}"
        made.resolved.problem(("agent",), what, "let agent_server name the instance `agent`")


def _sandboxes(made: Plan) -> None:
    for item in list(made.instances.values()):
        name = getattr(item.config, "sandbox_provider", None)
        if name is None:
            continue
        component = made.resolved.components.get(name)
        if component is None:
            if name not in made.resolved.composed.values:
                available = ", ".join(made.resolved.components) or "none"
                fix = f"choose one with sandbox=local; provider blocks here: {available}"
                made.resolved.problem((*item.key, "sandbox_provider"), f"no sandbox provider block `{name}`", fix)
            continue
        if name not in made.providers:
            made.providers[name] = _provider(made, component)
            made.notes.append(f"sandbox: {made.providers[name].describe()}")
        _sandbox_config(made, item, made.providers[name])


def _provider(made: Plan, component: Component) -> SandboxProvider:
    """A sandbox provider. One that does not isolate is accepted for scripted models, which choose nothing to run."""
    made.blocks[component.name] = component
    provider: SandboxProvider = component.component_class(component.config)
    if provider.isolated or component.config.allow_unisolated:
        return provider
    real = [
        item.name
        for item in made.of_type("responses_api_models")
        if issubclass(item.server_class, ModelServer) and not item.server_class.scripted
    ]
    if not real:
        allowing = component.config.model_copy(update={"allow_unisolated": True})
        made.blocks[component.name] = replace(component, config=allowing)
        return component.component_class(allowing)  # type: ignore[no-any-return]
    made.resolved.problem(
        (component.name,),
        f"these sandboxes do not isolate ({provider.describe()}), and {real[0]} is a real model",
        f"install bubblewrap, choose another sandbox, or set {component.name}.allow_unisolated=true",
    )
    return provider


def _sandbox_config(made: Plan, item: Instance, provider: SandboxProvider) -> None:
    spec = getattr(item.config, "sandbox_config", None)
    ttl, ttl_key = _ttl(made, item, spec)
    if isinstance(spec, SandboxConfig):
        images_of_tasks = issubclass(item.server_class, ResourcesServer) and item.server_class.names_images()
        needs_none = images_of_tasks or _is_lent_its_sandbox(made, item)
        for problem in provider.check(spec.spec({})):
            if problem.key != "image" or spec.image is not None or not needs_none:
                made.resolved.problem((*item.key, "sandbox_config", *problem.key.split(".")), problem.what, problem.fix)
    for environment in made.of_type("environment_servers"):
        config = environment.config
        if ttl is None or not isinstance(config, SingleAgentTurnConfig) or config.resources_server.name != item.name:
            continue
        episode = config.default_episode_timeout_seconds or float("inf")
        if episode + config.cleanup_timeout_seconds >= ttl:
            made.resolved.problem(
                ttl_key,
                f"{ttl:g} s do not outlive an episode: {episode:g} s (default_episode_timeout_seconds of "
                f"{environment.name}) + {config.cleanup_timeout_seconds:g} s cleanup",
                "raise it above the sum",
            )


def _is_lent_its_sandbox(made: Plan, item: Instance) -> bool:
    """Whether an agent works in sandboxes of tasks, wherever it is used."""
    used_by = [server for server in made.of_type("environment_servers") if routes.agent_of(server) == item.name]
    lenders = ([server, *_referred_to(made, server, "resources_servers")] for server in used_by)
    return bool(used_by) and all(
        any(getattr(lender.config, "sandbox_provider", None) for lender in each) for each in lenders
    )


def _referred_to(made: Plan, item: Instance, kind: str) -> list[Instance]:
    names = [value.name for _, value in item.config if isinstance(value, ServerRef) and value.type == kind]
    return [made.instances[name] for name in names if name in made.instances]


def _ttl(made: Plan, item: Instance, spec: SandboxConfig | None) -> tuple[float | None, KeyPath]:
    """How long a sandbox of a server may live, and where that is set; None: it has no bound that counts."""
    if spec is None or spec.ttl_seconds is not None:
        return getattr(spec, "ttl_seconds", None), (*item.key, "sandbox_config", "ttl_seconds")
    block = getattr(item.config, "sandbox_provider", "")
    config = made.blocks[block].config
    default = getattr(config, "default_ttl_seconds", None)
    return default if default and "default_ttl_seconds" in config.model_fields_set else None, (
        block,
        "default_ttl_seconds",
    )


def _harbor(made: Plan) -> None:
    """Tasks that are folders are checked in their folders."""
    if not made.resolved.problems and any(item.implementation == "harbor" for item in made.instances.values()):
        from gym.harbor.planning import check

        check(made)
