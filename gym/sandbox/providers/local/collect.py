"""Copy untrusted files out of a sandbox's tree onto the host.

Links are the danger: one that is recreated on the host may lead a later reader anywhere. So only links that lead
further down are kept; whatever else is left out is reported by name.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath

from gym.sandbox.providers.local.folders import DIRECTORY, copy_content, open_regular
from gym.sandbox.providers.local.tree import Tree

MAX_DEPTH = 200


def copy_out(tree: Tree, source: str, target: Path, max_bytes: int | None = None) -> list[str]:
    """Copy a file or folder of `tree` to `target`.

    Returns:
        Entries of a folder that were left out, relative to it, sorted.

    Raises:
        PermissionError: the path leaves the sandbox, or is neither a file nor a folder.
        OSError: `EFBIG` when there is more than `max_bytes`, and as for local files.
    """
    copy = _Copy(source, max_bytes)
    with tree.located(source, follow=True) as (parent, name):
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            copy.folder(parent, name, target, PurePosixPath())
        else:
            copy.file(parent, name, target)
    return sorted(copy.left_out)


class _Copy:
    """One download: what is left of the byte budget, and what was left out."""

    def __init__(self, source: str, max_bytes: int | None) -> None:
        self._source = source
        self._budget = max_bytes
        self.left_out: list[str] = []

    def file(self, parent: int, name: str, target: Path) -> None:
        fd = open_regular(parent, name, self._source)
        part = target.with_name(f".{os.urandom(8).hex()}.part")
        try:
            executable = os.fstat(fd).st_mode & stat.S_IXUSR
            with part.open("xb", buffering=0) as out:
                copied = copy_content(fd, out.fileno(), self._budget)
            part.chmod(0o755 if executable else 0o644)
            part.replace(target)
        finally:
            os.close(fd)
            part.unlink(missing_ok=True)
        if self._budget is not None:
            self._budget -= copied

    def folder(self, parent: int, name: str, target: Path, path: PurePosixPath) -> None:
        folder = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            target.mkdir(exist_ok=True)
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._entry(folder, entry, target / entry.name, path / entry.name)
        finally:
            os.close(folder)

    def _entry(self, folder: int, entry: os.DirEntry[str], target: Path, path: PurePosixPath) -> None:
        if entry.is_symlink():
            link = os.readlink(entry.name, dir_fd=folder)
            if not _leads_down(link):
                self.left_out.append(str(path))
            else:
                _relink(target, link)
        elif entry.is_dir(follow_symlinks=False) and len(path.parts) < MAX_DEPTH:
            self.folder(folder, entry.name, target, path)
        elif entry.is_file(follow_symlinks=False):
            self.file(folder, entry.name, target)
        else:
            self.left_out.append(str(path))


def _leads_down(link: str) -> bool:
    """Whether a link's target has neither root nor `..`: then no chain of such links leaves the folder."""
    return not link.startswith("/") and ".." not in link.split("/")


def _relink(target: Path, link: str) -> None:
    try:
        target.symlink_to(link)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        target.unlink()
        target.symlink_to(link)
