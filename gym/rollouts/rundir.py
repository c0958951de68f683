"""The directory of a run: its place, its one writer, and files that are replaced whole.

Two runs never share a directory by accident, and nothing in a directory that the user named is ever deleted: what
an overwritten run left is moved aside, and files that no run writes are not touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import socket
import tempfile
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType

from gym.errors import Problem, UserError

ROLLOUTS = "rollouts.jsonl"
FAILURES = "failures.jsonl"
METRICS = "metrics.json"
CONFIG = "config.yaml"
PROVENANCE = "provenance.json"
IDENTITY = "identity.json"
TASKS = "rollouts"
EVIDENCE = "evidence"
LOG = "run.log"
LOGS = "logs"
MODEL_CALLS = "model_calls"
RUN_FILES = (ROLLOUTS, FAILURES, METRICS, CONFIG, PROVENANCE, IDENTITY, TASKS, EVIDENCE, LOG, LOGS, MODEL_CALLS)
"""Everything that a run writes into its directory."""
LOCK = ".run-lock"


@dataclass
class RunDirectory:
    """A directory that this process alone writes to, until it is closed or the process ends.

    Attributes:
        path: The directory.
        continued: A run has written here before.
        moved_aside: Where the files of an overwritten run are now; None where there were none.
    """

    path: Path
    continued: bool
    moved_aside: Path | None
    _lock: int = field(repr=False)

    def close(self) -> None:
        """Let another process write here. Closing twice is harmless."""
        if self._lock >= 0:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fresh_output(experiment: str, root: Path = Path("results"), now: datetime | None = None) -> Path:
    """Make `root/experiment/YYYY-MM-DD_HH-MM-SS`, with -2, -3, ... appended while another run has the name.

    Raises:
        UserError: The directory cannot be made.
    """
    stamp = (now or datetime.now()).strftime("%Y-%m-%d_%H-%M-%S")
    parent = root / experiment
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = parent / (stamp if number == 1 else f"{stamp}-{number}")
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
    except OSError as error:
        raise _unusable(parent, error) from error
    raise AssertionError("unreachable")


def create_run_directory(output: Path, *, overwrite: bool) -> RunDirectory:
    """Make or reopen a run's directory and hold it.

    Args:
        output: The directory; parents are made.
        overwrite: Start afresh: what an earlier run left is moved to `previous-1`, `previous-2`, ... in there.

    Raises:
        UserError: Another process writes there, the directory cannot be made or written, or it is no run's and has
            files of the names that a run writes.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(output)
        lock = _lock(output)
    except OSError as error:
        raise _unusable(output, error) from error
    directory = RunDirectory(output, continued=bool(_left(output)), moved_aside=None, _lock=lock)
    if overwrite and directory.continued:
        try:
            directory.moved_aside = _move_aside(output)
        except OSError as error:
            directory.close()
            raise _unusable(output, error) from error
        directory.continued = False
    return directory


def write_json(path: Path, data: object) -> None:
    """Replace a file by the data as JSON, in one step: a reader sees the old text or the new, never a part.

    Raises:
        UserError: The file cannot be written; the old one is left as it was.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        _replace(path, text)
    except OSError as error:
        fix = "make room, or choose another output"
        raise UserError(Problem(f"cannot write the file: {error.strerror}", fix=fix, where=str(path))) from error


def _replace(path: Path, text: str) -> None:
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _lock(output: Path) -> int:
    """Hold the directory's lock file. The kernel lets go of it when the process ends, however it ends."""
    fd = os.open(output / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(fd)
        fix = "wait for it, stop it, or choose another output"
        raise UserError(Problem(f"{holder} is writing to this run directory", fix=fix, where=str(output))) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return fd


def _left(output: Path) -> list[Path]:
    return [output / name for name in RUN_FILES if (output / name).exists()]


def _refuse_foreign(output: Path) -> None:
    left = _left(output)
    if left and not any((output / name).exists() for name in (LOCK, IDENTITY, PROVENANCE)):
        names = ", ".join(path.name for path in left)
        what = f"the directory is no run's, and a run would write over what is there: {names}"
        raise UserError(Problem(what, fix="choose another output", where=str(output)))


def _move_aside(output: Path) -> Path:
    names = (output / f"previous-{number}" for number in itertools.count(1))
    aside = next(path for path in names if not path.exists())
    aside.mkdir()
    for path in _left(output):
        path.rename(aside / path.name)
    return aside


def _unusable(path: Path, error: OSError) -> UserError:
    what = f"cannot use the directory: {error.strerror}"
    return UserError(Problem(what, fix="choose another output", where=str(path)))
