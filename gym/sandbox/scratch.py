"""Folders for copies of what sandboxes hold, which a later process removes where the one that made them was killed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from gym.sandbox.owner import Owner

_NAMED = re.compile(r"(\d+)\.(\d+)\.(\d+)\.([0-9a-f-]+)\..*", re.DOTALL)
"""Process, its start time, the number of its pid namespace and the boot, as in `Owner`."""


def scratch(name: str) -> tempfile.TemporaryDirectory[str]:
    """A new folder in the temporary directory, named after what it is for and the running process.

    The first one of a process removes those of ended processes.
    """
    try:
        home = _home()
        _sweep_once(home)
        prefix = f"{_words(Owner.current())}.{name}-"
    except OSError:  # somebody else's folder has the name, or there is no /proc: as any other temporary folder
        return tempfile.TemporaryDirectory(prefix=f"gym-{name}-")
    return tempfile.TemporaryDirectory(prefix=prefix, dir=home)


def sweep_scratch() -> None:
    """Remove the folders of ended processes; what cannot be removed is left to the next sweep."""
    with suppress(OSError):
        _sweep(_home())


@cache
def _sweep_once(home: Path) -> None:
    with suppress(OSError):
        _sweep(home)


def _sweep(home: Path) -> None:
    observer = Owner.current()
    for path in home.iterdir():
        owner = _owner(path.name)
        if owner is not None and owner.gone(observer):
            shutil.rmtree(path, ignore_errors=True)


def _home() -> Path:
    """The folder of this user's folders, which nobody else may enter."""
    home = Path(tempfile.gettempdir()) / f"gym-scratch-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{home} is not ours alone")
    return home


def _words(owner: Owner) -> str:
    return f"{owner.pid}.{owner.start_time}.{owner.pid_namespace.strip('pid:[]')}.{owner.boot}"


def _owner(name: str) -> Owner | None:
    if (found := _NAMED.fullmatch(name)) is None:
        return None
    pid, start_time, namespace, boot = found.groups()
    return Owner(pid=int(pid), start_time=start_time, pid_namespace=f"pid:[{namespace}]", boot=boot)
