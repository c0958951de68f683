"""The task rows of a dataset: what each folder is, by content, so that a folder that has changed is never run unseen.

`task_data` of a row: `folder` (relative to the working directory where it lies below it), `digest`, and what the
dataset sets for the task (`overrides` with the keys of task.toml, `scales` with factors). So a changed folder, and
changed settings, make another row, and a run that has results of the old one refuses to go on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gym.composition.roots import shown
from gym.errors import Problem, UserError
from gym.harbor.dataset import DATASET_FILE, Dataset, Entry
from gym.harbor.digest import task_digest
from gym.harbor.scaling import Scales
from gym.harbor.task import Override, Task, load_task
from gym.harbor.toml import TomlFile, load


class HarborTaskData(BaseModel):
    """The benchmark's own fields of a row."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str = Field(description="The task folder.")
    digest: str = Field(description="Its content digest when the row was made.")
    overrides: dict[str, Any] = Field(default_factory=dict, description="Keys of task.toml that the dataset sets.")
    scales: Scales = Field(default=Scales(), description="Factors of the dataset on times and resources.")


def task_of(data: HarborTaskData) -> Task:
    """The task of a row.

    Raises:
        UserError: The folder has changed since the row was made, or something is wrong with it.
    """
    folder = Path(data.folder)
    if not folder.is_dir():
        raise UserError(Problem(f"no such folder: {data.folder}", "the row names the folder of its task"))
    now = task_digest(folder)
    if now != data.digest:
        what = (
            f"the task `{folder.name}` has changed since its row was made: {data.digest[:19]}... is now {now[:19]}..."
        )
        fix = "restore the folder, or make the rows again: `gym eval prepare` with the same configuration"
        raise UserError(Problem(what, fix, shown(folder.absolute()), data={"kind": "changed_task"}))
    table = folder.parent / DATASET_FILE
    file = load(table) if table.is_file() else TomlFile(table, {}, {})
    key = ("gym", "tasks", folder.name)
    return load_task(folder, Override(data.overrides, file, key, data.scales))


def rows(dataset: Dataset, taskset: str, wanted: Callable[[Task], bool] = lambda _: True) -> list[dict[str, Any]]:
    """A row for each task."""
    return [
        _row(entry, entry.task, taskset) for entry in dataset.entries if entry.task is not None and wanted(entry.task)
    ]


def from_here(path: Path) -> str:
    """A path, relative to the working directory where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _row(entry: Entry, task: Task, taskset: str) -> dict[str, Any]:
    data: dict[str, Any] = {"folder": from_here(entry.folder), "digest": entry.digest}
    override = task.origin.override
    settings: Mapping[str, Mapping[str, Any]] = (
        {} if override is None else {"overrides": override.values, "scales": override.scales.changed}
    )
    data |= {name: dict(value) for name, value in settings.items() if value}
    request = {"input": [{"role": "user", "content": task.steps[0].instruction}]}
    return {
        "task_id": {"taskset": taskset, "task_id": entry.task_id},
        "task_input": {"responses_create_params": request, "task_data": data},
    }
