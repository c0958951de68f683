"""The row contract: what a line of a dataset may be, and what a task row of a run is.

A flat row holds the request to the agent (`responses_create_params`) and the benchmark's own fields side by side. A
task row wraps them: `{"task_id": {"taskset", "task_id"}, "task_input": {"responses_create_params", ...}}`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gym.composition.roots import shown
from gym.errors import Problem, UserError
from gym.servers.base import describe
from gym.servers.contract import Task

NOT_TASK_FIELDS = ("agent_ref", "task_source", "skills_ref")
ID_FIELDS = ("task_id", "problem_id", "instance_id")
MOST_PROBLEMS = 20


class RowError(ValueError):
    """What is wrong with one row."""


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The non-empty lines of a file with their 1-based numbers.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(Problem(f"cannot read {shown(path)}: {error}")) from error


def parse(line: str) -> dict[str, Any]:
    """A line as a mapping.

    Raises:
        RowError: It is no JSON object.
    """
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RowError(f"not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise RowError(f"a row is a JSON object, this is {type(row).__name__}")
    return row


def is_task_row(row: Mapping[str, Any]) -> bool:
    """True for a row that is wrapped already."""
    return isinstance(row.get("task_id"), Mapping) and "task_input" in row


def wrap(row: Mapping[str, Any], taskset: str, number: int) -> dict[str, Any]:
    """A flat row as a task row. The task's id is its `task_id`, `problem_id` or `instance_id`, else its number."""
    name = next((row[field] for field in ID_FIELDS if row.get(field) is not None), number)
    kept = {key: value for key, value in row.items() if key not in NOT_TASK_FIELDS and not key.startswith("_ng_")}
    return {"task_id": {"taskset": taskset, "task_id": str(name)}, "task_input": kept}


def check(row: Mapping[str, Any], task_data: type[BaseModel] | None = None) -> Task:
    """A task row, typed.

    Args:
        task_data: Model of the benchmark's own fields.

    Raises:
        RowError: A field is missing or does not fit.
    """
    try:
        task = Task.model_validate({key: value for key, value in row.items() if not key.startswith("_ng_")})
        if task_data is not None:
            task_data.model_validate(task.task_input.task_data)
    except ValidationError as error:
        raise RowError(describe(error)) from error
    return task


class Problems:
    """Bad rows of a file, told together; reading stops when there are many."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[Problem] = []

    def add(self, number: int, error: RowError) -> None:
        """Notes one bad row.

        Raises:
            UserError: Enough rows are bad.
        """
        self._found.append(Problem(f"bad row: {error}", where=f"{shown(self._path)}:{number}", order=(0, number)))
        if len(self._found) >= MOST_PROBLEMS:
            self.finish()

    def finish(self) -> None:
        """Raises what was found, if anything."""
        if self._found:
            raise UserError(self._found)


def write_rows(path: Path, made: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows, in one step; a file that has them already is left alone."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
