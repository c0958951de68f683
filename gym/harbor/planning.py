"""The tasks of a Harbor run, before anything starts: are they what their rows say, and can they run here?

Every task that would run is read again from its folder, compared with the digest in its row, and asked what it needs
of the sandbox provider and of the agent (`gym.harbor.fit`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gym.composition.roots import find, shown
from gym.errors import Problem, UserError
from gym.harbor.dataset import DATASET_FILE, table_of
from gym.harbor.fit import AgentTraits, problems, traits, used_variables
from gym.harbor.rows import HarborTaskData, task_of
from gym.planning.routes import agent_of
from gym.servers.agent import AgentServer
from gym.servers.base import describe
from gym.tasks.rows import RowError, parse, read_lines
from gym.tasks.selection import Selection, name_of

if TYPE_CHECKING:
    from gym.harbor.task import Task
    from gym.planning.datasets import PlannedDataset
    from gym.planning.plan import Plan
    from gym.planning.resolve import Instance
    from gym.sandbox.interface import SandboxProvider

IMPLEMENTATION = "harbor"
"""The environment server of Harbor tasks."""


def check(made: Plan) -> None:
    """Adds what is wrong with the tasks of Harbor environments to the plan's problems."""
    found: list[Problem] = []
    for planned in made.datasets:
        environment = made.instances[planned.environment]
        if environment.implementation == IMPLEMENTATION and (asked := _asked(made, environment)) is not None:
            found += _problems(made, planned, *asked)
    unique = list(dict.fromkeys(found))
    made.resolved.problems += [replace(problem, order=(2_000_000, n)) for n, problem in enumerate(unique)]


def unfit(made: Plan, task: Task) -> list[Problem]:
    """Why a task cannot run in the first Harbor environment of a plan."""
    environment = next(item for item in made.instances.values() if item.implementation == IMPLEMENTATION)
    asked = _asked(made, environment)
    return list(dict.fromkeys(problems(task, *asked[:2]))) if asked else []


def _asked(made: Plan, environment: Instance) -> tuple[SandboxProvider, AgentTraits, str] | None:
    """Provider, agent and its implementation; None where one is missing, which is told already."""
    agent = made.instances.get(agent_of(environment) or "")
    provider = made.providers.get(getattr(environment.config, "sandbox_provider", None) or "")
    if agent is None or provider is None or not issubclass(agent.server_class, AgentServer):
        return None
    return provider, traits(agent.implementation, agent.server_class), agent.implementation


def _problems(
    made: Plan, planned: PlannedDataset, provider: SandboxProvider, asked: AgentTraits, implementation: str
) -> Iterator[Problem]:
    folders: dict[Path, None] = {}
    given: set[str] = set()
    for data, wrong in _rows(made, planned):
        if wrong is not None:
            yield wrong
        if data is None:
            continue
        folders.setdefault(Path(data.folder).absolute().parent)
        try:
            task = task_of(data)
        except UserError as error:
            yield from error.problems
            continue
        given |= used_variables(task) & os.environ.keys()
        yield from problems(task, provider, asked)
    if given:
        # Whoever wrote the tasks chose these names: who runs them should know.
        made.notes.append(f"the tasks of {planned.taskset} are given variables of yours: {', '.join(sorted(given))}")
    yield from _pairings(made, list(folders), implementation, asked)


def _rows(made: Plan, planned: PlannedDataset) -> Iterator[tuple[HarborTaskData | None, Problem | None]]:
    """The tasks that the run would take; what is wrong with a row is told when the rows are collated."""
    settings = made.resolved.settings
    path = find(settings.input or planned.dataset.jsonl_fpath)
    selection = Selection(settings.task_ids, settings.limit)
    for index, (number, line) in enumerate(read_lines(path)):
        if selection.is_full:
            return
        try:
            row = parse(line)
            if selection.takes(*name_of(row, planned.taskset, index)):
                yield HarborTaskData.model_validate(_task_data(row)), None
        except (RowError, ValidationError) as error:
            text = describe(error) if isinstance(error, ValidationError) else str(error)
            what = f"no row of a Harbor task: {text}"
            yield None, Problem(what, "`gym eval run FOLDER` writes such rows", f"{shown(path)}:{number}")


def _task_data(row: dict[str, Any]) -> Any:
    task_input = row.get("task_input")
    return task_input.get("task_data", {}) if isinstance(task_input, dict) else {}


def _pairings(made: Plan, folders: list[Path], implementation: str, asked: AgentTraits) -> Iterator[Problem]:
    """Datasets that say which harnesses may run them; oracle and nop, which evaluate nothing, always may."""
    for path in (folder / DATASET_FILE for folder in folders):
        table, file = table_of(path)
        allowed = table.gym.allowed_agents
        names = {name.removesuffix("_agent") for name in allowed or ()}
        if asked.role != "policy" or allowed is None or implementation.removesuffix("_agent") in names:
            continue
        what = f"the dataset does not declare {implementation} in its allowed_agents ({', '.join(allowed)})"
        if made.resolved.settings.allow_unsupported_pairing:
            made.notes.append(f"waived by --allow-unsupported-pairing: {what}")
            continue
        key = ("gym", "allowed_agents")
        where = file.where(key) if file else shown(path)
        yield Problem(what, "choose one of these, or pass --allow-unsupported-pairing", where, ".".join(key))
