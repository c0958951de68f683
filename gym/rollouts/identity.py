"""May an output directory be continued, and what is still to run there?

A run's identity is its resolved configuration without operational settings and secrets; a task's identity is the
digest of its content. Rows are matched by taskset, task id and attempt, never by position. The program's version is
no part of any identity, so that an upgrade alone never makes finished work new.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gym.errors import Problem, UserError
from gym.rollouts.journal import Loaded
from gym.rollouts.rows import MOST_PROBLEMS, Repeats, Row, TaskKey, repeats_of

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
IsOperational: TypeAlias = Callable[[tuple[str, ...]], bool]
IsSecret: TypeAlias = Callable[[tuple[str, ...], object], bool]

_PLAIN_KEY = re.compile(r'[^.\s"]+')
_SHOWN = 60


class Absent(enum.Enum):
    """The value of a setting that one of two configurations does not have."""

    ABSENT = "(not set)"


@dataclass(frozen=True)
class Difference:
    """A setting whose value differs between two identities."""

    key: str
    old: JSON | Absent
    new: JSON | Absent


def identity(config: Mapping[str, object], operational: IsOperational, secret: IsSecret) -> dict[str, JSON]:
    """The resolved configuration as dotted keys and values, without operational settings and secret values.

    Both predicates are asked for every mapping, list and value on the way, and what they accept is left out with
    everything below it. Items of a list are addressed by index, but a list of plain values is one value, from which
    secret items are left out. An empty mapping or list is a value too.
    """
    leaves = (leaf for key, value in config.items() for leaf in _leaves(value, (str(key),), operational, secret))
    return dict(sorted(leaves, key=lambda leaf: leaf[0]))


def digest(identity: Mapping[str, JSON]) -> str:
    """SHA-256, in hex, of the content: independent of the order of keys, and of 1 being written as 1.0."""
    return _sha256(identity)


def task_digest(task_input: Mapping[str, object]) -> str:
    """Content digest of a task: SHA-256 in hex, independent of the order of keys."""
    return _sha256(task_input)


def compare(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> list[Difference]:
    """What differs between two identities, by key. Empty exactly when their digests are equal."""
    pairs = ((key, old.get(key, Absent.ABSENT), new.get(key, Absent.ABSENT)) for key in sorted({*old, *new}))
    return [Difference(key, was, now) for key, was, now in pairs if _canonical(was) != _canonical(now)]


def refuse_message(differences: Sequence[Difference]) -> UserError:
    """The refusal to continue a run under another configuration: one line a setting, what it was and what it is."""
    head = Problem(
        "the configuration differs from the one that this output was made with",
        fix="give a new output directory, or overwrite=true to start afresh",
        order=(0, 0),
    )
    shown = [(item, *_show_pair(item.old, item.new)) for item in differences]
    keys = max((len(item.key) for item, _, _ in shown), default=0)
    values = max((len(was) for _, was, _ in shown), default=0)
    rows = [
        Problem(
            " " * (keys - len(item.key)) + f"was {was:{values}}  now {now}",
            key=item.key,
            order=(0, number),
            data={"kind": "changed_setting", "was": _for_machines(item.old), "now": _for_machines(item.new)},
        )
        for number, (item, was, now) in enumerate(shown, 1)
    ]
    return UserError([head, *rows])


class Plan:
    """The attempts that are still to run, in the order of the tasks. Iterate it, or ask task by task.

    It holds the tasks' keys, never their bodies.

    Attributes:
        planned: Number of tasks of each taskset.
        notes: What is on disk and left out of the score, one line each.
    """

    def __init__(self, tasks: Iterable[TaskKey], num_repeats: Repeats, loaded: Loaded) -> None:
        self._repeats = num_repeats
        self._tasks = dict.fromkeys(tasks)
        self._rows = loaded.rows
        self.planned = dict(Counter(taskset for taskset, _ in self._tasks))
        self.notes = list(self._notes())

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        for taskset, task_id in self._tasks:
            for attempt in self.attempts(taskset, task_id):
                yield taskset, task_id, attempt

    def __len__(self) -> int:
        attempts = sum(count * repeats_of(self._repeats, taskset) for taskset, count in self.planned.items())
        return attempts - sum(1 for _ in self.finished())

    def attempts(self, taskset: str, task_id: str) -> list[int]:
        """The attempts of one task that are still to run."""
        return [n for n in range(repeats_of(self._repeats, taskset)) if (taskset, task_id, n) not in self._rows]

    def finished(self) -> Iterator[Row]:
        """The rows that count: of a task of this run, and not beyond the number of repeats."""
        return (row for row in self._rows.values() if self._has(row) and not self._is_surplus(row))

    def _has(self, row: Row) -> bool:
        return (row.taskset, row.task_id) in self._tasks

    def _is_surplus(self, row: Row) -> bool:
        return row.attempt >= repeats_of(self._repeats, row.taskset)

    def _notes(self) -> Iterator[str]:
        unknown = sum(not self._has(row) for row in self._rows.values())
        surplus = sum(self._has(row) and self._is_surplus(row) for row in self._rows.values())
        for count, which in ((unknown, "of tasks that are not in this run"), (surplus, "beyond the number of repeats")):
            if count:
                yield f"{count} finished {'attempt' if count == 1 else 'attempts'} {which} left out of the score"


def owed(tasks: Iterable[tuple[str, str, str]], num_repeats: Repeats, loaded: Loaded) -> Plan:
    """Which attempts are still to run, after checking every task against the rows that it has.

    Args:
        tasks: Taskset, task id and content digest of each task; read once.
        num_repeats: Attempts a task, at least 1; one number, or one for each taskset.
        loaded: The finished rollouts.

    Raises:
        UserError: A task changed since its rollouts were made, or two tasks have the same id.
    """
    rows_of: dict[TaskKey, list[Row]] = {}
    for row in loaded.rows.values():
        rows_of.setdefault((row.taskset, row.task_id), []).append(row)
    keys: dict[TaskKey, None] = {}
    problems: list[Problem] = []
    for taskset, task_id, content in tasks:
        if (taskset, task_id) in keys:
            problems.append(Problem(f"task {task_id} of {taskset} stands twice in the input", fix="give it another id"))
        elif repeats_of(num_repeats, taskset) < 1:
            problems.append(Problem(f"task {task_id} of {taskset} has no repeats", fix="set num_repeats to 1 or more"))
        keys[taskset, task_id] = None
        stale = [row.line for row in rows_of.get((taskset, task_id), ()) if row.task_digest != content]
        if stale:
            problems.append(_changed(task_id, sorted(stale), loaded))
    if problems:
        raise UserError(problems[:MOST_PROBLEMS])
    return Plan(keys, num_repeats, loaded)


def _changed(task_id: str, lines: list[int], loaded: Loaded) -> Problem:
    numbers = ("line " if len(lines) == 1 else "lines ") + ", ".join(map(str, lines))
    return Problem(
        f"task {task_id} changed since its rollouts were made",
        fix=f"verify them again, drop its rows ({numbers}) or use a new output directory",
        where=f"{loaded.path}:{lines[0]}",
        data={"kind": "changed_task", "task": task_id, "lines": lines},
    )


def _leaves(
    value: object, path: tuple[str, ...], operational: IsOperational, secret: IsSecret
) -> Iterator[tuple[str, JSON]]:
    if operational(path) or secret(path, value):
        return
    items = _items(value)
    if items and (isinstance(value, Mapping) or any(_items(item) is not None for _, item in items)):
        for name, item in items:
            yield from _leaves(item, (*path, name), operational, secret)
    elif items is None or isinstance(value, Mapping):
        yield _dotted(path), {} if isinstance(value, Mapping) else _scalar(value)
    else:
        yield _dotted(path), [_scalar(item) for name, item in items if not secret((*path, name), item)]


def _items(value: object) -> list[tuple[str, object]] | None:
    """Name and item of everything in a mapping or list; None for a plain value."""
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [(str(index), item) for index, item in enumerate(value)]
    return None


def _scalar(value: object) -> JSON:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(part if _PLAIN_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False) for part in path)


def _sha256(value: object) -> str:
    return hashlib.sha256(_canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(value: object) -> str:
    if isinstance(value, Absent):
        return value.value
    return json.dumps(_normal(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _normal(value: object) -> object:
    """The value with whole floats as integers: YAML and JSON writers disagree on 1 and 1.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): _normal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(item) for item in value]
    return value


def _for_machines(value: JSON | Absent) -> JSON:
    return None if isinstance(value, Absent) else value


def _show_pair(old: JSON | Absent, new: JSON | Absent) -> tuple[str, str]:
    """Both values in short; of long ones, the part where they begin to differ."""
    was, now = _canonical(old), _canonical(new)
    if max(len(was), len(now)) <= _SHOWN:
        return was, now
    pairs = enumerate(zip(was, now, strict=False))
    first = next((index for index, (a, b) in pairs if a != b), min(len(was), len(now)))
    start = max(0, first - _SHOWN // 3)
    return _cut(was, start), _cut(now, start)


def _cut(text: str, start: int) -> str:
    head, tail = "..." if start else "", "..." if len(text) > start + _SHOWN else ""
    return head + text[start : start + _SHOWN] + tail
