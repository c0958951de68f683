"""A local sandbox: a directory, and commands that run over it."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    JSON,
    ExecResult,
    OnOutput,
    Sandbox,
)
from gym.sandbox.providers.local import processes
from gym.sandbox.providers.local.collect import copy_out
from gym.sandbox.providers.local.command import Launch, Terms, refused, run
from gym.sandbox.providers.local.isolation import Isolation, Place
from gym.sandbox.providers.local.record import RECORD, remove
from gym.sandbox.waiting import uncancelled

T = TypeVar("T")

# $1 is where to start; the rest is the command.
START = '\ncd -- "$1" || exit 126\nshift\nexec "$@"'
# Arguments before `--` are control groups to enter.
JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


class LocalSandbox(Sandbox):
    """See `Sandbox`. What a command leaves in the background ends with the command.

    Attributes:
        freed: `stop` has succeeded.
    """

    def __init__(self, place: Place, isolation: Isolation, *, owned: bool) -> None:
        self._place = place
        self._record = place.record
        self._isolation = isolation
        self._owned = owned
        self._files = isolation.files(place.directory, place.record.workdir)
        self._lent = False
        self.freed = False
        self._stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._freeing = asyncio.Lock()
        self._active: set[asyncio.Future[None]] = set()
        self._expiry: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """Unique name, also of its directory."""
        return self._record.id

    @property
    def workdir(self) -> str:
        """Where commands start; without isolation this is a path of the host."""
        return self._record.workdir

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        if user is not None and str(user) not in self._isolation.users:
            known = " or ".join(sorted(self._isolation.users))
            raise UserError(f"a local sandbox has no user `{user}`, only {known}; use sandbox=docker for other users")
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        start = str(PurePosixPath(self.workdir) / (cwd or ""))
        if (reason := _unfit([start, *argv])) is not None:
            return refused(reason)
        environment = self._environment(env or {})
        async with self._use():
            argv = ["/bin/sh", "-c", self._record.limits + START, "sh", start, *argv]
            launch = self._isolation.launch(self._place, argv, environment)
            terms = Terms(stdin, timeout_seconds, max_output_bytes, on_output)
            return await run(_join_groups(launch, self._record.control_groups), terms, self._stopped)

    async def upload(self, source: Path | bytes, target: str, *, mode: int | None = None) -> None:
        """See `Sandbox.upload`."""
        async with self._use():
            if isinstance(source, bytes):
                content, permissions = source, 0o644 if mode is None else mode
                await _in_thread(lambda: self._files.write(content, target, permissions))
            else:
                path = source
                await _in_thread(lambda: self._files.copy_in(path, target, mode))

    async def download(self, source: str, target: Path, *, max_bytes: int | None = None) -> list[str]:
        """See `Sandbox.download`."""
        async with self._use():
            return await _in_thread(lambda: copy_out(self._files, source, target, max_bytes))

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """See `Sandbox.read_file`."""
        async with self._use():
            return await _in_thread(lambda: self._files.read(path, max_bytes))

    def descriptor(self) -> dict[str, JSON]:
        """See `Sandbox.descriptor`; it works on this machine only, and for the same user."""
        self._lent = True
        return {"sandbox_id": self.id, "directory": str(self._place.directory), "workdir": self.workdir}

    async def stop(self) -> None:
        """See `Sandbox.stop`."""
        self._end("is stopped")
        if self._expiry is not None and self._expiry is not asyncio.current_task():
            self._expiry.cancel()
        await uncancelled(self._free())

    def expire_after(self, seconds: float) -> None:
        """Stop the sandbox when its time is up, even if its owner does not."""

        async def expire() -> None:
            await asyncio.sleep(seconds)
            self._end(f"has outlived its ttl of {seconds:g} s")
            try:
                await self.stop()
            except EpisodeFailure:
                return  # the owner's own `stop` tries again, and tells

        self._expiry = asyncio.ensure_future(expire())

    def _end(self, reason: str) -> None:
        if not self._stopped.done():
            self._stopped.set_result(f"sandbox {self.id} {reason}")

    async def _free(self) -> None:
        if self._active:
            await asyncio.wait(self._active)
        async with self._freeing:
            if self._owned and not self.freed:
                await self._remove()
            self.freed = True

    async def _remove(self) -> None:
        try:
            if self._lent and await processes.end_all(lambda: processes.marked((f"{self.id}:",))):
                raise OSError("processes of a borrower could not be ended")
            await asyncio.to_thread(remove, self._place.directory, self.id)
        except OSError as error:
            raise EpisodeFailure("cleanup_failed", f"sandbox {self.id}: {error}") from error

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[None]:
        """The time of one call: refused after the end, and waited for by `stop`."""
        expires = self._record.expires_at
        if self._stopped.done():
            raise EpisodeFailure("sandbox_lost", self._stopped.result())
        if not (self._place.directory / RECORD).exists() or (expires is not None and time.time() > expires):
            raise EpisodeFailure("sandbox_lost", f"sandbox {self.id} is gone: its owner has stopped it")
        done = asyncio.get_running_loop().create_future()
        self._active.add(done)
        try:
            yield
        finally:
            self._active.discard(done)
            done.set_result(None)

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        environment = {**self._record.env, **env}
        for name, value in environment.items():
            if not name or "=" in name or _unfit([name, value]):
                raise ValueError(f"no environment can hold the variable {name!r}")
        return environment | {processes.MARK: f"{self.id}:{secrets.token_hex(6)}"}


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking file work to its end, so that nothing is being written any more when this returns."""
    return await uncancelled(asyncio.to_thread(work))


def _unfit(words: Sequence[str]) -> str | None:
    """Why these words cannot be passed to a process; None when they can."""
    for word in words:
        if "\0" in word:
            return "a command cannot contain a NUL character"
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            return "a command cannot contain half a surrogate pair"
    return None


def _join_groups(launch: Launch, groups: Sequence[str]) -> Launch:
    if not groups:
        return launch
    argv = ["/bin/sh", "-c", JOIN, "sh", *groups, "--", *launch.argv]
    return replace(launch, argv=argv)
