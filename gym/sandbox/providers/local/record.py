"""The record in each sandbox directory: who owns it and how it was made; and the sweep of what owners left behind.

Layout of a sandbox directory: `sandbox.json` (this record), `files/` (what the sandbox sees), `system/` (small files
that are shown to it read-only). The code inside reaches only `files/`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from gym.sandbox import processes
from gym.sandbox.interface import Found, Network
from gym.sandbox.owner import Owner
from gym.sandbox.providers.local import groups

RECORD = "sandbox.json"
ARRIVING = ".new"
"""End of the name of a directory that gets its record just now."""
UNFINISHED_SECONDS = 60.0
OURS = re.compile("gym-[0-9a-f]{12}")


class Record(BaseModel):
    """How a sandbox was made: enough to run commands in it from another process.

    Attributes:
        lease: What borrowers must name; a new one takes the sandbox back from them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    owner: Owner
    labels: dict[str, str]
    created_at: float
    expires_at: float | None
    isolation: str
    workdir: str
    env: dict[str, str]
    network: Network
    control_groups: list[str] = []
    limits: str = ""
    mounts: list[tuple[str, str]] = []
    gym_address: tuple[str, int] | None = None
    lease: str = ""

    def begin(self, directory: Path) -> None:
        """Make a sandbox directory that has this record from the start, whenever this process is killed.

        Raises:
            OSError: it cannot be made; nothing is left of it.
        """
        arriving = directory.with_name(f".{directory.name}{ARRIVING}")
        try:
            arriving.mkdir(mode=0o700)
            self.save(arriving)
            arriving.rename(directory)
        except OSError:
            shutil.rmtree(arriving, ignore_errors=True)
            raise

    def save(self, directory: Path) -> None:
        """Write the record, readable only by this user; readers see the old one or the new one."""
        path = directory / f".{RECORD}"
        path.touch(0o600)
        path.write_text(self.model_dump_json())
        path.replace(directory / RECORD)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the record of a sandbox directory.

        Raises:
            FileNotFoundError: there is no sandbox in it.
            ValueError: the file is damaged.
        """
        return cls.model_validate_json((directory / RECORD).read_text())


def new_id() -> str:
    """A name for a new sandbox. Only directories of such names are ever swept."""
    return f"gym-{secrets.token_hex(6)}"


def new_lease() -> str:
    """What the descriptors of a sandbox name from now on."""
    return secrets.token_hex(6)


def default_root() -> Path:
    """Where sandboxes live unless told otherwise: one folder a user, so that a later run finds what is left over."""
    return Path(tempfile.gettempdir()) / f"gym-sandboxes-{os.getuid()}"


def sweep(root: Path | None = None) -> int:
    """Remove the sandboxes under `root` whose owner has ended, with their processes, and all such owners' groups.

    Args:
        root: The folder of a provider; None is the default one.

    Returns:
        The number of sandboxes removed.
    """
    observer = Owner.current()
    left = list(_left_behind(root or default_root(), observer))
    if left:
        for pid in processes.marked(tuple(f"{_sandbox_id(path)}:" for path in left)):
            processes.kill(pid)
    removed = sum(map(_claim_and_remove, left))
    groups.sweep(observer)
    return removed


def found(root: Path) -> list[Found]:
    """The sandboxes under `root`."""
    observer = Owner.current()
    records = []
    for path in sorted(root.glob("gym-*")):
        with suppress(OSError, ValidationError):
            records.append(Record.load(path))
    return [Found(item.id, item.labels, item.owner.pid, item.created_at, item.owner.gone(observer)) for item in records]


def remove(directory: Path, sandbox_id: str) -> None:
    """Remove the directory and control groups of a sandbox whose processes are gone, whatever its code did to them.

    Raises:
        OSError: something is still there.
    """
    groups.remove(sandbox_id)
    if not directory.exists():
        return
    try:
        shutil.rmtree(directory)
    except (OSError, RecursionError):
        # Folders without permissions, or too deep for Python.
        subprocess.run(["chmod", "-R", "u+rwx", str(directory)], capture_output=True, check=False)
        done = subprocess.run(["rm", "-rf", str(directory)], capture_output=True, check=False, text=True)
        if directory.exists():
            raise OSError(f"could not remove {directory}: {done.stderr.strip()[:500]}") from None


def _left_behind(root: Path, observer: Owner) -> Iterator[Path]:
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        if not OURS.fullmatch(_sandbox_id(path)):
            continue
        try:
            gone = Record.load(path).owner.gone(observer)
        except (OSError, ValidationError):
            gone = _is_unfinished(path)
        if gone:
            yield path


def _is_unfinished(path: Path) -> bool:
    """Whether a directory was begun long ago; a newer one is perhaps only being made, and may get its name now."""
    with suppress(OSError):
        return path.is_dir() and time.time() - path.stat().st_mtime > UNFINISHED_SECONDS
    return False


def _claim_and_remove(path: Path) -> bool:
    """Remove one directory, unless another sweep was faster."""
    claimed = path.with_name(f".{_sandbox_id(path)}.swept")
    try:
        path.rename(claimed)
        remove(claimed, _sandbox_id(path))
    except OSError:
        return False
    return True


def _sandbox_id(path: Path) -> str:
    """The sandbox of a directory, which may be arriving, or be claimed by an earlier sweep that did not finish."""
    return path.name.removeprefix(".").removesuffix(".swept").removesuffix(ARRIVING)
