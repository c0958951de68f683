"""From a task folder to a `Task`: values, then files, then what follows from both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym.composition import schema
from gym.composition.roots import shown
from gym.errors import Problem, UserError
from gym.harbor import checks, files, phases
from gym.harbor.config import TaskTable
from gym.harbor.legacy import modern
from gym.harbor.scaling import scaled
from gym.harbor.task import TASK_FILE, Origin, Override, Task
from gym.harbor.toml import TomlFile, load


def read(folder: Path, override: Override | None = None) -> tuple[Task | None, list[Problem]]:
    """The task, as far as it can be read, and everything that is wrong with it."""
    if not (folder / TASK_FILE).is_file():
        return None, [Problem(f"no {TASK_FILE} in {shown(folder)}", "a task folder has one", shown(folder))]
    try:
        file = load(folder / TASK_FILE)
    except UserError as error:
        return None, error.problems
    table, origin, problems = read_table(file, override)
    if table is None:
        problems += [_at_file(folder, problem) for problem in files.look(folder, _skeleton(file)).problems]
        return None, problems
    table = scaled(table, override.scales) if override else table
    found = files.look(folder, table)
    problems += [origin.problem(key, what, fix) for key, what, fix in checks.check(table)]
    problems += [_at_file(folder, problem) for problem in found.problems]
    if problems:
        return None, problems
    container = phases.container(folder, table)
    steps = tuple(phases.step(found, table, container, index) for index in range(len(found.steps)))
    return Task(folder, table, origin, container, steps, table.multi_step_reward_strategy or "mean"), []


def read_table(file: TomlFile, override: Override | None = None) -> tuple[TaskTable | None, Origin, list[Problem]]:
    """task.toml with its overrides, checked value by value."""
    task, over = modern(file.data), modern(override.values if override else {})
    origin = Origin(file, {**task.renamed, **over.renamed}, override)
    problems = [origin.problem(*problem) for problem in (*task.problems, *over.problems)]
    table, findings = schema.check(TaskTable, merged(task.data, over.data))
    for finding in findings:
        problems.append(origin.problem(finding.key, finding.what, finding.fix, finding.data))
    return (None if problems else table), origin, problems


def _skeleton(file: TomlFile) -> TaskTable:
    """What a task.toml with wrong values says about the files of its folder, as far as that can be read."""
    steps = file.data.get("steps")
    names = [step.get("name") for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []
    environment = file.data.get("environment")
    image = environment.get("docker_image") if isinstance(environment, Mapping) else None
    mode = "separate" if "verifier" in file.data else "shared"
    data = {"environment": {"docker_image": image}, "steps": [{"name": name} for name in names]}
    return schema.check(TaskTable, {**data, "verifier": {"environment_mode": mode}})[0] or TaskTable()


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`: tables merge, everything else replaces."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return result


def _at_file(folder: Path, problem: tuple[str, str, str]) -> Problem:
    name, what, fix = problem
    return Problem(what, fix, shown(folder / name), order=(1, 0))
