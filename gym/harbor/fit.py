"""What a task asks for, against what sandbox provider and agent can do: told by name before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gym.errors import Problem
from gym.harbor.images import containers
from gym.harbor.task import Container, Task
from gym.harbor.task import Network as TaskNetwork
from gym.harbor.toml import KeyPath
from gym.harbor.variables import ANYWHERE, WHOLE, Filled, fill_env, fill_headers
from gym.sandbox.interface import Network, SandboxProvider
from gym.servers.agent import AgentServer, Role

CANNOT = "this task cannot run here"
ROOT = (None, "root", "0", 0)
"""As whom a harness works that cannot be another user: the sandbox's own, or root."""


@dataclass(frozen=True)
class AgentTraits:
    """What a task may ask of an agent.

    Attributes:
        name: In messages.
        role: `policy`, or one that checks tasks and needs nothing of what they offer to an agent: `oracle`, `nop`.
        in_sandbox: It works in the sandbox that is lent to it.
        users: It can be the user that a task names.
        mcp: It takes MCP servers with a URL.
        stdio: It takes MCP servers that are a command in the sandbox.
        skills: It takes a folder of skills.
        history: It can go on from a trajectory.
    """

    name: str
    role: Role = "policy"
    in_sandbox: bool = True
    users: bool = True
    mcp: bool = True
    stdio: bool = False
    skills: bool = False
    history: bool = False


ANY_AGENT = AgentTraits("the agent", stdio=True, skills=True, history=True)
"""Nothing is refused for an agent of which nothing is known."""


def traits(name: str, server_class: type[AgentServer[Any]]) -> AgentTraits:
    """The traits of an agent server."""
    return AgentTraits(
        name=name,
        role=server_class.role,
        in_sandbox=server_class.needs_sandbox,
        users=server_class.task_users,
        mcp="mcp" in server_class.transports,
        stdio=server_class.stdio_tools,
        skills=server_class.skills,
    )


def problems(task: Task, provider: SandboxProvider, agent: AgentTraits) -> list[Problem]:
    """Everything that a task asks for and cannot get."""
    found = [
        *(problem for box in _boxes(task) for problem in _box(task, box, provider)),
        *_networks(task, provider, agent),
        *_variables(task, agent),
        *_users(task, provider, agent),
        *_agent(task, agent),
    ]
    return list({str(problem): problem for problem in found}.values())


def _boxes(task: Task) -> list[Container]:
    return list({box.key: box for box in containers(task)}.values())


def _box(task: Task, box: Container, provider: SandboxProvider) -> Iterator[Problem]:
    able, config = provider.capabilities, box.config
    if not able.images:
        yield task.problem(box.key, f"a task needs an image, and {provider.name} has none", "use sandbox=docker")
    elif box.context is not None and not able.builds:
        what = f"the image is built from a Dockerfile, which {provider.name} cannot do"
        yield task.problem(box.key, what, "use sandbox=docker, or set docker_image")
    wanted = {"gpus": config.gpus and not able.gpu, "gpu_types": config.gpu_types, "tpu": config.tpu}
    for name in (name for name, value in wanted.items() if value):
        what = {"gpus": "GPUs", "gpu_types": "choice of GPUs", "tpu": "TPUs"}[name]
        yield task.problem((*box.key, name), f"{provider.name} has no {what}", CANNOT)


def network_of(wanted: TaskNetwork, *, asks_model: bool) -> Network:
    """The network of a sandbox. One in which a model is asked reaches Gym's servers, also where the task has none."""
    return "open" if wanted.mode == "public" else "gym_only" if asks_model else "none"


def _networks(task: Task, provider: SandboxProvider, agent: AgentTraits) -> Iterator[Problem]:
    first = task.steps[0].agent.network
    for step in task.steps:
        limited = [network for network in (step.agent.network, step.verifier.network) if network.mode == "allowlist"]
        for network in limited:
            what = f"{provider.name} cannot limit a network to some hosts"
            yield task.problem(network.key, what, 'choose "no-network" or "public", or leave the task out')
        if limited:
            continue
        boxes = {network_of(step.agent.network, asks_model=agent.role == "policy"): step.agent.network}
        if step.verifier.container is not None:
            boxes.setdefault(network_of(step.verifier.network, asks_model=False), step.verifier.network)
        for name in boxes.keys() - provider.capabilities.networks:
            what = f'{provider.name} cannot do the network `{name}`, which "{boxes[name].mode}" is here'
            yield task.problem(boxes[name].key, what, CANNOT)
        if provider.capabilities.network_changes:
            continue
        if step.agent.network.mode != first.mode:
            what = f"the agent's network changes between steps, which {provider.name} cannot do"
            yield task.problem(step.agent.network.key, what, CANNOT)
        if step.verifier.container is None and step.verifier.network.mode != step.agent.network.mode:
            what = f"the verifier wants another network in the agent's sandbox, which {provider.name} cannot change"
            fix = 'set [verifier] environment_mode = "separate", or the same network for both'
            yield task.problem(step.verifier.network.key, what, fix)


