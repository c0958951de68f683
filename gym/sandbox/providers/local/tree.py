"""Access to the files of a sandbox from the host, although the code inside may plant links and swap folders.

Every path is walked component by component with open folders. Links are followed as the sandbox itself would follow
them, and never out of it. All functions block; callers put them in a thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from gym.sandbox.providers.local.folders import (
    DIRECTORY,
    copy_file_in,
    copy_folder_in,
    enter,
    link_target,
    open_regular,
    write_all,
    write_new,
)
from gym.sandbox.words import absolute

MAX_LINKS = 40


class Tree:
    """One host directory, under the name that it has in the sandbox.

    Args:
        directory: The host directory.
        name: Its path in the sandbox: `/` where it is the root, its own host path where nothing is hidden.
        workdir: Where relative paths start, as a path in the sandbox.
        read_only: Top-level names that belong to the system; they are refused.
    """

    def __init__(self, directory: Path, name: str, workdir: str, read_only: frozenset[str] = frozenset()) -> None:
        self.directory = directory
        self.workdir = workdir
        self._name = PurePosixPath(name)
        self._read_only = read_only

    @contextmanager
    def located(self, path: str, *, create: bool = False, follow: bool = False) -> Iterator[tuple[int, str]]:
        """The open parent folder of `path` and the last name in it (`.` for the root itself).

        Args:
            path: Path in the sandbox.
            create: Make missing parents.
            follow: Resolve the last name too when it is a link. It may be swapped for a link afterwards, so open it
                with `O_NOFOLLOW` in any case.

        Raises:
            ValueError: no path can be like this.
            PermissionError: the path leaves the sandbox or leads to the system's part.
            OSError: as for local files.
        """
        parts = self._parts(absolute(self.workdir, path))
        stack = [os.open(self.directory, DIRECTORY)]
        try:
            yield self._walk(stack, parts, path, create=create, follow=follow)
        finally:
            for fd in stack:
                os.close(fd)

    def _parts(self, path: str) -> list[str]:
        """Names from the root of the tree down to `path`, which is absolute."""
        try:
            return list(PurePosixPath(path).relative_to(self._name).parts)
        except ValueError:
            raise PermissionError(errno.EACCES, f"outside of the sandbox, which is {self._name}", path) from None

    def _walk(self, stack: list[int], parts: list[str], path: str, *, create: bool, follow: bool) -> tuple[int, str]:
        pending = parts[::-1]
        links = 0
        while pending:
            name = pending.pop()
            if name == "..":
                if len(stack) > 1:
                    os.close(stack.pop())
                elif self._name != PurePosixPath("/"):
                    raise PermissionError(errno.EACCES, "a link leads out of the sandbox", path)
                continue
            if len(stack) == 1 and name in self._read_only:
                raise PermissionError(errno.EACCES, f"/{name} is a read-only part of the system", path)
            if not pending and not follow:
                return stack[-1], name
            target = link_target(name, stack[-1])
            if target is not None:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if target.startswith("/"):
                    _close_above_root(stack)
                    pending += self._parts(os.path.normpath(target))[::-1]
                else:
                    pending += [part for part in target.split("/") if part not in ("", ".")][::-1]
            elif not pending:
                return stack[-1], name
            else:
                stack.append(enter(name, stack[-1], create=create))
        return stack[-1], "."

    def make_directory(self, path: str) -> None:
        """Make a folder and its parents, unless they exist."""
        with self.located(path, create=True, follow=True) as (parent, name):
            if name != ".":
                os.close(enter(name, parent, create=True))

    def write(self, content: bytes, target: str, mode: int = 0o644) -> None:
        """Write a file at once: it appears complete or not at all."""
        with self.located(target, create=True) as (parent, name):
            write_new(parent, name, mode, lambda out: write_all(out, content))

    def copy_in(self, source: Path, target: str, mode: int | None = None) -> None:
        """Copy a host file or folder to `target`."""
        if not source.is_dir():
            with self.located(target, create=True) as (parent, name):
                copy_file_in(source, parent, name, mode)
            return
        self.make_directory(target)
        with self.located(target, follow=True) as (parent, name):
            copy_folder_in(source, parent, name)

    def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a file of at most `max_bytes`."""
        with self.located(path, follow=True) as (parent, name):
            fd = open_regular(parent, name, path)
            with os.fdopen(fd, "rb") as file:
                content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise OSError(errno.EFBIG, f"longer than {max_bytes} bytes", path)
        return content


def _close_above_root(stack: list[int]) -> None:
    while len(stack) > 1:
        os.close(stack.pop())
