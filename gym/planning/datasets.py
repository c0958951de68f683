"""Which datasets a run has, and whether their rows are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym.composition.roots import find, lookup
from gym.errors import UserError, did_you_mean
from gym.planning import routes
from gym.planning.resolve import Instance, KeyPath
from gym.tasks import prepare
from gym.tasks.datasets import DatasetConfig
from gym.tasks.rows import RowError, parse, read_lines
from gym.tasks.selection import Selection, name_of

if TYPE_CHECKING:
    from gym.planning.plan import Plan


@dataclass(frozen=True)
class PlannedDataset:
    """A dataset of the run's split: who declares it, and the environment server that its tasks go to."""

    instance: str
    dataset: DatasetConfig
    environment: str
    key: KeyPath

    @property
    def taskset(self) -> str:
        """Taskset of its tasks; flat rows go by the dataset's name."""
        return self.dataset.taskset or self.dataset.name


def choose_datasets(made: Plan) -> None:
    """The datasets of the run's split, with the environment servers of their tasks, and what is wrong with them."""
    settings = made.resolved.settings
    declared = list(_declared(made))
    routes.check_agent_name(made)
    for taskset, name in settings.environment_server_routes.items():
        if name not in made.instances or made.instances[name].type != "environment_servers":
            names = [item.name for item in made.of_type("environment_servers")]
            fix = did_you_mean(name, names) or f"environment servers: {', '.join(names) or 'none'}"
            made.resolved.problem(
                ("environment_server_routes", taskset), f"routes to `{name}`, which is no environment server", fix
            )
    if made.resolved.problems:
        return
    chosen = [entry for entry in declared if entry[1].type == settings.split]
    if not chosen:
        _no_dataset(made, declared)
        return
    for item, dataset, key in chosen:
        environment = routes.route(made, item, dataset, key)
        if environment is not None:
            made.datasets.append(PlannedDataset(item.name, dataset, environment, key))
            made.routes[dataset.taskset or dataset.name] = environment
        if settings.input is None:
            _check_rows(made, dataset, key)
    if settings.task_ids is not None and not made.resolved.problems:
        try:
            count_tasks(made)
        except UserError as error:
            for problem in error.problems:
                made.resolved.problem(("task_ids",), problem.what, problem.fix)


def count_tasks(made: Plan) -> int:
    """How many tasks the run takes.

    Raises:
        UserError: `task_ids` has one that is not there.
    """
    settings = made.resolved.settings
    selection = Selection(settings.task_ids, settings.limit)
    sources = [(settings.input, made.datasets[0])] if settings.input else []
    taken = 0
    for path, planned in sources or [(planned.dataset.jsonl_fpath, planned) for planned in made.datasets]:
        for index, (_, line) in enumerate(read_lines(find(path))):
            if selection.is_full:
                return taken
            taken += selection.takes(*(_name(line, planned.taskset, index) if selection.by_name else ("", "")))
    selection.finish()
    return taken


def _name(line: str, taskset: str, index: int) -> tuple[str, str]:
    try:
        return name_of(parse(line), taskset, index)
    except RowError:
        return taskset, ""  # what is wrong with a row is told when the run reads it


def _check_rows(made: Plan, dataset: DatasetConfig, key: KeyPath) -> None:
    again = "run `gym eval prepare` with the same configuration"
    if lookup(dataset.jsonl_fpath) is None:
        fix = again if dataset.prepare_script else "put it there"
        made.resolved.problem((*key, "jsonl_fpath"), f"no such file: {dataset.jsonl_fpath}", fix)
    elif names := prepare.changed(dataset):
        what = f"{dataset.jsonl_fpath} was prepared with another `{'`, `'.join(names)}`"
        made.resolved.problem((*key, "prepare_script_args", *names[:1]), what, again)


def _declared(made: Plan) -> Iterator[tuple[Instance, DatasetConfig, KeyPath]]:
    for item in made.instances.values():
        for index, dataset in enumerate(getattr(item.config, "datasets", ())):
            yield item, dataset, (*item.key, "datasets", str(index))


def _no_dataset(made: Plan, declared: list[tuple[Instance, DatasetConfig, KeyPath]]) -> None:
    settings = made.resolved.settings
    if not declared:
        what, fix = "no tasks: no server declares a dataset", "choose a benchmark, for example benchmark=onboarding"
    else:
        types = ", ".join(sorted({dataset.type for _, dataset, _ in declared}))
        what, fix = f"no dataset of the split `{settings.split}`", f"declared are: {types}; choose with split=..."
    made.resolved.problem(("split",), what, fix)
