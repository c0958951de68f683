"""A run in a format of others: one document for each rollout, and for the last try of a failed one; and their list."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gym.capture.reader import Calls
from gym.errors import Problem, UserError
from gym.report.atif import is_failed, model_servers, trajectory
from gym.report.captured import Captured, of_try
from gym.rollouts import rundir
from gym.rollouts.rows import parse_object

Convert = Callable[[dict[str, Any], dict[str, Any] | None, Captured], dict[str, Any]]
MANIFEST = "manifest.jsonl"


def export(run: Path, target: Path, convert: Convert = trajectory) -> list[dict[str, Any]]:
    """Writes the attempts of a run into a new folder, a document each; returns the lines of its manifest.

    Raises:
        UserError: There is no run; a line of it is no rollout, or no model call; the folder has something in it, or
            cannot be written.
    """
    tasks = tasks_of(run / rundir.TASKS)
    with Calls(run) as calls, new_folder(target):
        lines = [
            _write(target, row, convert(row, request_of(tasks.get(task_of(row))), captured(calls, row)))
            for row in attempts_of(run)
        ]
        told = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (target / MANIFEST).write_text(told, encoding="utf-8")
    return lines


@contextmanager
def new_folder(target: Path) -> Iterator[None]:
    """A folder to write into.

    Raises:
        UserError: It has something in it, or it cannot be written.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise UserError(Problem(f"{target} is not empty", "choose a new folder with --output"))
        yield
    except OSError as error:
        raise UserError(Problem(f"{target} cannot be written: {error.strerror or error}")) from error


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rollouts, or failures, of a run; a torn last line, as a killed run leaves it, is none.

    Raises:
        UserError: There is no such file; a line of it is no rollout.
    """
    if not path.is_file():
        raise UserError(Problem(f"{path.parent} has no {path.name}", "name the results directory of a run"))
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = parse_object(line) if line.endswith(b"\n") or line.strip() else None
            if row is not None and row.get("rollout_id"):
                yield row
            elif line.endswith(b"\n") and line.strip():
                fix = "start the run again with the same output: it says what is wrong, and mends what it can"
                raise UserError(Problem("the line is no rollout", fix, f"{path}:{number}"))


def attempts_of(run: Path) -> Iterator[dict[str, Any]]:
    """The rollouts of a run, then the last failure of each attempt that has none. Raises as `rows_of`."""
    finished = set()
    for row in rows_of(run / rundir.ROLLOUTS):
        finished.add(_attempt(row))
        yield row
    failures = rows_of(run / rundir.FAILURES) if (run / rundir.FAILURES).is_file() else ()
    yield from {_attempt(row): row for row in failures if _attempt(row) not in finished}.values()


def captured(calls: Calls, row: Mapping[str, Any]) -> Captured:
    """The policy's calls of the try that a row is of."""
    begun = row.get("started_at")
    return of_try(calls, episode_of(row), begun if isinstance(begun, int | float) else 0.0, model_servers(row))


def episode_of(row: Mapping[str, Any]) -> str:
    """Name of the episode, as calls and evidence are kept by it: `EpisodeId.key`."""
    return f"{row['rollout_id']}-a{row['try']}" if row.get("try") else str(row["rollout_id"])


def _attempt(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row.get("taskset"), row.get("task_id"), row.get("attempt")


def tasks_of(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The input of each task, of the task files that a run keeps."""
    found = {}
    for path in sorted(folder.glob("preprocessed_datasets/*.jsonl")):
        for line in path.read_bytes().splitlines():
            task = parse_object(line) or {}
            name, given = task.get("task_id"), task.get("task_input")
            if isinstance(name, dict) and isinstance(given, dict):
                found[str(name.get("taskset")), str(name.get("task_id"))] = given
    return found


def request_of(task: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the agent was asked; None for a task that is not known."""
    if task is None:
        return None
    request = task.get("responses_create_params")
    return request if isinstance(request, dict) else {}


def task_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Taskset and task of a rollout."""
    return str(row.get("taskset")), str(row.get("task_id"))


def _write(folder: Path, row: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    raw = (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "backslashreplace")
    name = f"{file_name(row)}.json"
    (folder / name).write_bytes(raw)
    return {"trajectory_path": name, **line_of(row), "sha256": hashlib.sha256(raw).hexdigest()}


def line_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a list of the attempts says of one."""
    known = {key: row.get(key) for key in ("rollout_id", "taskset", "task_id", "attempt", "reward")}
    return known | ({"failure": row["kind"]} if is_failed(row) else {})


def file_name(row: Mapping[str, Any]) -> str:
    """A rollout's id as the name of a file."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", str(row["rollout_id"]))
