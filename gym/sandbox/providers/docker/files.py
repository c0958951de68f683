"""Copy files into and out of a container, by commands that run in it.

So a path means what it means to the sandbox's own processes, also on a read-only root, on tmpfs and through links, and
one round trip is enough. The daemon's archive calls are no faster, see neither tmpfs nor a read-only root, and serve
only folders in images without `tar`. Errors come back as exit codes: 64 + errno.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from gym.sandbox import archive
from gym.sandbox.interface import ExecResult, StreamName
from gym.sandbox.providers.docker.command import run
from gym.sandbox.providers.docker.order import Container, Order
from gym.sandbox.waiting import uncancelled

TRANSFER_SECONDS = 1800.0
TAR_OVERHEAD_BYTES = 64 * 1024 * 1024
"""How much longer than its files the archive of a folder may be."""

ERROR_BASE = 64
NO_TAR = 63

# $1 target, $2 owner (`uid:gid`, or nothing where files belong to root), $3 kind (file or folder), $4 mode of a file.
PUT = r"""
fail() { code=$1; shift; [ "$#" = 0 ] || printf '%s\n' "$*" >&2; exit $((64 + code)); }
target=$1 owner=$2
if [ "$3" = file ]; then parent=${target%/*}; parent=${parent:-/}; else parent=$target; fi
[ "$3" = file ] || [ "$3" = there ] || command -v tar >/dev/null || exit 63
above=$parent new=
while [ ! -e "$above" ] && [ ! -L "$above" ]; do new=$above; above=${above%/*}; above=${above:-/}; done
[ -d "$above" ] || fail 20
if [ "$new" ]; then
    said=$(mkdir -p -- "$parent" 2>&1) || case $said in
        *"Read-only"*) fail 30 "$said" ;;
        *"No space"*) fail 28 "$said" ;;
        *) fail 13 "$said" ;;
    esac
    [ -z "$owner" ] || chown -R "$owner" "$new"
fi
if [ "$3" = there ]; then exit 0; fi
if [ "$3" = folder ]; then
    said=$(tar -x -f - -C "$parent" 2>&1) || case $said in
        *"No space"*) fail 28 "$said" ;;
        *"Read-only"*) fail 30 "$said" ;;
        *) fail 5 "$said" ;;
    esac
    exit 0
fi
[ ! -d "$target" ] || [ -L "$target" ] || fail 21
part=$parent/.gym-$$.part
trap 'rm -f -- "$part"' EXIT
said=$( { umask 077; cat >"$part"; } 2>&1 ) || case $said in
    *"No space"*) fail 28 "$said" ;;
    *"Read-only"*) fail 30 "$said" ;;
    *) fail 13 "$said" ;;
esac
[ -z "$owner" ] || chown "$owner" "$part"
chmod "$4" "$part"
# Else it would move into the folder that a link leads to.
[ ! -L "$target" ] || rm -f -- "$target"
mv -f -- "$part" "$target" || fail 13
"""

# $1 source, $2 largest size of a file or -1, $3 `file` where a folder is not wanted, $4 `open` to make a folder
# readable first. The kind goes to standard error.
GET = r"""
[ -e "$1" ] || { [ -L "$1" ] && ! readlink -f -- "$1" >/dev/null && exit 104; exit 66; }
if [ -d "$1" ]; then
    [ "$3" != file ] || exit 85
    command -v tar >/dev/null || exit 63
    echo folder >&2
    [ "$4" != open ] || chmod u+rX -- "$1"
    cd -- "$1" || exit 77
    [ "$4" != open ] || chmod -R u+rX .
    exec tar -c -f - .
fi
[ -f "$1" ] || exit 77
size=$(stat -L -c %s -- "$1") || exit 77
[ "$2" = -1 ] || [ "$size" -le "$2" ] || exit 91
stat -L -c 'file %a' -- "$1" >&2
[ "$2" = -1 ] || exec head -c "$(($2 + 1))" -- "$1"
exec cat -- "$1"
"""


class Files:
    """The files of one container.

    Args:
        owner: User and group of what is uploaded.
        writer: Who copies: root, or the owner where root may not write files for others.
    """

    def __init__(self, container: Container, owner: tuple[int, int] = (0, 0), writer: str = "0") -> None:
        self._container = container
        self._owner = owner
        self._writer = writer

    async def put(self, source: Path | bytes, target: str, mode: int | None) -> None:
        """Copy bytes, a host file or a host folder; see `Sandbox.upload`."""
        if isinstance(source, bytes):
            await self.put_file(source, target, 0o644 if mode is None else mode)
        elif source.is_dir():
            await self.put_folder(source, target)
        else:
            await self.put_file(source, target, source.stat().st_mode if mode is None else mode)

    async def put_file(self, content: bytes | Path, target: str, mode: int) -> None:
        """Write a file; it appears complete or not at all."""
        if isinstance(content, bytes):
            await self._put(content, target, "file", f"{mode & 0o777:o}")
            return
        with content.open("rb") as file:
            await self._put(iter(lambda: file.read(archive.CHUNK), b""), target, "file", f"{mode & 0o777:o}")

    async def put_folder(self, source: Path, target: str) -> None:
        """Merge a host folder into a folder."""
        stream = archive.pack(source, self._owner)
        if self._writer != "0":
            next(stream)  # the entry of the folder itself, whose mode and time only its owner may set
        if await self._put(stream, target, "folder", allow=NO_TAR) == NO_TAR:
            await self._put(b"", target, "there")
            stream = archive.pack(source, self._owner)
            path, container = os.fsencode(target), self._container
            await container.daemon.call(lambda api: api.put_archive(container.reference, path, stream))

    async def _put(self, content: bytes | Iterator[bytes], target: str, *words: str, allow: int = 0) -> int:
        owner = "" if self._owner == (0, 0) or self._writer != "0" else f"{self._owner[0]}:{self._owner[1]}"
        result = await self._run(["sh", "-c", PUT, "sh", target, owner, *words], stdin=content)
        if result.exit_code not in (0, allow):
            raise _error(result, target)
        return result.exit_code

    async def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a file of at most `max_bytes`."""
        result = await self._run(["sh", "-c", GET, "sh", path, str(max_bytes), "file"], max_output_bytes=max_bytes + 1)
        if result.exit_code == ERROR_BASE + errno.EFBIG or len(result.stdout) > max_bytes:
            raise OSError(errno.EFBIG, f"longer than {max_bytes} bytes", path)
        if result.exit_code:
            raise _error(result, path)
        return result.stdout

    async def get(self, source: str, target: Path, max_bytes: int | None) -> list[str]:
        """Copy a file or folder to the host; returns what of a folder was left out."""
        target.parent.mkdir(parents=True, exist_ok=True)
        limit = None if max_bytes is None else max_bytes + TAR_OVERHEAD_BYTES
        with _part(target) as (part, file):
            sink = _Sink(file, limit)
            words = ["sh", "-c", GET, "sh", source, str(-1 if max_bytes is None else max_bytes), ""]
            result = await self._run([*words, ""], on_output=sink.take)
            if _is_closed(result):
                # Without its powers, even root cannot read what its owner has closed; the owner can open it.
                sink.clear()
                result = await self._run([*words, "open"], on_output=sink.take)
            if result.exit_code == NO_TAR:
                await self._get_archive(source, sink)
                return await self._unpack(file, target, max_bytes)
            if result.exit_code == ERROR_BASE + errno.EFBIG:
                raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", source)
            said = result.stderr_text.splitlines()
            if said[:1] == ["folder"] and result.exit_code in (0, 1):  # 1: a file changed meanwhile
                return sorted({*await self._unpack(file, target, max_bytes), *_sockets(said)})
            if _is_closed(result):
                raise PermissionError(errno.EACCES, " ".join(said[1:])[-300:], source)
            if result.exit_code or not said or not said[0].startswith("file "):
                raise _error(result, source)
            if max_bytes is not None and sink.bytes > max_bytes:
                raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", source)
            file.flush()
            part.chmod(0o755 if int(said[0].split()[1], 8) & 0o100 else 0o644)
            part.replace(target)
        return []

    async def _get_archive(self, source: str, sink: _Sink) -> None:
        def fetch(api: Any) -> None:
            # With `/.` a link to a folder is followed.
            chunks, _ = api.get_archive(self._container.reference, os.fsencode(f"{source}/."))
            for chunk in chunks:
                sink.take("stdout", chunk)

        await uncancelled(self._container.daemon.call(fetch))

    async def _unpack(self, file: IO[bytes], target: Path, max_bytes: int | None) -> list[str]:
        file.seek(0)
        return await uncancelled(asyncio.to_thread(archive.unpack, file, target, max_bytes))

    async def _run(
        self,
        argv: list[str],
        *,
        stdin: bytes | Iterator[bytes] | None = None,
        max_output_bytes: int = 65536,
        on_output: Callable[[StreamName, bytes], None] | None = None,
    ) -> ExecResult:
        order = Order(
            argv,
            user=self._writer,
            stdin=stdin,
            timeout_seconds=TRANSFER_SECONDS,
            max_output_bytes=max_output_bytes,
            on_output=on_output,
            ours=True,
        )
        return await run(self._container, order)


def _is_closed(result: ExecResult) -> bool:
    """Whether a folder, or something in it, could not be read for its mode."""
    denied = result.exit_code == ERROR_BASE + errno.EACCES or "ermission denied" in result.stderr_text
    return denied and result.stderr_text.startswith("folder\n")


def _sockets(said: list[str]) -> list[str]:
    """Names that tar says it has left out."""
    head, tail = "tar: ./", ": socket ignored"
    return [line[len(head) : -len(tail)] for line in said if line.startswith(head) and line.endswith(tail)]


class _Sink:
    """Writes standard output to a file, up to a bound."""

    def __init__(self, file: IO[bytes], limit: int | None) -> None:
        self._file = file
        self._limit = limit
        self.bytes = 0

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.bytes = 0

    def take(self, name: StreamName, chunk: bytes) -> None:
        if name != "stdout":
            return
        self.bytes += len(chunk)
        if self._limit is not None and self.bytes > self._limit:
            raise OSError(errno.EFBIG, f"more than {self._limit} bytes in the archive of the folder")
        self._file.write(chunk)


@contextmanager
def _part(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A file beside the target, which is gone afterwards unless it was renamed."""
    fd, name = tempfile.mkstemp(prefix=".gym-", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(fd, "w+b") as file:
            yield Path(name), file
    finally:
        Path(name).unlink(missing_ok=True)


def _error(result: ExecResult, path: str) -> OSError:
    """The error that an exit code stands for."""
    number = result.exit_code - ERROR_BASE
    said = result.stderr_text.strip()[-300:]
    if result.timed_out or number not in errno.errorcode:
        return OSError(errno.EIO, f"exit code {result.exit_code}: {said}", path)
    if number == errno.EACCES and not said:
        said = "not a regular file"
    # The number chooses the class: FileNotFoundError, IsADirectoryError, ...
    return OSError(number, said or os.strerror(number), path)
