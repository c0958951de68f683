"""A local sandbox: a directory, and commands that run over it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from pydantic import ValidationError

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox import processes
from gym.sandbox.addresses import split_url, with_address
from gym.sandbox.interface import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    JSON,
    ExecResult,
    OnOutput,
    Sandbox,
)
from gym.sandbox.life import Life
from gym.sandbox.providers.local import groups
from gym.sandbox.providers.local.collect import copy_out
from gym.sandbox.providers.local.command import Launch, run
from gym.sandbox.providers.local.isolation import Isolation, Place
from gym.sandbox.providers.local.pipes import Terms
from gym.sandbox.providers.local.record import RECORD, Record, new_lease, remove
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import checked_environment, refused, unfit

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
        self._isolation = isolation
        self._owned = owned
        self._files = isolation.files(place)
        self._lent = False
        self.freed = False
        self._life = Life(place.record.id, owned=owned)
        self._freeing = asyncio.Lock()
        self._reach: dict[int, tuple[str, int]] = {}
        if place.record.gym_address is not None and place.record.network == "gym_only":
            self._reach[place.record.gym_address[1]] = place.record.gym_address

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
        if (reason := unfit([start, *argv])) is not None:
            return refused(reason)
        environment = checked_environment({**self._record.env, **(env or {})})
        environment[processes.MARK] = f"{self.id}:{secrets.token_hex(6)}"
        async with self._use():
            argv = ["/bin/sh", "-c", self._record.limits + START, "sh", start, *argv]
            launch = self._isolation.launch(self._place, argv, environment, self._reach)
            terms = Terms(stdin, timeout_seconds, max_output_bytes, on_output)
            killed = groups.out_of_memory(self._record.control_groups)
            try:
                result = await run(_join_groups(launch, self._record.control_groups), terms, self._life.ended)
            except EpisodeFailure:
                if not self._owned:
                    self._check()  # that it was taken back meanwhile tells more
                raise
            return replace(result, oom=groups.out_of_memory(self._record.control_groups) > killed)

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

    async def alive(self) -> bool:
        """Whether its directory is there and its time is not up."""
        try:
            async with self._use():
                return True
        except EpisodeFailure:
            return False

    async def gym_url(self, url: str) -> str:
        """See `Sandbox.gym_url`; with `gym_only`, a server keeps its port, on the sandbox's own loopback."""
        address = split_url(url)
        async with self._use():
            if not self._isolation.isolated or self._record.network == "open":
                return url
            if self._record.network == "none":
                raise UserError(f"a sandbox with network `none` cannot reach {url}; set network to gym_only")
            if self._reach.setdefault(address[1], address) != address:
                raise UserError(
                    f"{url}: another Gym server with the same port can be reached from this sandbox already"
                )
            return with_address(url, "127.0.0.1", address[1])

    async def forward(self, port: int) -> tuple[str, int]:
        """See `Sandbox.forward`; only a sandbox that shares this machine's network can be reached."""
        async with self._use():
            if self._isolation.isolated and self._record.network != "open":
                raise UserError(f"this machine cannot reach port {port} of a local sandbox: its network is its own")
            return "127.0.0.1", port

    async def renew(self, ttl_seconds: float) -> None:
        """See `Sandbox.renew`."""
        self._life.refuse_borrower("renew")
        async with self._use():
            await self._save(self._record.model_copy(update={"expires_at": time.time() + ttl_seconds}))
            self.expire_after(ttl_seconds)

    def descriptor(self) -> dict[str, JSON]:
        """See `Sandbox.descriptor`; it works on this machine only, and for the same user."""
        self._lent = True
        return {
            "sandbox_id": self.id,
            "directory": str(self._place.directory),
            "workdir": self.workdir,
            "lease": self._record.lease,
        }

    async def fence(self, *, keep_running: bool = False) -> None:
        """See `Sandbox.fence`."""
        self._life.refuse_borrower("fence")
        async with self._use():
            await self._save(self._record.model_copy(update={"lease": new_lease()}))
            if not keep_running:
                await self._end_borrowers()

    async def stop(self) -> None:
        """See `Sandbox.stop`."""
        self._life.end("is stopped")
        self._life.never_expire()
        await uncancelled(self._free())

    def expire_after(self, seconds: float) -> None:
        """Stop the sandbox when its time is up, even if its owner does not."""
        self._life.expire_after(seconds, self.stop)

    @property
    def _record(self) -> Record:
        return self._place.record

    async def _save(self, record: Record) -> None:
        await _in_thread(lambda: record.save(self._place.directory))
        self._place = Place(self._place.directory, record)

    async def _free(self) -> None:
        await self._life.unused()
        async with self._freeing:
            if self._owned and not self.freed:
                await self._remove()
            self.freed = True

    async def _remove(self) -> None:
        try:
            if self._lent:
                await self._end_borrowers()
            await asyncio.to_thread(remove, self._place.directory, self.id)
        except (OSError, EpisodeFailure) as error:
            raise EpisodeFailure("cleanup_failed", f"sandbox {self.id}: {error}") from error

    async def _end_borrowers(self) -> None:
        if left := await processes.end_all(lambda: processes.marked((f"{self.id}:",))):
            raise EpisodeFailure("sandbox_lost", f"processes {left} of a borrower could not be ended")

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[None]:
        """The time of one call: refused after the end, and waited for by `stop`."""
        self._life.refuse_ended()
        self._check()
        async with self._life.use():
            yield

    def _check(self) -> None:
        gone = EpisodeFailure("sandbox_lost", f"sandbox {self.id} is gone: its owner has stopped it")
        record = self._record
        if self._owned:
            if not (self._place.directory / RECORD).exists():
                raise gone
        else:
            try:
                record = Record.load(self._place.directory)
            except (OSError, ValidationError):
                raise gone from None
            if record.lease != self._record.lease:
                raise EpisodeFailure("sandbox_lost", f"sandbox {self.id} was taken back by its owner")
        if record.expires_at is not None and time.time() > record.expires_at:
            raise EpisodeFailure("sandbox_lost", f"sandbox {self.id} has outlived its ttl")


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking file work to its end, so that nothing is being written any more when this returns."""
    return await uncancelled(asyncio.to_thread(work))


def _join_groups(launch: Launch, control_groups: Sequence[str]) -> Launch:
    if not control_groups:
        return launch
    argv = ["/bin/sh", "-c", JOIN, "sh", *control_groups, "--", *launch.argv]
    return replace(launch, argv=argv)
