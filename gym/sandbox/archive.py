"""Folders as tar streams: packed from the host without a temporary file, and unpacked from an untrusted place.

Links are the danger of unpacking: one that is recreated on the host may lead a later reader anywhere. So only links
that lead further down are kept, nothing is written through a link, and what is left out is reported by name.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

CHUNK = 1024 * 1024
MAX_DEPTH = 200
_BLOCK = tarfile.BLOCKSIZE


def pack(source: Path, owner: tuple[int, int], prefix: str = ".") -> Iterator[bytes]:
    """A host folder as a tar stream, in chunks.

    Args:
        source: The folder.
        owner: User and group that everything belongs to.
        prefix: Name of the folder itself in the stream.

    Raises:
        PermissionError: it holds something that is neither a file, folder nor link.
        OSError: as for local files.
    """
    for path, name in _walk(source, prefix):
        yield from _member(path, name, owner)
    yield bytes(2 * _BLOCK)


def _walk(source: Path, name: str) -> Iterator[tuple[Path, str]]:
    yield source, name
    with os.scandir(source) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            inner = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), inner)
            else:
                yield Path(entry.path), inner


def _member(path: Path, name: str, owner: tuple[int, int]) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    found = path.lstat()
    info.uid, info.gid = owner
    info.mtime = found.st_mtime
    info.mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISLNK(found.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
    elif stat.S_ISDIR(found.st_mode):
        info.type = tarfile.DIRTYPE
    elif not stat.S_ISREG(found.st_mode):
        raise PermissionError(errno.EACCES, "not a file, folder or link", str(path))
    if info.type != tarfile.REGTYPE:
        yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        return
    with path.open("rb") as file:
        info.size = os.fstat(file.fileno()).st_size
        yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        left = info.size
        # A file that shrinks meanwhile is filled up, one that grows is cut: the stream has promised its size.
        while left:
            chunk = file.read(min(left, CHUNK)) or bytes(min(left, CHUNK))
            left -= len(chunk)
            yield chunk
    if padding := -info.size % _BLOCK:  # an empty chunk would end the upload
        yield bytes(padding)


def unpack(stream: IO[bytes], target: Path, max_bytes: int | None = None) -> list[str]:
    """Write the content of an untrusted tar stream into the folder `target`.

    Args:
        max_bytes: Bound for all files together.

    Returns:
        What was left out, relative to the folder, sorted.

    Raises:
        OSError: `EFBIG` when there is more than `max_bytes`; `EIO` when it is no tar stream; as for local files.
    """
    target.mkdir(parents=True, exist_ok=True)
    unpacking = _Unpacking(target, max_bytes)
    try:
        with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                if parts := _parts(member.name):
                    unpacking.member(archive, member, parts)
    except tarfile.TarError as error:
        raise OSError(errno.EIO, f"the sandbox sent no valid archive: {error}") from error
    return sorted(unpacking.left_out)


class _Unpacking:
    """One unpacking: what is left of the byte budget, and what was left out."""

    def __init__(self, target: Path, max_bytes: int | None) -> None:
        self._target = target
        self._max_bytes = max_bytes
        self._bytes = 0
        self.left_out: set[str] = set()

    def member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, parts: list[str]) -> None:
        name = "/".join(parts)
        if ".." in parts or len(parts) > MAX_DEPTH or (member.isdir() and len(parts) >= MAX_DEPTH):
            self.left_out.add("/".join(parts[:MAX_DEPTH]))
        elif not self._real_folders(parts[:-1]):
            self.left_out.add(name)
        elif member.isdir():
            _replace_unless_folder(self._target / name)
            (self._target / name).mkdir(exist_ok=True)
        elif member.issym():
            self._link(member, name)
        elif member.islnk():
            self._copy(member, name)
        elif member.isreg():
            self._file(archive, member, name)
        else:
            self.left_out.add(name)

    def _real_folders(self, parts: list[str], *, make: bool = True) -> bool:
        """Whether everything above an entry is a folder, made if it is missing."""
        path = self._target
        for part in parts:
            path = path / part
            if not os.path.lexists(path):
                if not make:
                    return False
                path.mkdir()
            if not stat.S_ISDIR(path.lstat().st_mode):
                return False
        return True

    def _link(self, member: tarfile.TarInfo, name: str) -> None:
        if member.linkname.startswith("/") or ".." in member.linkname.split("/"):
            self.left_out.add(name)
            return
        path = self._target / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        path.symlink_to(member.linkname)

    def _copy(self, member: tarfile.TarInfo, name: str) -> None:
        """A second name of a file that came before."""
        parts = _parts(member.linkname)
        source = self._target.joinpath(*parts)
        inside = ".." not in parts and self._real_folders(parts[:-1], make=False)
        if not inside or source.is_symlink() or not source.is_file():
            self.left_out.add(name)
            return
        found = source.stat()
        with source.open("rb") as content:
            self._write(name, content, found.st_size, found.st_mode)

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        content = archive.extractfile(member)
        assert content is not None
        self._write(name, content, member.size, member.mode)

    def _write(self, name: str, content: IO[bytes], size: int, mode: int) -> None:
        self._bytes += size
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            raise OSError(errno.EFBIG, f"more than {self._max_bytes} bytes")
        path = self._target / name
        part = path.with_name(f".{os.urandom(8).hex()}.part")
        try:
            with part.open("xb") as out:
                shutil.copyfileobj(content, out, CHUNK)
            part.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _parts(name: str) -> list[str]:
    """Names from the target folder down to an entry."""
    return [part for part in PurePosixPath(name).parts if part not in ("/", ".")]


def _replace_unless_folder(path: Path) -> None:
    """A link or file in the place of a folder gives way."""
    if path.is_symlink() or path.is_file():
        path.unlink()
