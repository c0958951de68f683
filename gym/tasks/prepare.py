"""Runs the prepare scripts of datasets, each in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym.composition.roots import find, lookup, roots
from gym.errors import Problem, UserError
from gym.launch import environments
from gym.launch.requirements import unmet
from gym.tasks.datasets import DatasetConfig
from gym.tasks.rows import read_lines

CALL = """
import json, runpy, sys
from gym.errors import UserError
script, arguments = sys.argv[1], json.loads(sys.argv[2])
try:
    result = runpy.run_path(script)["prepare"](**arguments)
except UserError as error:
    sys.exit(str(error))
print(json.dumps(None if result is None else str(result)), file=sys.__stdout__)
"""


@dataclass(frozen=True)
class Prepared:
    """What became of one dataset. `rows` counts its lines."""

    name: str
    path: Path
    rows: int
    how: str


def prepare(datasets: Iterable[DatasetConfig]) -> list[Prepared]:
    """Prepares datasets: runs their script, or checks that the file is there.

    Raises:
        UserError: A script failed, or left no file.
    """
    done = []
    problems: list[Problem] = []
    for dataset in datasets:
        try:
            how = _run_script(dataset) if dataset.prepare_script else "no prepare script; the file ships as it is"
            path = find(dataset.jsonl_fpath)
            if dataset.prepare_script:
                _mark(path).write_text(json.dumps(_digests(dataset)) + "\n", encoding="utf-8")
        except UserError as error:
            problems += error.problems
            continue
        done.append(Prepared(dataset.name, path, sum(1 for _ in read_lines(path)), how))
    if problems:
        raise UserError(problems)
    return done


def changed(dataset: DatasetConfig) -> list[str]:
    """The arguments of the prepare script that are not those by which the rows were made, as far as that is known."""
    path = lookup(dataset.jsonl_fpath)
    if not dataset.prepare_script or path is None or not _mark(path).is_file():
        return []
    made, now = json.loads(_mark(path).read_text(encoding="utf-8")), _digests(dataset)
    return sorted(name for name in made.keys() | now.keys() if made.get(name) != now.get(name))


def _mark(path: Path) -> Path:
    """Where it is kept how rows were made."""
    return path.with_name(f".{path.name}.prepared")


def _digests(dataset: DatasetConfig) -> dict[str, str]:
    """Of each argument, which may be a secret. A file counts by its content, and a folder wherever it is named from."""
    return {name: _digest(value)[:16] for name, value in dataset.prepare_script_args.items()}


def _digest(value: Any) -> str:
    if isinstance(value, str):
        with suppress(OSError, ValueError):
            path = Path(value)
            if path.is_file():
                with path.open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            value = str(path.resolve()) if path.is_dir() else value
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _interpreter(dataset: DatasetConfig) -> str:
    """A Python that has what the script needs: this one, or one of an environment that is built once."""
    with tempfile.TemporaryDirectory(prefix="gym-prepare-") as folder:
        file = Path(folder) / f"prepare_dependencies of {dataset.name}"
        file.write_text("\n".join(dataset.prepare_dependencies) + "\n", encoding="utf-8")
        if not unmet(file):
            return sys.executable
        return str(environments.prepare(file, lambda text: print(text.replace(f"{folder}/", ""), file=sys.stderr)))


def _run_script(dataset: DatasetConfig) -> str:
    assert dataset.prepare_script is not None
    script = find(dataset.prepare_script)
    path = os.pathsep.join([*map(str, roots()), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [_interpreter(dataset), "-c", CALL, str(script), json.dumps(dataset.prepare_script_args)]
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=False
    )
    name = dataset.prepare_script
    if run.returncode != 0:
        fix = "its own message stands above"
        raise UserError(Problem(f"the prepare script of `{dataset.name}` failed (exit {run.returncode})", fix, name))
    lines = run.stdout.strip().splitlines()
    made = json.loads(lines[-1]) if lines else None
    expected = lookup(dataset.jsonl_fpath)
    if expected is None or (made is not None and Path(made).resolve() != expected.resolve()):
        wrote = made or "no file"
        what = f"the prepare script of `{dataset.name}` wrote {wrote}, but jsonl_fpath is {dataset.jsonl_fpath}"
        raise UserError(Problem(what, "make both the same", name))
    return f"prepared by {name}"
