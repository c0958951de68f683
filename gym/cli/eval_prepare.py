"""`gym eval prepare`: runs the prepare scripts of the datasets of a configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.composition.compose import compose
from gym.composition.roots import shown
from gym.errors import EXIT_OK, Problem, UserError
from gym.planning.resolve import Resolved, resolve
from gym.tasks.datasets import DatasetConfig
from gym.tasks.prepare import prepare


def run(arguments: Arguments) -> int:
    """Prepares the datasets of the split, or with `--all` every declared one."""
    resolved = resolve(compose(arguments.overrides(), arguments.files))
    if problems := [problem for problem in resolved.problems if not is_of_models(resolved, problem)]:
        raise UserError(problems)
    done = prepare(_chosen(resolved, everything=arguments.values["all"]))
    if arguments.json:
        print_json([{"name": item.name, "path": shown(item.path), "rows": item.rows, "how": item.how} for item in done])
    else:
        rows = [[item.name, str(item.rows), shown(item.path), item.how] for item in done]
        print_table(["dataset", "rows", "file", "how"], rows, right={"rows"})
    return EXIT_OK


def is_of_models(resolved: Resolved, problem: Problem) -> bool:
    """True for what is wrong with the model only, such as a key that is not set: no model is needed here."""
    top = problem.key.partition(".")[0]
    block = resolved.composed.values.get(top)
    return top.startswith("policy_") or (isinstance(block, dict) and "responses_api_models" in block)


def _chosen(resolved: Resolved, *, everything: bool) -> list[DatasetConfig]:
    declared = list(_declared(resolved))
    split = resolved.settings.split
    chosen = {_identity(item): item for item in declared if everything or item.type == split}
    if not declared:
        raise UserError(Problem("no server declares a dataset", "choose a benchmark (`gym list benchmarks`)"))
    if not chosen:
        types = ", ".join(sorted({item.type for item in declared}))
        raise UserError(Problem(f"no dataset of the split `{split}`", f"declared are: {types}; --all prepares them"))
    return list(chosen.values())


def _declared(resolved: Resolved) -> Iterator[DatasetConfig]:
    for item in resolved.instances.values():
        yield from getattr(item.config, "datasets", [])


def _identity(dataset: DatasetConfig) -> str:
    """Datasets that are made into one file by one script are one piece of work."""
    return f"{os.path.normpath(dataset.jsonl_fpath)} {dataset.prepare_script} {dataset.prepare_script_args}"
