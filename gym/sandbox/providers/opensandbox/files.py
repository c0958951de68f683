"""Files of a sandbox. Small ones travel as input and output of a command, larger ones through OpenSandbox's file API.

That API takes only names of plain text, follows links when it writes, and expands `~` and `$`. So it is given
temporary names of ours, and a command inside moves what came, or links to what is asked for.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gym.sandbox import archive
from gym.sandbox.providers.opensandbox.remote import Remote
from gym.sandbox.providers.opensandbox.runner import Runner
from gym.sandbox.providers.opensandbox.script import FOLDER
from gym.sandbox.spec import ExecResult
from gym.sandbox.waiting import uncancelled

SMALL_BYTES = 64 * 1024
LARGE_BYTES = 1024 * 1024
TAR_OVERHEAD_BYTES = 64 * 1024 * 1024
"""How much longer than its files the archive of a folder may be."""

MISSING, FOLDER_THERE, NO_FILE, NO_FOLDER, TOO_LONG, LARGE, IS_FOLDER = range(40, 47)

# $1 path, $2 most bytes, $3 a name for the file API.
_READ = f"""
[ -e "$1" ] || exit {MISSING}
[ -d "$1" ] && exit {FOLDER_THERE}
[ -f "$1" ] || exit {NO_FILE}
size=$(stat -L -c %s -- "$1") || exit 1
[ "$size" -gt "$2" ] && exit {TOO_LONG}
[ "$size" -gt {LARGE_BYTES} ] && {{ ln -s -- "$1" "$3" && exit {LARGE}; }}
exec cat -- "$1"
"""

# $1 path, $2 its folder, $3 mode, $4 a name of ours in that folder, $5 what came through the file API, or nothing.
_WRITE = f"""
[ -d "$1" ] && [ ! -L "$1" ] && exit {FOLDER_THERE}
mkdir -p -- "$2" || {{ [ -d "$2" ] && exit 1; exit {NO_FOLDER}; }}
{{ if [ -n "$5" ]; then mv -f -- "$5" "$4"; else cat >"$4"; fi; }} && chmod "$3" "$4" && mv -fT -- "$4" "$1" && exit 0
rm -f -- "$4"
exit 1
"""

# $1 path, $2 what came through the file API.
_UNPACK = f"""
mkdir -p -- "$1" || {{ [ -d "$1" ] && exit 1; exit {NO_FOLDER}; }}
tar -x -p -o -f "$2" -C "$1"
code=$?
rm -f -- "$2"
exit $code
"""

# $1 path, $2 most bytes or nothing, $3 a name for the file API. Prints mode or names of sockets.
_PACK = f"""
[ -e "$1" ] || exit {MISSING}
if [ -d "$1" ]; then
  if [ -n "$2" ]; then
    find "$1/." -type f -exec stat -c %s {{}} + | {{
      left=$2
      while read -r size; do left=$((left - size)); done
      [ "$left" -ge 0 ]
    }} || exit {TOO_LONG}
  fi
  cd -- "$1" && tar -c -f "$3" . || [ $? = 1 ] || {{ rm -f -- "$3"; exit 2; }}
  find . -type s -print0
  exit {IS_FOLDER}
