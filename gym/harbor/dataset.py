"""A dataset: a folder of task folders, with or without a dataset.toml. A task folder alone is a dataset of one.

`scan` reads all of it and says what is wrong where; `load_dataset` wants nothing to be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gym.composition import schema
from gym.composition.roots import shown
from gym.errors import Problem, UserError, did_you_mean
from gym.harbor.dataset_table import DatasetTable, TaskRef
from gym.harbor.digest import dataset_digest, file_digest, task_digest
from gym.harbor.reading import read
from gym.harbor.task import TASK_FILE, Override, Task
from gym.harbor.toml import TomlFile, load

DATASET_FILE = "dataset.toml"
NEWEST_SCHEMA = "1.0"
MARKS = ("instruction.md", "tests", "steps", "environment")
"""A folder with one of these beside the tasks is meant to be one."""


@dataclass(frozen=True)
class Entry:
    """A task folder of a dataset; without a task where something is wrong with it."""

    folder: Path
    task: Task | None
    problems: list[Problem]

    @property
    def task_id(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @cached_property
    def digest(self) -> str:
        """Content digest, as Harbor computes it."""
        return task_digest(self.folder)


@dataclass(frozen=True)
class Dataset:
    """A dataset.

    Attributes:
        folder: Absolute.
        table: Its dataset.toml; defaults where there is none.
        entries: The task folders, by name.
        problems: What is wrong with dataset.toml, or between it and the folders.
    """

    folder: Path
    table: DatasetTable
    file: TomlFile | None
    entries: tuple[Entry, ...]
    problems: list[Problem] = field(default_factory=list)

    @property
    def taskset(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def tasks(self) -> list[Task]:
        """The tasks that nothing is wrong with."""
        return [entry.task for entry in self.entries if entry.task is not None]

    @property
    def all_problems(self) -> list[Problem]:
        """Of dataset.toml, then of each task."""
        found = [*self.problems, *(problem for entry in self.entries for problem in _ordered(entry.problems))]
        return [_placed(problem, number) for number, problem in enumerate(found)]

    @property
    def digest(self) -> str:
        """Content digest, as Harbor computes it."""
        files = {ref.path: file_digest(self.folder / ref.path) for ref in self.table.files}
        return dataset_digest((entry.digest for entry in self.entries), files)

    def override(self, task_id: str, name: str | None = None) -> Override | None:
        """What dataset.toml sets for a task; under its folder's name, or its own."""
        if self.file is None:
            return None
        for key in filter(None, (task_id, name)):
            if key in self.table.gym.tasks:
                values = self.table.gym.tasks[key].model_dump(exclude_unset=True)
                return Override(values, self.file, ("gym", "tasks", key), self.table.gym.defaults)
        return Override({}, self.file, ("gym", "defaults"), self.table.gym.defaults)


def load_dataset(folder: Path) -> Dataset:
    """Reads a dataset.

    Raises:
        UserError: Everything that is wrong with it.
    """
    dataset = scan(folder)
    if dataset.all_problems:
        raise UserError(dataset.all_problems)
    return dataset


def scan(folder: Path) -> Dataset:
    """Reads a dataset, as far as it can be read.

    Raises:
        UserError: There is no such folder, or no task in it, or dataset.toml cannot be read.
    """
    folder = folder.absolute().resolve()
    if not folder.is_dir():
        raise UserError(Problem(f"no such folder: {shown(folder)}", "name a task folder, or a folder of task folders"))
    is_task = (folder / TASK_FILE).is_file()
    # A task alone has the settings that it has in its dataset.
    table, file = table_of((folder.parent if is_task else folder) / DATASET_FILE)
    dataset = Dataset(folder, table, file, ())
    folders = [folder] if is_task else sorted(_task_folders(folder), key=lambda path: path.name)
    if not folders:
        deeper = next((path.parent.parent for path in sorted(folder.glob(f"*/*/{TASK_FILE}"))), None)
        fix = f"a task folder has a {TASK_FILE}; a dataset is a folder of task folders"
        fix = f"did you mean `{shown(deeper)}`?" if deeper else fix
        raise UserError(Problem(f"no task in {shown(folder)}", fix))
    entries = tuple(_entry(dataset, path) for path in folders)
    dataset = Dataset(folder, table, file, entries)
    if file is not None:
        dataset.problems.extend(_changed(dataset, file))
        dataset.problems.extend([] if is_task else _mismatches(dataset, file))
    return dataset


