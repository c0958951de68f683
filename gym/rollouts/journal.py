"""The append-only files of a run: `rollouts.jsonl` and `failures.jsonl`.

One line is one finished rollout, or one failed try. A line is written whole with its newline, so that a killed run
leaves at most one torn line, at the end. Loading keeps what scoring and resuming need and forgets the response bodies.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from gym.errors import Problem, UserError
from gym.rollouts.rows import Failure, Key, Reader, Row, TaskKey, parse_object

KnownTasks: TypeAlias = Callable[[str, str], bool] | Container[TaskKey]

_CHUNK = 1 << 16


class Journal:
    """A file of rows that is only ever appended to. One writer at a time (see `gym.rollouts.rundir`).

    Opening truncates a torn last line first, so that the next row starts on a fresh line.

    Raises:
        UserError: The file cannot be opened or written (a full disk, say). Rows that were written before stay whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _mend_tail(self._fd)
        except OSError as error:
            if self._fd >= 0:
                os.close(self._fd)
            raise _unwritable(path, error) from error

    def append(self, row: Mapping[str, object]) -> None:
        """Write one row and hand it to the operating system.

        Raises:
            UserError: The row could not be written; the file ends with the row before it.
            ValueError: The reward is not a finite number, or the journal is closed.
        """
        if self._fd < 0:
            raise ValueError(f"{self.path} is closed")
        line = encode(row)
        try:
            _write_whole(self._fd, line)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        """Bring everything to the disk and close. Closing twice is harmless."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            os.fsync(fd)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            os.close(fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encode(row: Mapping[str, object]) -> bytes:
    """The row as one line that every JSON reader accepts.

    What JSON cannot say is replaced: a half of a surrogate pair by U+FFFD, a non-finite number (a log probability of
    minus infinity) by null.

    Raises:
        ValueError: The reward is not a finite number.
    """
    reward = row.get("reward", 0.0)
    if isinstance(reward, float) and not math.isfinite(reward):
        raise ValueError(f"reward {reward} of {row.get('rollout_id')} is not a finite number")
    try:
        text = _dump(dict(row))
    except ValueError:
        text = _dump(_finite(dict(row)))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode() + b"\n"


def _dump(row: object) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


def _write_whole(fd: int, line: bytes) -> None:
    """Write all of the line or none of it: a full disk cuts one write short and reports the error on the next."""
    before = os.fstat(fd).st_size
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.ftruncate(fd, before)
        raise


def _mend_tail(fd: int) -> None:
    """Cut a torn last line off; end a whole last line that only lacks its newline."""
    size = os.fstat(fd).st_size
    start, chunks = size, list[bytes]()
    while start > 0 and not (chunks and b"\n" in chunks[-1]):
        step = min(_CHUNK, start)
        start -= step
        chunks.append(os.pread(fd, step, start))
    tail = b"".join(reversed(chunks)).rpartition(b"\n")[2]
    if parse_object(tail) is not None:
        _write_whole(fd, b"\n")
    elif tail:
        os.ftruncate(fd, size - len(tail))


def _unwritable(path: Path, error: OSError) -> UserError:
    fix = "make room, or choose another output, and run again: the rollouts written so far are kept"
    return UserError(Problem(f"cannot write the file: {error.strerror}", fix=fix, where=str(path)))


@dataclass
class Loaded:
    """The finished rollouts of a run.

    Attributes:
        path: The file.
        rows: The row that counts for each attempt: that of its highest try.
        aside: Rows of tasks that are not in this run; they stay in the file.
        notes: What was dropped or kept aside, one line each.
        torn_at: Byte offset of a torn last line; None where the file ends well.
    """

    path: Path
    rows: dict[Key, Row] = field(default_factory=dict)
    aside: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    torn_at: int | None = None


@dataclass
class LoadedFailures:
    """The latest failed try of each attempt, whether or not a later try finished. Attributes as in `Loaded`.

    Attributes:
        usages: What the failed tries used, all of them.
    """

    path: Path
    rows: dict[Key, Failure] = field(default_factory=dict)
    usages: list[Mapping[str, int | float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    torn_at: int | None = None


def load(path: Path, known_tasks: KnownTasks | None = None) -> Loaded:
    """Read `rollouts.jsonl`, line by line. A file that does not exist has no rows.

    Args:
        path: The file.
        known_tasks: The tasks of this run, as a set of (taskset, task id) or a predicate; None takes all.

    Raises:
        UserError: A line other than a torn last one is malformed, or one try has two different rewards.
    """
    reader = Reader(path, Row)
    known = _predicate(known_tasks)
    loaded = Loaded(path)
    tries: dict[tuple[Key, int], Row] = {}
    repeats: list[Row] = []
    for row in reader:
        if not known(row.taskset, row.task_id):
            loaded.aside.append(row)
            continue
        first = tries.setdefault((row.key, row.try_), row)
        if first is not row:
            reader.problems.extend(_conflict(path, first, row))
            repeats.append(row)
    reader.finish()
    for row in sorted(tries.values(), key=lambda row: row.try_):
        loaded.rows[row.key] = row
    loaded.torn_at = reader.torn_at
    loaded.notes = [*reader.notes(), *_repeat_notes(repeats, tries), *_aside_notes(loaded.aside)]
    return loaded


def load_failures(path: Path, known_tasks: KnownTasks | None = None) -> LoadedFailures:
    """Read `failures.jsonl`, line by line; of one attempt the highest try counts, and the later line of equal tries.

    Raises:
        UserError: A line other than a torn last one is malformed.
    """
    reader = Reader(path, Failure)
    known = _predicate(known_tasks)
    loaded = LoadedFailures(path)
    for failure in reader:
        last = loaded.rows.get(failure.key)
        loaded.usages += [failure.usage] if failure.usage else []
        if known(failure.taskset, failure.task_id) and (last is None or failure.try_ >= last.try_):
            loaded.rows[failure.key] = failure
    reader.finish()
    loaded.torn_at = reader.torn_at
    loaded.notes = reader.notes()
    return loaded


def _predicate(known: KnownTasks | None) -> Callable[[str, str], bool]:
    if known is None:
        return lambda _taskset, _task_id: True
    if callable(known):
        return known
    return lambda taskset, task_id: (taskset, task_id) in known


def _conflict(path: Path, first: Row, second: Row) -> Iterator[Problem]:
    if first.reward != second.reward:
        yield Problem(
            f"task {first.task_id}, attempt {first.attempt}, try {first.try_} has two rewards: "
            f"{first.reward} on line {first.line} and {second.reward} on line {second.line}",
            fix="remove the wrong line",
            where=f"{path}:{second.line}",
            order=(0, second.line),
        )


def _repeat_notes(repeats: list[Row], tries: Mapping[tuple[Key, int], Row]) -> Iterator[str]:
    same = [row for row in repeats if row == tries[row.key, row.try_]]
    other = [row for row in repeats if row != tries[row.key, row.try_]]
    for rows, kind in ((same, "identical"), (other, "equally rewarded")):
        if rows:
            noun = "repeat" if len(rows) == 1 else "repeats"
            yield f"{len(rows)} {kind} {noun} dropped ({_some([f'line {row.line}' for row in rows])})"


def _aside_notes(rows: list[Row]) -> Iterator[str]:
    if rows:
        what = "1 row of an unknown task" if len(rows) == 1 else f"{len(rows)} rows of unknown tasks"
        yield f"{what} kept aside ({_some(list(dict.fromkeys(row.task_id for row in rows)))})"


def _some(names: list[str]) -> str:
    more = f", and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
