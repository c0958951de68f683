"""A sandbox that is a container."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.addresses import split_url, with_address
from gym.sandbox.interface import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    JSON,
    ExecResult,
    Network,
    OnOutput,
    Sandbox,
)
from gym.sandbox.life import Life
from gym.sandbox.processes import MARK
from gym.sandbox.providers.docker.command import kill, run
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.files import Files
from gym.sandbox.providers.docker.leftovers import remove_container, removed
from gym.sandbox.providers.docker.networks import Networks, attach, name_servers
from gym.sandbox.providers.docker.order import Container, Order
from gym.sandbox.providers.docker.scripts import RENEWED
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import absolute, checked_environment, refused, unfit

REMOVE_SECONDS = 60.0


@dataclass(frozen=True)
class Identity:
    """What is known of a container.

    Attributes:
        sandbox_id: Name of the sandbox.
        reference: Container id for the owner; for a borrower the container's name, which the owner may change.
        user: Who commands run as, None for root; with `owner`, user and group of what is uploaded.
        mode: Its network mode.
    """

    sandbox_id: str
    reference: str
    workdir: str
    user: str | None
    owner: tuple[int, int]
    mode: str
    digest: str | None


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
        self._files = Files(self._container, identity.owner)

    @property
    def id(self) -> str:
        """Unique name, also a label of the container."""
        return self._identity.sandbox_id

    @property
    def workdir(self) -> str:
        """Where commands start."""
        return self._identity.workdir

    @property
    def for_user(self) -> bool:
        """Whether its commands run as somebody else than root."""
        return self._identity.user is not None

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
            if isinstance(source, bytes):
                await self._files.put_file(source, path, 0o644 if mode is None else mode)
            elif source.is_dir():
                await self._files.put_folder(source, path)
            else:
                await self._files.put_file(source, path, source.stat().st_mode if mode is None else mode)

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
        """Whether its container runs."""
        try:
            async with self._use():
                return bool((await self._inspect())["State"]["Running"])
        except EpisodeFailure:
            return False

    async def gym_url(self, url: str) -> str:
        """See `Sandbox.gym_url`; a relay at the gateway of its network forwards to servers on loopback."""
        async with self._use():
            return with_address(url, *await self._networks.reach(self._identity.mode, *split_url(url)))

    async def change_network(self, network: Network) -> None:
        """See `Sandbox.change_network`."""
        self._life.refuse_borrower("change the network of")
        mode = await self._networks.mode(network)
        async with self._use():
            await self._daemon.call(lambda api: attach(api, self._container.reference, mode))
            # What the container was started with holds for ever: `gym_only` has no name server.
            given = (await self._inspect())["HostConfig"].get("Dns")
            servers = ["127.0.0.1"] if network == "gym_only" else name_servers() if given else ["127.0.0.11"]
            lines = "".join(f"nameserver {address}\n" for address in servers)
            await run(self._container, Order(["sh", "-c", "cat >/etc/resolv.conf"], user="0", stdin=lines.encode()))
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
            until = str(math.ceil(time.time() + ttl_seconds) + 5)
            await run(self._container, Order(["sh", "-c", f'echo "$1" >{RENEWED}', "sh", until], user="0"))
            self.expire_after(ttl_seconds)

    def descriptor(self) -> dict[str, JSON]:
        """See `Sandbox.descriptor`; it works for everybody who may use the daemon."""
        return {"sandbox_id": self.id, "container": self._name, "workdir": self.workdir}

    async def fence(self) -> None:
        """See `Sandbox.fence`. The container gets a new name, and borrowers know only the old one."""
        self._life.refuse_borrower("fence")
        async with self._use():
            name = f"{self.id}-{secrets.token_hex(4)}"
            await self._daemon.call(lambda api: api.rename(self._container.reference, name))
            self._name = name
            await kill(self._container, f"{MARK}={self.id}:")

    async def stop(self) -> None:
        """See `Sandbox.stop`."""
        self._life.end("is stopped")
        self._life.never_expire()
        await uncancelled(self._free())

    def expire_after(self, seconds: float) -> None:
        """Stop the sandbox when its time is up, even if its owner does not."""
        self._life.expire_after(seconds, self.stop)

    async def own_work_directory(self) -> None:
        """Learn who commands run as, and give the work directory to that user if the sandbox is ours.

        Raises:
            UserError: the image has no such user.
            EpisodeFailure: `sandbox_lost`.
        """
        async with self._use():
            said = await run(self._container, Order(["sh", "-c", "id -u; id -g"], user=self._identity.user))
            uid, gid = (int(word) for word in said.stdout_text.split()[:2])
            if self._owned:
                await run(self._container, Order(["chown", f"{uid}:{gid}", "--", self.workdir], user="0"))
        self._identity = replace(self._identity, owner=(uid, gid))
        self._files = Files(self._container, (uid, gid))

    async def _inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._daemon.call(lambda api: api.inspect_container(self._container.reference))
        return found

    async def _free(self) -> None:
        async with self._freeing:
            if self._owned and not self.freed:
                try:
                    await self._remove()
                except DaemonError as error:
                    raise EpisodeFailure("cleanup_failed", f"sandbox {self.id}: {error}") from error
            self.freed = True
        await self._life.unused()

    async def _remove(self) -> None:
        reference = self._container.reference
        await self._daemon.call(lambda api: remove_container(api, reference))
        deadline = time.monotonic() + REMOVE_SECONDS
        # Somebody else, such as its own end, may be removing it at the same time.
        while not await removed(self._daemon, reference):
            if time.monotonic() > deadline:
                raise DaemonError(500, f"its container is still there after {REMOVE_SECONDS:g} s")
            await asyncio.sleep(0.1)

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
