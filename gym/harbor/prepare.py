"""Prepare script of Harbor datasets: `gym eval prepare --config run_config_....yaml` makes the rows again."""

from __future__ import annotations

from pathlib import Path

from gym.harbor.dataset import load_dataset
from gym.harbor.rows import rows
from gym.tasks.rows import write_rows


def prepare(folder: str, target: str, taskset: str) -> Path:
    """Writes the rows of a dataset folder to `target`."""
    path = Path(target)
    write_rows(path, rows(load_dataset(Path(folder)), taskset))
    return path