fi
[ -f "$1" ] || exit {NO_FILE}
[ -n "$2" ] && [ "$(stat -L -c %s -- "$1")" -gt "$2" ] && exit {TOO_LONG}
ln -s -- "$1" "$3" && stat -L -c %a -- "$1"
"""

_MEANINGS = {
    MISSING: errno.ENOENT,
    FOLDER_THERE: errno.EISDIR,
    NO_FILE: errno.EACCES,
    NO_FOLDER: errno.ENOTDIR,
    TOO_LONG: errno.EFBIG,
}
_ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EDQUOT)


class Files:
    """The files of one sandbox. All paths are absolute."""

    def __init__(self, remote: Remote, runner: Runner) -> None:
        self._remote = remote
        self._runner = runner

    async def write(self, content: bytes, path: str, mode: int) -> None:
        """Write a file: it appears complete or not at all."""
        if len(content) <= SMALL_BYTES:
            await self._place(path, mode, "", content)
        else:
            came = _temporary("up")
            await self._remote.upload(came, content)
            await self._place(path, mode, came)

    async def copy_in(self, source: Path, path: str, mode: int | None) -> None:
        """Copy a host file or folder in."""
        if source.is_dir():
            await self._copy_folder_in(source, path)
            return
        with source.open("rb") as content:
            permissions = os.fstat(content.fileno()).st_mode if mode is None else mode
            came = _temporary("up")
            await self._remote.upload(came, content)
        await self._place(path, permissions & 0o777, came)

    async def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a file of at most `max_bytes`."""
        name = _temporary("get")
        words = [path, str(max_bytes), name]
        too_long = f"longer than {max_bytes} bytes"
        result = await self._script(_READ, words, path, (LARGE,), max_output_bytes=LARGE_BYTES, too_long=too_long)
        if result.exit_code == LARGE:
            content = bytearray()
            try:
                await self._remote.download(name, content.extend)
            finally:
                await self._remote.delete([name])
            return bytes(content)
        # What is no file on a disk, as in /proc, does not tell its length before.
        if result.stdout_truncated or len(result.stdout) > max_bytes:
            raise _oserror(TOO_LONG, path, too_long)
        return result.stdout

    async def copy_out(self, path: str, target: Path, max_bytes: int | None) -> list[str]:
        """Copy a file or folder to the host; returns what was left out."""
        name = _temporary("get")
        words = [path, "" if max_bytes is None else str(max_bytes), name]
        result = await self._script(_PACK, words, path, (IS_FOLDER,), too_long=f"more than {max_bytes} bytes")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if result.exit_code == IS_FOLDER:
                sockets = [os.fsdecode(found).removeprefix("./") for found in result.stdout.split(b"\0") if found]
                return sorted([*await self._copy_folder_out(name, target, max_bytes), *sockets])
            with _new_file(target, max_bytes) as part:
                await self._remote.download(name, part.write)
            target.chmod(0o755 if int(result.stdout, 8) & 0o100 else 0o644)
            return []
        finally:
            await self._remote.delete([name])

    async def _copy_folder_in(self, source: Path, path: str) -> None:
        came = _temporary("tar")
        with tempfile.TemporaryFile() as packed:
            await uncancelled(asyncio.to_thread(packed.writelines, archive.pack(source, (0, 0))))
            packed.seek(0)
            await self._remote.upload(came, packed)
        await self._script(_UNPACK, [path, came], path)

    async def _copy_folder_out(self, name: str, target: Path, max_bytes: int | None) -> list[str]:
        with tempfile.TemporaryFile() as packed:
            # Looked at before, the files may have grown since.
            bounded = _Bounded(packed, None if max_bytes is None else max_bytes + TAR_OVERHEAD_BYTES)
            await self._remote.download(name, bounded.write)
            packed.seek(0)
            return await uncancelled(asyncio.to_thread(archive.unpack, packed, target, max_bytes))

    async def _place(self, path: str, mode: int, came: str, content: bytes = b"") -> None:
        folder = posixpath.dirname(path)
        part = posixpath.join(folder, f".{secrets.token_hex(8)}.part")
        await self._script(_WRITE, [path, folder, f"{mode & 0o777:o}", part, came], path, stdin=content)

    async def _script(
        self,
        script: str,
        words: Sequence[str],
        path: str,
        codes: tuple[int, ...] = (),
        *,
        stdin: bytes | None = None,
        max_output_bytes: int = SMALL_BYTES,
        too_long: str = "",
    ) -> ExecResult:
        """Run a script that ends with 0 or one of `codes`."""
        argv = ["/bin/sh", "-c", f"LC_ALL=C; export LC_ALL{script}", "sh", *words]
        result = await self._runner.run(argv, stdin=stdin, max_output_bytes=max_output_bytes)
        if result.exit_code not in (0, *codes):
            told = {NO_FILE: "not a regular file", TOO_LONG: too_long}
            raise _oserror(result.exit_code, path, told.get(result.exit_code, result.stderr_text.strip()))
        return result


class _Bounded:
    """Counts what is written to a file."""

    def __init__(self, file: IO[bytes], max_bytes: int | None) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._size = 0

    def write(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._max_bytes is not None and self._size > self._max_bytes:
            raise OSError(errno.EFBIG, f"more than {self._max_bytes} bytes")
        self._file.write(chunk)


@contextmanager
def _new_file(target: Path, max_bytes: int | None) -> Iterator[_Bounded]:
    """A file that appears under its name when it is complete, and not at all otherwise."""
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            yield _Bounded(file, max_bytes)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _temporary(kind: str) -> str:
    return f"{FOLDER}{secrets.token_hex(8)}.{kind}"


def _oserror(code: int, path: str, told: str) -> OSError:
    """What an exit code of a script means."""
    if code in _MEANINGS:
        number = _MEANINGS[code]
        return OSError(number, told if code in (NO_FILE, TOO_LONG) else os.strerror(number), path)
    number = next((number for number in _ERRORS if os.strerror(number) in told), errno.EIO)
    return OSError(number, told[-300:] or f"exit code {code}", path)
