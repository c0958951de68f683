"""One attempt of one task, and the name of its rollout."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym.servers.contract import Task


@dataclass(frozen=True)
class Job:
    """One attempt of one task that is still to run."""

    row: Mapping[str, Any]
    taskset: str
    task_id: str
    attempt: int
    digest: str

    @property
    def rollout_id(self) -> str:
        """Readable and unique: the names, and a short digest where they had to be changed."""
        name = f"{self.taskset}.{self.task_id}"
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-_")[:80]
        if plain != name:
            plain = f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return f"{plain}.{self.attempt}"

    @property
    def task(self) -> Task:
        """The task as an environment server gets it."""
        return Task.model_validate({key: self.row[key] for key in ("task_id", "task_input")})

    @property
    def label(self) -> str:
        """The attempt as progress lines show it."""
        return f"{self.taskset}/{self.task_id}" + (f" #{self.attempt}" if self.attempt else "")
