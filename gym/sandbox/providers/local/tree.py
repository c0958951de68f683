"""Access to the files of a sandbox from the host, although the code inside may plant links and swap folders.

Every path is walked component by component with open folders (`openat` and `O_NOFOLLOW`). Links are followed as the
sandbox itself would follow them, and never out of it. All functions block; callers put them in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a planted pipe would block the reader for ever.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
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
            PermissionError: the path leaves the sandbox or leads to the system's part.
            OSError: as for local files.
        """
        if ".." in PurePosixPath(path).parts:
            raise PermissionError(errno.EACCES, "a path in a sandbox may not contain `..`", path)
        stack = [os.open(self.directory, DIRECTORY)]
        try:
            yield self._walk(stack, self._parts(path), path, create=create, follow=follow)
        finally:
            for fd in stack:
                os.close(fd)

    def _parts(self, path: str) -> list[str]:
        """Names from the root of the tree down to `path`."""
        absolute = PurePosixPath(self.workdir) / path
        try:
            return list(absolute.relative_to(self._name).parts)
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
            target = _link_target(name, stack[-1])
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
                stack.append(_enter(name, stack[-1], create=create))
        return stack[-1], "."

    def make_directory(self, path: str) -> None:
        """Make a folder and its parents, unless they exist."""
        with self.located(path, create=True, follow=True) as (parent, name):
            if name != ".":
                os.close(_enter(name, parent, create=True))

    def write(self, content: bytes, target: str, mode: int = 0o644) -> None:
        """Write a file at once: it appears complete or not at all."""
        with self.located(target, create=True) as (parent, name):
            _write_new(parent, name, mode, lambda out: _write_all(out, content))

    def copy_in(self, source: Path, target: str, mode: int | None = None) -> None:
        """Copy a host file or folder to `target`."""
        if not source.is_dir():
            with self.located(target, create=True) as (parent, name):
                _copy_file_in(source, parent, name, mode)
            return
        self.make_directory(target)
        with self.located(target, follow=True) as (parent, name):
            _copy_folder_in(source, parent, name)

    def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a file of at most `max_bytes`."""
        with self.located(path, follow=True) as (parent, name):
            fd = open_regular(parent, name, path)
            with os.fdopen(fd, "rb") as file:
                content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise OSError(errno.EFBIG, f"longer than {max_bytes} bytes", path)
        return content


def open_regular(parent: int, name: str, path: str) -> int:
    """Open a file for reading, and nothing else than a file.

    Raises:
        PermissionError: it is a link, pipe, socket or device.
        IsADirectoryError: it is a folder.
    """
    try:
        fd = os.open(name, READ, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise PermissionError(errno.EACCES, "not a regular file", path) from error
        raise
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise PermissionError(errno.EACCES, "not a regular file", path)


def _link_target(name: str, parent: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _enter(name: str, parent: int, *, create: bool) -> int:
    """Open a real folder, made first if it is missing and `create` is set."""
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, DIRECTORY, dir_fd=parent)


def _close_above_root(stack: list[int]) -> None:
    while len(stack) > 1:
        os.close(stack.pop())


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _write_new(parent: int, name: str, mode: int, fill: Callable[[int], object]) -> None:
    """Fill a new file and put it in the place of `name`, which may be a file or a planted link."""
    part = f".{os.urandom(8).hex()}.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        try:
            fill(fd)
            os.fchmod(fd, mode & 0o777)
        finally:
            os.close(fd)
        os.rename(part, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        os.unlink(part, dir_fd=parent)
        raise


def _copy_file_in(source: Path, parent: int, name: str, mode: int | None) -> None:
    with source.open("rb", buffering=0) as file:
        if mode is None:
            mode = os.fstat(file.fileno()).st_mode
        _write_new(parent, name, mode, lambda out: copy_content(file.fileno(), out))


def copy_content(source: int, target: int, max_bytes: int | None = None) -> int:
    """Copy from one open file to another in chunks.

    Returns:
        The number of bytes copied.

    Raises:
        OSError: `EFBIG` when there are more than `max_bytes`.
    """
    copied = 0
    while chunk := os.read(source, 1024 * 1024):
        copied += len(chunk)
        if max_bytes is not None and copied > max_bytes:
            raise OSError(errno.EFBIG, f"more than {max_bytes} bytes")
        _write_all(target, chunk)
    return copied


def _copy_folder_in(source: Path, parent: int, name: str) -> None:
    """Merge a host folder into the existing folder `name`."""
    folder = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        with os.scandir(source) as entries:
            for entry in entries:
                _copy_entry_in(entry, folder)
        os.fchmod(folder, source.stat().st_mode & 0o777)
    finally:
        os.close(folder)


def _copy_entry_in(entry: os.DirEntry[str], folder: int) -> None:
    if entry.is_symlink():
        _copy_link_in(str(Path(entry.path).readlink()), folder, entry.name)
    elif entry.is_dir():
        os.close(_enter(entry.name, folder, create=True))
        _copy_folder_in(Path(entry.path), folder, entry.name)
    elif entry.is_file():
        _copy_file_in(Path(entry.path), folder, entry.name, None)
    else:
        raise PermissionError(errno.EACCES, "not a file, folder or link", entry.path)


def _copy_link_in(target: str, folder: int, name: str) -> None:
    try:
        os.symlink(target, name, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        os.symlink(target, name, dir_fd=folder)
