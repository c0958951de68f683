"""Where each instance of a plan runs: in the process of the run or in its own, and in which environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym.composition.roots import shown
from gym.launch import requirements
from gym.servers.base import Server
from gym.servers.contract import ServerRef

if TYPE_CHECKING:
    from gym.planning.plan import Plan
    from gym.planning.resolve import Instance


@dataclass(frozen=True)
class Hosted:
    """How an instance runs.

    Attributes:
        is_apart: In processes of its own.
        requirements: The file that its environment must satisfy, where the environment of the run does not.
    """

    is_apart: bool
    requirements: Path | None = None


def check(made: Plan) -> None:
    """Decides for every instance, and refuses what cannot be."""
    for item in made.instances.values():
        file = _unsatisfied(item)
        is_apart = (item.config.hosting or made.resolved.settings.hosting) == "process" or file is not None
        made.hosting[item.name] = Hosted(is_apart, file)
        if file is not None:
            _of_its_own(made, item, file)
        _workers(made, item, is_apart)
        if not is_apart:
            _unused(made, item)
    _ports(made)


def requirements_file(server_class: type[Server[Any]]) -> Path | None:
    """The requirements file beside an implementation, if it has one."""
    module = sys.modules.get(server_class.__module__)
    file = Path(module.__file__).parent / requirements.FILE if module and module.__file__ else None
    return file if file is not None and file.is_file() else None


def blocks_of(made: Plan, item: Instance) -> set[str]:
    """The sandbox provider blocks that an instance may use: its own, and for an agent those it may be lent from."""
    names = {getattr(item.config, "sandbox_provider", None)}
    if item.type == "responses_api_agents":
        running = list(_that_run(made, item))
        lenders = {other.name for other in running} | {ref.name for other in running for ref in _references(other)}
        names |= {
            getattr(made.instances[name].config, "sandbox_provider", None) for name in lenders & {*made.instances}
        }
    return {name for name in names if name in made.providers}


def _that_run(made: Plan, agent: Instance) -> Iterator[Instance]:
    for environment in made.of_type("environment_servers"):
        if agent.name in {ref.name for ref in _references(environment)}:
            yield environment


def _references(item: Instance) -> list[ServerRef]:
    return [value for _, value in item.config if isinstance(value, ServerRef)]


def _unsatisfied(item: Instance) -> Path | None:
    file = requirements_file(item.server_class)
    return file if file is not None and requirements.unmet(file) else None


def _of_its_own(made: Plan, item: Instance, file: Path) -> None:
    unmet = ", ".join(requirements.unmet(file))
    if item.config.hosting == "in_process":
        what = f"cannot run in this process: {shown(file)} asks for {unmet}, which is not here"
        fix = f"leave it out, so that the server gets an environment of its own, or pip install -r {shown(file)}"
        made.resolved.problem((*item.key, "hosting"), what, fix)
    else:
        made.notes.append(
            f"{item.name} runs in a process with a virtual environment of its own: {shown(file)} asks for {unmet} "
            "(`gym env prefetch` builds it ahead)"
        )


def _workers(made: Plan, item: Instance, is_apart: bool) -> None:
    number = item.config.num_workers or 1
    if number == 1:
        return
    key = (*item.key, "num_workers")
    if item.type == "environment_servers":
        why = "max_concurrent_episodes holds within one process"
        made.resolved.problem(key, f"{number} processes, but {why}", "leave it out; one process runs many episodes")
    elif item.type != "responses_api_models":
        why = f"the sessions of {item.name} live in one process"
        made.resolved.problem(key, f"{number} processes, but {why}", "leave it out; one process has many sessions")
    elif not is_apart:
        made.notes.append(f"{item.name} runs in this process; num_workers: {number} counts with hosting: process only")


def _unused(made: Plan, item: Instance) -> None:
    given = [name for name in ("host", "port") if getattr(item.config, name) is not None]
    if given:
        settings = " and ".join(given)
        made.notes.append(f"{item.name} runs in this process; its {settings} counts with hosting: process only")


def _ports(made: Plan) -> None:
    """No two servers can have one port; several processes would share it without an error."""
    taken = {made.resolved.settings.port: "the servers of this process"}
    for item in made.instances.values():
        port = item.config.port
        if not port or not made.hosting[item.name].is_apart:
            continue
        if port in taken:
            made.resolved.problem((*item.key, "port"), f"port {port} is that of {taken[port]} too", "choose another")
        taken[port] = item.name
