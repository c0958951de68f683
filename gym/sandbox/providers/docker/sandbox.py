"""A sandbox that is a container."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.addresses import split_url, with_address
from gym.sandbox.interface import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    JSON,
    Change,
    ExecResult,
    Network,
    OnOutput,
    Sandbox,
)
from gym.sandbox.life import Life
from gym.sandbox.programs import SYSTEM_PATH
from gym.sandbox.providers.docker.command import clear, run, succeed
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.files import Files
from gym.sandbox.providers.docker.form import SLACK_SECONDS
from gym.sandbox.providers.docker.identity import Identity, with_owner, with_path
from gym.sandbox.providers.docker.leftovers import remove
from gym.sandbox.providers.docker.networks import Networks
from gym.sandbox.providers.docker.order import Container, Order
from gym.sandbox.providers.docker.pristine import changes, restore
from gym.sandbox.providers.docker.scripts import RENEWED
from gym.sandbox.providers.docker.switching import switch
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import absolute, checked_environment, refused, unfit


class DockerSandbox(Sandbox):
    """See `Sandbox`. What a command leaves in the background outlives it.

    Attributes:
        freed: `stop` has succeeded.
    """

    keeps_background: ClassVar[bool] = True

    def __init__(self, daemon: Daemon, identity: Identity, networks: Networks, name: str, *, owned: bool) -> None:
        self._daemon = daemon
        self._identity = identity
        self._networks = networks
        self._name = name
        self._owned = owned
        self.freed = False
        self._life = Life(identity.sandbox_id, owned=owned)
        self._freeing = asyncio.Lock()
        self._container = Container(daemon, identity.reference, identity.sandbox_id, self._life.ended, owned)
        self._files = Files(self._container)

    @property
    def id(self) -> str:
        """Unique name, also a label of the container."""
        return self._identity.sandbox_id

    @property
    def workdir(self) -> str:
        """Where commands start."""
        return self._identity.workdir

    @property
    def image_digest(self) -> str | None:
        """Digest of its image at the registry, or the image's id."""
        return self._identity.digest

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
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        start = str(PurePosixPath(self.workdir) / (cwd or ""))
        if (reason := unfit([start, *argv])) is not None:
            return refused(reason)
        order = Order(
            argv,
            start,
            checked_environment(env or {}, utf8=True),
            self._identity.user if user is None else str(user),
            stdin,
            timeout_seconds,
            max_output_bytes,
            on_output,
        )
        async with self._use():
            return await run(self._container, order)

    async def upload(self, source: Path | bytes, target: str, *, mode: int | None = None) -> None:
        """See `Sandbox.upload`."""
        path = absolute(self.workdir, target)
        async with self._use():
            await self._files.put(source, path, mode)

    async def download(self, source: str, target: Path, *, max_bytes: int | None = None) -> list[str]:
        """See `Sandbox.download`."""
        path = absolute(self.workdir, source)
        async with self._use():
            return await self._files.get(path, target, max_bytes)

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """See `Sandbox.read_file`."""
        path = absolute(self.workdir, path)
        async with self._use():
            return await self._files.read(path, max_bytes)

    async def alive(self) -> bool:
        """Whether its container runs, and is not paused."""
        try:
            async with self._use():
                state = (await self._inspect())["State"]
            return bool(state["Running"] and not state["Paused"])
        except EpisodeFailure:
            return False

    async def gym_url(self, url: str) -> str:
        """See `Sandbox.gym_url`; a relay at the gateway of its network forwards to servers on loopback."""
        async with self._use():
            return with_address(url, *await self._networks.reach(self._identity.mode, *split_url(url)))

    async def change_network(self, network: Network) -> None:
        """See `Sandbox.change_network`."""
        self._life.refuse_borrower("change the network of")
        async with self._use():
            mode = await switch(self._container, self._networks, network)
        self._identity = replace(self._identity, mode=mode)

    async def forward(self, port: int) -> tuple[str, int]:
        """See `Sandbox.forward`; the container's own address, on the machine of the daemon."""
        async with self._use():
            found = (await self._inspect())["NetworkSettings"]["Networks"]
        addresses = [one["IPAddress"] for one in found.values() if one["IPAddress"]]
        if not addresses:
            raise UserError(f"sandbox {self.id} has no network by which port {port} could be reached")
        return addresses[0], port

    async def renew(self, ttl_seconds: float) -> None:
        """See `Sandbox.renew`; the label keeps the first time."""
        self._life.refuse_borrower("renew")
        async with self._use():
            until = str(math.ceil(time.time() + ttl_seconds) + SLACK_SECONDS)
            await succeed(self._container, f'echo "$1" >{RENEWED}', until)
            self.expire_after(ttl_seconds)

    def descriptor(self) -> dict[str, JSON]:
        """See `Sandbox.descriptor`; it works for everybody who may use the daemon."""
        path = {} if self._identity.path == SYSTEM_PATH else {"path": self._identity.path}
        return {"sandbox_id": self.id, "container": self._name, "workdir": self.workdir, **path}

    async def changed_files(self) -> Mapping[str, Change] | None:
        """See `Sandbox.changed_files`; the daemon compares."""
        async with self._use():
            try:
                return await changes(self._container)
            except DaemonError as error:
                if error.gone or not error.status:
                    raise
                return None  # it fails over paths that are too long for it

    async def restore(self, paths: Iterable[str], *, machine_only: bool = False) -> list[str]:
        """See `Sandbox.restore`; the daemon does it."""
        self._life.refuse_borrower("restore files of")
        async with self._use():
            return await restore(self._container, paths, machine_only=machine_only)

    async def fence(self, *, keep_running: bool = False) -> None:
        """See `Sandbox.fence`. The container gets a new name, and borrowers know only the old one."""
        self._life.refuse_borrower("fence")
        async with self._use():
            name = f"{self.id}-{secrets.token_hex(4)}"
            await self._daemon.call(lambda api: api.rename(self._container.reference, name))
            self._name = name
            if not keep_running:
                await clear(self._container, self._identity.owner[0])

    async def stop(self) -> None:
        """See `Sandbox.stop`."""
        self._life.end("is stopped")
        self._life.never_expire()
        await uncancelled(self._free())

    def expire_after(self, seconds: float) -> None:
        """Stop the sandbox when its time is up, even if its owner does not."""
        self._life.expire_after(seconds, self.stop)

    async def settle(self) -> None:
        """Learn where programs are and who commands run as, and give that user the work directory of our sandbox.

        Raises:
            UserError: the image has no such user.
            EpisodeFailure: `sandbox_start`, `sandbox_lost`.
        """
        async with self._use():
            if self._owned:
                self._identity = await with_path(self._container, self._identity)
            self._container = replace(self._container, path=self._identity.path)
            self._files = Files(self._container)
            if self._identity.user is None:
                return
            self._identity = await with_owner(self._container, self._identity, give=self._owned)
        self._files = Files(self._container, self._identity.owner, self._identity.writer)

    async def _inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._daemon.call(lambda api: api.inspect_container(self._container.reference))
        return found

    async def _free(self) -> None:
        async with self._freeing:
            if self._owned and not self.freed:
                try:
                    await remove(self._daemon, self._container.reference)
                except DaemonError as error:
                    raise EpisodeFailure("cleanup_failed", f"sandbox {self.id}: {error}") from error
            self.freed = True
        await self._life.unused()

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[None]:
        """The time of one call: refused after the end, and waited for by `stop`."""
        async with self._life.use():
            try:
                yield
            except DaemonError as error:
                raise EpisodeFailure("sandbox_lost", self._lost(error)) from error

    def _lost(self, error: DaemonError) -> str:
        if self._life.ended.done():
            return f"{self._life.ended.result()}, while a command ran in it"
        if error.gone and not self._owned:
            return f"sandbox {self.id} is gone: its owner has stopped it, or has taken it back"
        return f"sandbox {self.id} is gone: its container has ended" if error.gone else f"sandbox {self.id}: {error}"