def table_of(path: Path) -> tuple[DatasetTable, TomlFile | None]:
    """A dataset.toml; defaults where there is none.

    Raises:
        UserError: It cannot be read, or holds what it should not.
    """
    if not path.is_file():
        return DatasetTable(), None
    file = load(path)
    table, findings = schema.check(DatasetTable, file.data)
    problems = [_at(file, finding.key, finding.what, finding.fix) for finding in findings]
    if table is not None and table.schema_version != NEWEST_SCHEMA:
        what = f"schema {table.schema_version} is not {NEWEST_SCHEMA}, the one read here"
        problems.append(_at(file, ("schema_version",), what))
    if problems or table is None:
        raise UserError(problems)
    return table, file


def _at(file: TomlFile, key: tuple[str, ...], what: str, fix: str = "") -> Problem:
    return Problem(what, fix, file.where(key), ".".join(key), (0, file.line(key)))


def _task_folders(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or not path.is_dir():
            continue
        if (path / TASK_FILE).is_file() or any((path / mark).exists() for mark in MARKS):
            yield path


def _entry(dataset: Dataset, folder: Path) -> Entry:
    override = dataset.override(folder.name)
    task, problems = read(folder, override)
    if task is not None and task.table.task is not None and override is not None and not override.values:
        # Its settings may stand under its own name, which only task.toml tells.
        named = dataset.override(folder.name, task.name)
        if named is not None and named.values:
            task, problems = read(folder, named)
    return Entry(folder, task, problems)


def _by_name(dataset: Dataset) -> dict[str, Entry]:
    """The entries by their folders' names, and by their own."""
    own = {entry.task.name: entry for entry in dataset.entries if entry.task is not None}
    return {**{entry.task_id: entry for entry in dataset.entries}, **own}


def _listed(dataset: Dataset) -> Iterator[tuple[int, TaskRef, Entry | None]]:
    entries = _by_name(dataset)
    for index, ref in enumerate(dataset.table.tasks):
        yield index, ref, entries.get(ref.name) or entries.get(ref.name.partition("/")[2])


def _changed(dataset: Dataset, file: TomlFile) -> Iterator[Problem]:
    """Tasks that are not what dataset.toml lists."""
    for index, ref, entry in _listed(dataset):
        if entry is not None and entry.digest != ref.digest:
            what = f"the task `{ref.name}` has changed: its folder has the digest {entry.digest}"
            yield _at(file, ("tasks", str(index), "digest"), what, "restore the folder, or write this digest")


def _mismatches(dataset: Dataset, file: TomlFile) -> Iterator[Problem]:
    """What dataset.toml says of tasks and files that are not there, and folders of which it says nothing."""
    by_name = _by_name(dataset)
    set_by: dict[str, str] = {}
    for key in dataset.table.gym.tasks:
        if key not in by_name:
            fix = did_you_mean(key, by_name) or "name a task by its folder, or by its organisation/name"
            yield _at(file, ("gym", "tasks", key), f"there is no task `{key}`", fix)
        elif (other := set_by.setdefault(by_name[key].task_id, key)) != key:
            yield _at(file, ("gym", "tasks", key), f"is the same task as `{other}`", "write its settings in one place")
    listed = set()
    for index, ref, entry in _listed(dataset):
        if entry is None:
            what = f"there is no folder of the task `{ref.name}`"
            yield _at(file, ("tasks", str(index), "name"), what, "put it there, or take it off the list")
        else:
            listed.add(entry.task_id)
    for entry in dataset.entries if dataset.table.tasks else ():
        if entry.task_id not in listed:
            what = f"the folder `{entry.task_id}` is not listed in [[tasks]]"
            yield _at(file, ("tasks",), what, "list it (`gym dataset digest`), or take it out")
    yield from _files(dataset, file)


def _files(dataset: Dataset, file: TomlFile) -> Iterator[Problem]:
    for index, ref in enumerate(dataset.table.files):
        path = dataset.folder / ref.path
        if not path.is_file():
            yield _at(file, ("files", str(index), "path"), f"there is no file `{ref.path}`", "put it there")
        elif ref.digest is not None and file_digest(path) != ref.digest:
            what = f"`{ref.path}` has changed: its digest is {file_digest(path)}"
            yield _at(file, ("files", str(index), "digest"), what, "restore it, or write this digest")


def _ordered(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: problem.order)


def _placed(problem: Problem, number: int) -> Problem:
    """The same, kept in its place among those of other files."""
    return Problem(problem.what, problem.fix, problem.where, problem.key, (number, 0), problem.data)
