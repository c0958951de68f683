"""Makes the rows of Terminal-Bench 2.1 from its task folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gym.errors import Problem, UserError
from gym.harbor.dataset import load_dataset
from gym.harbor.rows import from_here
from gym.harbor.task import Task
from gym.tasks.rows import write_rows

FOLDER = "benchmarks/terminal_bench_2_1/data/tasks"
PATH = Path("benchmarks/terminal_bench_2_1/data/benchmark.jsonl")


def prepare(folder: str = FOLDER) -> str:
    """Writes the rows; returns the path of their file.

    Args:
        folder: The folder of the task folders, in a checkout of the benchmark.
    """
    if not Path(folder).is_dir():
        fix = "put the task folders of a checkout of Terminal-Bench 2.1 there, or set terminal_bench_2_1_folder=FOLDER"
        raise UserError(Problem(f"no such folder: {folder}", fix))
    entries = load_dataset(Path(folder)).entries
    write_rows(PATH, [row(entry.task, entry.digest) for entry in entries if entry.task is not None])
    return str(PATH)


def row(task: Task, digest: str) -> dict[str, Any]:
    """A task folder as a row; its bound for the agent goes along."""
    step = task.steps[0]
    request: dict[str, Any] = {"input": [{"role": "user", "content": step.instruction}]}
    if step.agent.timeout_seconds is not None:
        request["metadata"] = {"agent_timeout_sec": json.dumps(step.agent.timeout_seconds)}
    return {
        "task_id": task.task_id,
        "task_name": task.name,
        "docker_image": task.environment.docker_image,
        "folder": from_here(task.folder),
        "digest": digest,
        "responses_create_params": request,
    }
