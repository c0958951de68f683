"""What can be passed to a process: words of a command, variables, and paths in a sandbox."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from gym.sandbox.spec import ExecResult, Mount


def unfit(words: Sequence[str], what: str = "a command") -> str | None:
    """Why these words cannot be passed to a process; None when they can."""
    for word in words:
        if "\0" in word:
            return f"{what} cannot contain a NUL character"
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            return f"{what} cannot contain half a surrogate pair"
    return None


def refused(reason: str) -> ExecResult:
    """The result of a command that no shell could start."""
    return ExecResult(exit_code=126, stderr=f"sh: {reason}\n".encode())


def checked_environment(env: Mapping[str, str], *, utf8: bool = False) -> dict[str, str]:
    """The same variables.

    Args:
        utf8: Other bytes cannot be carried.

    Raises:
        ValueError: a name or value that no environment can hold.
    """
    for name, value in env.items():
        if not name or "=" in name or unfit([name, value]) or (utf8 and not is_utf8(name + value)):
            raise ValueError(f"no environment can hold the variable {name!r}")
    return dict(env)


def is_utf8(word: str) -> bool:
    """Whether a word has no bytes in it (half surrogates of `os.fsdecode`) that are not UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuses_workdir(workdir: str) -> str | None:
    """Why a sandbox cannot have this work directory; None when it can."""
    path = PurePosixPath(workdir)
    if not path.is_absolute() or ".." in path.parts or "\0" in workdir:
        return "it must be an absolute path without `..`"
    return "it must lie below the root" if path == PurePosixPath("/") else None


def refuses_mount(mount: Mount) -> str | None:
    """Why no sandbox can have this mount; None when one can."""
    path = PurePosixPath(mount.target)
    if not path.is_absolute() or ".." in path.parts or "\0" in mount.target or path == PurePosixPath("/"):
        return "its target must be an absolute path below the root, without `..`"
    return (
        None
        if mount.source.is_dir() and mount.source.is_absolute()
        else "its source must be a folder, by its absolute path"
    )


def absolute(workdir: str, path: str) -> str:
    """A path in a sandbox, from the root.

    Raises:
        ValueError: it contains what no path can.
        PermissionError: it contains `..`.
    """
    if (reason := unfit([path], "a path")) is not None:
        raise ValueError(reason)
    if ".." in PurePosixPath(path).parts:
        raise PermissionError(errno.EACCES, "a path in a sandbox may not contain `..`", path)
    return str(PurePosixPath(workdir) / path)
