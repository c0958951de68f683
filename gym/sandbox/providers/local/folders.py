"""Steps from one open folder of a sandbox's tree (`openat` and `O_NOFOLLOW`): no link is ever followed. They block."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a planted pipe would block the reader for ever.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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


def link_target(name: str, parent: int) -> str | None:
    """Where a link leads; None for what is no link, or is not there."""
    try:
        return os.readlink(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def enter(name: str, parent: int, *, create: bool) -> int:
    """Open a real folder, made first if it is missing and `create` is set."""
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, DIRECTORY, dir_fd=parent)


def write_all(fd: int, content: bytes) -> None:
    """Write all of it, in as many steps as that takes."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def write_new(parent: int, name: str, mode: int, fill: Callable[[int], object]) -> None:
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


def copy_file_in(source: Path, parent: int, name: str, mode: int | None) -> None:
    """Put a host file in the place of `name`; by default with its own mode."""
    with source.open("rb", buffering=0) as file:
        if mode is None:
            mode = os.fstat(file.fileno()).st_mode
        write_new(parent, name, mode, lambda out: copy_content(file.fileno(), out))


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
        write_all(target, chunk)
    return copied


def copy_folder_in(source: Path, parent: int, name: str) -> None:
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
        os.close(enter(entry.name, folder, create=True))
        copy_folder_in(Path(entry.path), folder, entry.name)
    elif entry.is_file():
        copy_file_in(Path(entry.path), folder, entry.name, None)
    else:
        raise PermissionError(errno.EACCES, "not a file, folder or link", entry.path)


def _copy_link_in(target: str, folder: int, name: str) -> None:
    try:
        os.symlink(target, name, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        os.symlink(target, name, dir_fd=folder)
