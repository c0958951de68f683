"""Which of its tasks a run takes: those that are named, and no more than it is limited to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gym.errors import Problem, UserError, did_you_mean
from gym.tasks.rows import is_task_row, wrap


class Selection:
    """Is asked for each task, in their order.

    Args:
        names: Ids of tasks, or patterns with `*`, `?` and `[...]`, also as `taskset/id`; None: all. As one text, they
            stand apart by commas.
        limit: How many at most; None: no limit.
    """

    def __init__(self, names: str | Sequence[str] | None, limit: int | None) -> None:
        self._names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        self._left = limit
        self._unseen = dict.fromkeys(self._names or ())
        self._others: list[str] = []

    @property
    def by_name(self) -> bool:
        """Whether it depends on their ids at all."""
        return self._names is not None

    @property
    def is_full(self) -> bool:
        """Whether the run takes no further task."""
        return self._left == 0

    def takes(self, taskset: str, task_id: str) -> bool:
        """Whether the run takes this task; it is counted then."""
        if self._names is not None:
            own = (task_id, f"{taskset}/{task_id}")
            matching = [name for name in self._names if any(name == it or fnmatchcase(it, name) for it in own)]
            if not matching:
                self._others.append(task_id)
                return False
            for name in matching:
                self._unseen.pop(name, None)
        if self._left is not None:
            self._left -= 1
        return True

    def finish(self) -> None:
        """Checks that every name was that of a task, unless the limit came before.

        Raises:
            UserError: A name was not.
        """
        if not self.is_full and self._unseen:
            raise UserError([self._unknown(name) for name in self._unseen])

    def _unknown(self, name: str) -> Problem:
        others = ", ".join(self._others[:3])
        fix = did_you_mean(name, self._others) or (f"others are {others}" if others else "")
        return Problem(f"no task has the id `{name}`", fix, key="task_ids")


def name_of(row: Mapping[str, Any], taskset: str, index: int) -> tuple[str, str]:
    """Taskset and id of the task of a row, flat or wrapped, which is so many rows after the first of its file."""
    name = (row if is_task_row(row) else wrap(row, taskset, index))["task_id"]
    return str(name.get("taskset", "")), str(name.get("task_id", ""))
