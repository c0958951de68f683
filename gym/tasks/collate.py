"""Declared datasets become the task rows of a run, written to one file; the sources are not modified.

Rows stream from file to file, so memory does not grow with the number of tasks beyond their ids.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gym.composition.roots import find
from gym.errors import UserError
from gym.planning.capabilities import blind_model, has_image
from gym.planning.datasets import PlannedDataset
from gym.planning.plan import Plan
from gym.rollouts.identity import task_digest
from gym.servers.resources import ResourcesServer
from gym.tasks import rows
from gym.tasks.rows import RowError
from gym.tasks.selection import Selection, name_of


@dataclass
class TaskFile:
    """The collated tasks of a run.

    Attributes:
        path: One task row a line.
        digests: Content digest of each task, by (taskset, task id), in the order of the file.
        repeats: Attempts a task, by taskset.
    """

    path: Path
    digests: dict[tuple[str, str], str] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The task rows, one at a time."""
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def collate(plan: Plan, target: Path) -> TaskFile:
    """Writes the task rows of the run's split to `target`, at most `limit` tasks.

    Raises:
        UserError: Bad rows, with file and line; two tasks of one id; no tasks at all.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    collated = TaskFile(target)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for row, digest in _limited(plan, collated):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                name = row["task_id"]
                collated.digests[name["taskset"], name["task_id"]] = digest
        partial.replace(target)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    if not collated.digests:
        raise UserError("no tasks: the files of this split have no rows")
    return collated


def _limited(plan: Plan, collated: TaskFile) -> Iterator[tuple[dict[str, Any], str]]:
    settings = plan.resolved.settings
    selection = Selection(settings.task_ids, settings.limit)
    for planned in plan.datasets:
        collated.repeats[planned.taskset] = settings.num_repeats or planned.dataset.num_repeats
    if settings.input is not None:
        sources = [(find(settings.input), plan.datasets[0])]
    else:
        sources = [(find(planned.dataset.jsonl_fpath), planned) for planned in plan.datasets]
    for path, planned in sources:
        yield from _rows(plan, path, planned, collated, selection)
    selection.finish()


def _rows(
    plan: Plan, path: Path, planned: PlannedDataset, collated: TaskFile, selection: Selection
) -> Iterator[tuple[dict[str, Any], str]]:
    problems = rows.Problems(path)
    for index, (number, line) in enumerate(rows.read_lines(path)):
        if selection.is_full:
            break
        try:
            row = rows.parse(line)
            if not selection.takes(*name_of(row, planned.taskset, index)):
                continue
            if not rows.is_task_row(row):
                _refuse_flat_input(plan, planned)
                row = rows.wrap(row, planned.taskset, index)
            task = rows.check(row, _task_data(plan, planned))
            key = (task.task_id.taskset, task.task_id.task_id)
            if key[0] not in plan.routes:
                raise RowError(f"no route for the taskset `{key[0]}`; routes: {', '.join(plan.routes)}")
            model = blind_model(plan, key[0])
            if model is not None and has_image(task.task_input.responses_create_params.input):
                raise RowError(f"has an image, and {model} is declared to do without images (capabilities.images)")
            if key in collated.digests:
                raise RowError(f"the task id `{key[1]}` stands twice in the taskset `{key[0]}`")
        except RowError as error:
            problems.add(number, error)
            continue
        yield row, task_digest(row["task_input"])
    problems.finish()


def _refuse_flat_input(plan: Plan, planned: PlannedDataset) -> None:
    settings = plan.resolved.settings
    if (
        settings.input is not None
        and settings.environment_routing_mode == "taskset"
        and planned.dataset.taskset is None
    ):
        raise RowError("a flat row, which environment_routing_mode: taskset refuses")


def _task_data(plan: Plan, planned: PlannedDataset) -> type[BaseModel] | None:
    server = plan.instances[planned.instance].server_class
    return server.task_type if issubclass(server, ResourcesServer) else None