def used_variables(task: Task) -> set[str]:
    """Names of the user's variables that a task asks for, in its containers, verifiers, solution and MCP servers."""
    tables = [box.config.env for box in _boxes(task)] + [step.verifier.env for step in task.steps]
    whole = (WHOLE.fullmatch(text) for table in (*tables, task.table.solution.env) for text in table.values())
    headers = [text for server in task.environment.config.mcp_servers for text in server.headers.values()]
    return {match["name"] for match in whole if match} | {
        match["name"] for text in headers for match in ANYWHERE.finditer(text)
    }


def environment_of_user() -> Mapping[str, str]:
    """Where the variables of tasks get their values from."""
    return os.environ


def _variables(task: Task, agent: AgentTraits) -> Iterator[Problem]:
    env = environment_of_user()
    for box in _boxes(task):
        yield from _missing(task, (*box.key, "env"), fill_env(box.config.env, env))
    for step in task.steps:
        key: KeyPath = ("steps", str(step.index), "verifier", "env") if task.has_steps else ("verifier", "env")
        yield from _missing(task, key, fill_env(step.verifier.env, env))
    if agent.role == "oracle":
        yield from _missing(task, ("solution", "env"), fill_env(task.table.solution.env, env))
    for index, server in enumerate(task.environment.config.mcp_servers if agent.role == "policy" else ()):
        key = (*task.environment.key, "mcp_servers", str(index), "headers")
        yield from _missing(task, key, fill_headers(server.headers, env))


def _missing(task: Task, key: tuple[str, ...], filled: Filled) -> Iterator[Problem]:
    for name, variable in filled.missing.items():
        yield task.problem((*key, name), f"the variable {variable} is not set", f"export {variable}=...")


def _users(task: Task, provider: SandboxProvider, agent: AgentTraits) -> Iterator[Problem]:
    for step in task.steps:
        key = ("steps", str(step.index)) if task.has_steps else ()
        users = {"agent": step.agent.user, "verifier": step.verifier.user}
        for name, user in users.items():
            if user is not None and not provider.capabilities.users:
                yield task.problem((*key, name, "user"), f"{provider.name} has no other users", CANNOT)
        if step.agent.user not in ROOT and not agent.users:
            what = f"{agent.name} cannot work as a user that the task names"
            yield task.problem((*key, "agent", "user"), what, "choose another agent")


def _agent(task: Task, agent: AgentTraits) -> Iterator[Problem]:
    key = task.environment.key
    if agent.role == "oracle":
        for step in task.steps:
            if step.solution is None:
                name = f" of the step `{step.name}`" if step.name else ""
                yield task.problem((), f"there is no solution{name}, and {agent.name} runs it", "choose another agent")
    if agent.role != "policy":
        return
    if not agent.in_sandbox:
        what = f"{agent.name} does not work in a sandbox, where the task is"
        yield task.problem((), what, "choose a harness, such as --agent codex")
    for index, server in enumerate(task.environment.config.mcp_servers):
        at = (*key, "mcp_servers", str(index))
        if server.transport == "sse":
            yield task.problem((*at, "transport"), f"{agent.name} does not speak sse", 'use "streamable-http"')
        elif server.transport == "stdio" and not agent.stdio:
            what = f"{agent.name} cannot start the MCP server `{server.name}` (stdio)"
            yield task.problem((*at, "transport"), what, "choose another agent, or a server with a url")
        elif not agent.mcp:
            yield task.problem(at, f"{agent.name} takes no MCP servers", "choose another agent")
    if task.environment.config.skills_dir and not agent.skills:
        what = f"{agent.name} cannot be given a folder of skills"
        yield task.problem((*key, "skills_dir"), what, "choose another agent")
    if not agent.history:
        for step in task.steps:
            if step.trajectory is not None:
                what = f"{agent.name} cannot go on from what trajectory.json says was done before"
                yield task.problem((), what, "choose another agent")
