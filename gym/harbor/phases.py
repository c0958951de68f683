"""What a step's agent and verifier get, once a step's own settings are laid over the task's.

A verifier with a container of its own reaches no network unless the task says so for it: what its agent may reach
does not pass to it when that is the public network.
"""

from __future__ import annotations

from pathlib import Path

from gym.harbor.config import Agent, Artifact, Environment, TaskTable, Verifier
from gym.harbor.files import Found, bundle_of, is_separate
from gym.harbor.task import AgentPhase, Container, Network, Step, VerifierPhase
from gym.harbor.toml import KeyPath

ARTIFACTS = "/logs/artifacts"
RESOURCES = ("cpus", "memory_mb", "storage_mb")


def container(folder: Path, table: TaskTable) -> Container:
    """The agent's container."""
    config, key = table.environment, ("environment",)
    context = None if config.docker_image else folder / "environment"
    network = explicit(config, key) or Network("public", key=key)
    return Container(config, config.docker_image, context, network, key)


def explicit(table: Agent | Verifier | Environment, key: KeyPath) -> Network | None:
    """What a table says about the network; None: nothing."""
    if table.network_mode is None:
        return None
    return Network(table.network_mode, table.allowed_hosts or (), (*key, "network_mode"))


def step(found: Found, table: TaskTable, agent_container: Container, index: int) -> Step:
    """A step with everything settled."""
    files = found.steps[index]
    own = table.steps[index] if table.steps else None
    key: KeyPath = ("steps", str(index)) if own else ()
    gate = own.min_reward if own else None
    return Step(
        name=own.name if own else "",
        index=index,
        instruction=files.instruction,
        agent=_agent(table, own.agent if own else None, key, agent_container),
        verifier=_verifier(found, table, agent_container, index),
        workdir=files.workdir,
        setup=files.setup,
        solution=files.solution,
        trajectory=files.trajectory,
        healthcheck=own.healthcheck if own else None,
        min_rewards=gate if isinstance(gate, dict) else {} if gate is None else {"reward": gate},
        artifacts=_artifacts((*table.artifacts, *(own.artifacts if own else ()))),
    )


def _agent(table: TaskTable, own: Agent | None, key: KeyPath, agent_container: Container) -> AgentPhase:
    own = own or Agent()
    network = explicit(own, (*key, "agent")) or explicit(table.agent, ("agent",)) or agent_container.network
    timeout = table.agent.timeout_sec if own.timeout_sec is None else own.timeout_sec
    return AgentPhase(timeout, table.agent.user if own.user is None else own.user, network)


def _verifier(found: Found, table: TaskTable, agent_container: Container, index: int) -> VerifierPhase:
    own = table.steps[index].verifier if table.steps else Verifier()
    key: KeyPath = ("steps", str(index), "verifier")
    box = _verifier_container(found.folder, table, agent_container, index) if is_separate(table, index) else None
    stated = explicit(own, key) or explicit(table.verifier, ("verifier",))
    timed = own if "timeout_sec" in own.model_fields_set else table.verifier
    return VerifierPhase(
        timeout_seconds=timed.timeout_sec,
        env={**table.verifier.env, **own.env},
        user=table.verifier.user if own.user is None else own.user,
        network=stated or (box or agent_container).network,
        container=box,
        tests=found.steps[index].tests,
        collect=(*table.verifier.collect, *own.collect),
    )


def _verifier_container(folder: Path, table: TaskTable, agent_container: Container, index: int) -> Container:
    own = table.steps[index].verifier.environment if table.steps else None
    key: KeyPath = ("steps", str(index), "verifier", "environment") if own else ("verifier", "environment")
    config = own or table.verifier.environment
    if config is None:
        config, key = agent_container.config, agent_container.key
    inherited = agent_container.config
    config = config.model_copy(
        update={name: getattr(inherited, name) for name in RESOURCES if getattr(config, name) is None}
    )
    network = explicit(config, key)
    if network is None or (network.mode == "public" and key == agent_container.key):
        network = Network("no-network", key=key)
    bundle = bundle_of(folder, table, index)
    image = bundle.docker_image if bundle else agent_container.docker_image
    context = bundle.folder if bundle else agent_container.context
    return Container(config, image, None if image else context, network, key)


def _artifacts(declared: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
    """The declared ones, and the folder that is always collected, unless it is declared."""
    if any(item.source.rstrip("/") == ARTIFACTS and item.service == "main" for item in declared):
        return declared
    return (Artifact(source=ARTIFACTS), *declared)
