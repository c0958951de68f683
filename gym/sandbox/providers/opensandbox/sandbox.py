"""A sandbox of an OpenSandbox deployment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import ClassVar

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.addresses import is_loopback, split_url
from gym.sandbox.interface import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    JSON,
    ExecResult,
    OnOutput,
    Sandbox,
)
from gym.sandbox.life import Life
from gym.sandbox.providers.opensandbox import labels
from gym.sandbox.providers.opensandbox.command import Terms
from gym.sandbox.providers.opensandbox.errors import DeploymentError
from gym.sandbox.providers.opensandbox.facts import Facts, new_lease
from gym.sandbox.providers.opensandbox.files import Files
from gym.sandbox.providers.opensandbox.remote import Deployment, Remote
from gym.sandbox.providers.opensandbox.runner import Runner
from gym.sandbox.providers.opensandbox.script import Line
from gym.sandbox.providers.opensandbox.shell import PROCESSES
from gym.sandbox.providers.opensandbox.users import Users
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import absolute, checked_environment, refused, unfit

SHORTEST_TTL_SECONDS = 60.0
"""A deployment takes no shorter one."""


class OpenSandbox(Sandbox):
    """See `Sandbox`. What a command leaves in the background outlives it.

    Attributes:
        freed: `stop` has succeeded.
    """

    keeps_background: ClassVar[bool] = True

    def __init__(self, deployment: Deployment, remote: Remote, facts: Facts, *, owned: bool) -> None:
        self._deployment = deployment
        self._remote = remote
        self._facts = facts
        self._owned = owned
        self._life = Life(remote.id, owned=owned)
        config = deployment.config
        self._runner = Runner(remote, self._life.ended, config.transfer_timeout_seconds, owned=owned)
        self._files = Files(remote, self._runner)
        self._users = Users(self._files)
        self._renewal: asyncio.Task[None] | None = None
        self._freeing = asyncio.Lock()
        self.freed = False

    @property
    def id(self) -> str:
        """Its name in the deployment."""
        return self._remote.id

    @property
    def workdir(self) -> str:
        """Where commands start."""
        return self._facts.workdir

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
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        start = str(PurePosixPath(self.workdir) / (cwd or ""))
        if (reason := unfit([start, *words])) is not None:
            return refused(reason)
        if not words:
            return refused("no command")
        variables = checked_environment(env or {})
        async with self._use():
            who = await self._users.find(user)
            line = Line(words, start, {**who.variables, **variables}, stdin, self._facts.disk_mib)
            terms = Terms(who.identity, timeout_seconds, max_output_bytes, on_output)
            return await self._runner.execute(line, terms)

    async def upload(self, source: Path | bytes, target: str, *, mode: int | None = None) -> None:
        """See `Sandbox.upload`."""
        path = absolute(self.workdir, target)
        async with self._use():
            if isinstance(source, bytes):
                await self._files.write(source, path, 0o644 if mode is None else mode)
            else:
                await self._files.copy_in(source, path, mode)

    async def download(self, source: str, target: Path, *, max_bytes: int | None = None) -> list[str]:
        """See `Sandbox.download`."""
        path = absolute(self.workdir, source)
        async with self._use():
            return await self._files.copy_out(path, target, max_bytes)

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """See `Sandbox.read_file`."""
        where = absolute(self.workdir, path)
        async with self._use():
            return await self._files.read(where, max_bytes)

    async def gym_url(self, url: str) -> str:
        """See `Sandbox.gym_url`; the deployment's machines have to reach the server by themselves."""
        host, _ = split_url(url)
        self._life.refuse_ended()
        if self._facts.network == "none":
            what = f"a sandbox with network `none` cannot reach {url}"
            raise UserError(f"{what}; set network to open, since OpenSandbox has no gym_only")
        if is_loopback(host):
            what = f"a sandbox of OpenSandbox cannot reach {url}, which is this machine's loopback"
            raise UserError(f"{what}; set default_host to an address that the deployment's machines reach")
        return url

    async def renew(self, ttl_seconds: float) -> None:
        """See `Sandbox.renew`."""
        self._life.refuse_borrower("renew")
        async with self._use():
            await self._remote.renew(max(ttl_seconds, SHORTEST_TTL_SECONDS))
        self.expire_after(ttl_seconds)

    def descriptor(self) -> dict[str, JSON]:
        """See `Sandbox.descriptor`; the borrower needs settings of the same deployment."""
        return {"sandbox_id": self.id, "domain": self._deployment.config.domain, **self._facts.lend()}

    async def fence(self, *, keep_running: bool = False) -> None:
        """See `Sandbox.fence`."""
        self._life.refuse_borrower("fence")
        async with self._use():
            lease = new_lease()
            await self._remote.label({labels.LEASE: lease})
            self._facts = replace(self._facts, lease=lease)
            if not keep_running:
                await self._runner.clear(self._facts.keep)

    async def stop(self) -> None:
        """See `Sandbox.stop`."""
        self._life.end("is stopped")
        self._life.never_expire()
        if self._renewal is not None:
            self._renewal.cancel()
        await uncancelled(self._free())

    async def prepare(self) -> None:
        """Make the work directory, and see which processes belong to the sandbox itself.

        Raises:
            EpisodeFailure: `sandbox_lost`: it lacks what commands need.
        """
        async with self._use():
            made = await self._runner.run(["/bin/sh", "-c", f'mkdir -p -- "$1" || exit{PROCESSES}', "sh", self.workdir])
        if made.exit_code:
            raise EpisodeFailure("sandbox_lost", f"no work directory {self.workdir}: {made.stderr_text.strip()}")
        self._facts = replace(self._facts, keep=made.stdout_text)

    def expire_after(self, seconds: float) -> None:
        """Stop the sandbox when its time is up, even if its owner does not."""
        if self._renewal is not None:
            self._renewal.cancel()
        self._life.expire_after(seconds, self.stop)

    def keep_alive(self, seconds: float) -> None:
        """Let the deployment end it that long after the last sign of life of this process, and give such signs."""

        async def renew() -> None:
            while not self._life.ended.done():
                await asyncio.sleep(seconds / 3)
                try:
                    await self._remote.renew(seconds)
                except DeploymentError as error:
                    if error.status == HTTPStatus.NOT_FOUND:
                        self._life.end("is gone: the deployment does not know it any more")

        self._renewal = asyncio.ensure_future(renew())

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[None]:
        """The time of one call: refused after the end, and waited for by `stop`."""
        async with self._life.use():
            try:
                if not self._owned:
                    await self._check_lease()
                yield
            except DeploymentError as error:
                if not self._owned:
                    with suppress(DeploymentError):
                        await self._check_lease()
                raise EpisodeFailure("sandbox_lost", await self._deployment.explain(self.id, error)) from error

    async def _check_lease(self) -> None:
        info = await self._deployment.info(self.id)
        if (info.metadata or {}).get(labels.LEASE) != self._facts.lease:
            raise EpisodeFailure("sandbox_lost", f"sandbox {self.id} was taken back by its owner")

    async def _free(self) -> None:
        await self._life.unused()
        async with self._freeing:
            if self.freed:
                return
            try:
                if self._owned:
                    await self._deployment.destroy(self.id)
            except DeploymentError as error:
                raise EpisodeFailure("cleanup_failed", f"sandbox {self.id}: {error}") from error
            await self._remote.close()
            self.freed = True
