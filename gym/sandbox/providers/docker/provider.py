"""The `docker` provider: sandboxes that are containers of a local Docker daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import (
    JSON,
    Capabilities,
    Found,
    ImageBuild,
    ImageFacts,
    Network,
    OnImageProgress,
    SandboxProvider,
    SandboxSpec,
)
from gym.sandbox.life import Live
from gym.sandbox.providers.docker import form, leftovers
from gym.sandbox.providers.docker.builds import Builds
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.images import Images
from gym.sandbox.providers.docker.networks import Networks
from gym.sandbox.providers.docker.sandbox import DockerSandbox, Identity
from gym.sandbox.providers.docker.settings import DockerProviderConfig
from gym.sandbox.shared import Shared
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import refuses_mount, refuses_workdir

T = TypeVar("T")
NETWORKS: frozenset[Network] = frozenset({"open", "gym_only", "none"})
UNSEEN_MOUNT = "bind source path does not exist"
"""What a daemon says that runs elsewhere, or that a container reaches by a mounted socket."""
ROOT = ("", "0", "root", "0:0", "root:root")
log = logging.getLogger(__name__)


class DockerProvider(SandboxProvider):
    """One container a sandbox, with networks that its sandboxes share."""

    name: ClassVar[str] = "docker"
    config_type = DockerProviderConfig

    def __init__(self, config: DockerProviderConfig) -> None:
        self._config = config
        self._opened: _Opened | None = None
        self._live: Live[DockerSandbox] = Live()

    @property
    def isolated(self) -> bool:
        """Containers are."""
        return True

    @property
    def capabilities(self) -> Capabilities:
        """Everything but snapshots and GPUs. Commands run as root unless image or configuration name a user."""
        root = self._config.user is None or self._config.user in ROOT
        return Capabilities(
            root=root,
            users=True,
            networks=NETWORKS,
            background=True,
            mounts=True,
            images=True,
            builds=True,
            network_changes=True,
        )

    def describe(self) -> str:
        """One line for log and manifest."""
        daemon = Daemon(self._config.host)
        try:
            return f"docker {daemon.version()}"
        finally:
            daemon.close()

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """See `SandboxProvider.create`. The first call also sweeps what earlier runs left behind."""
        image_name = self._refuse(spec)
        opened = self._open()
        try:
            await opened.swept.get()
            image = await opened.images.ready(image_name)
            mode = await opened.networks.mode(spec.network)
            async with opened.starts:
                sandbox = await self._start_any(opened, spec, image, mode)
        except DaemonError as error:
            raise EpisodeFailure("sandbox_start", f"no container of {image_name} could be started: {error}") from error
        self._live.keep(sandbox)
        try:
            if sandbox.for_user:
                await sandbox.own_work_directory()
            if spec.network == "gym_only" and spec.gym_address is not None:
                await opened.networks.reach(mode, *spec.gym_address)
        except BaseException:
            await sandbox.stop()
            raise
        if spec.ttl_seconds is not None:
            sandbox.expire_after(spec.ttl_seconds)
        return sandbox

    async def connect(self, descriptor: Mapping[str, JSON]) -> DockerSandbox:
        """See `SandboxProvider.connect`."""
        opened = self._open()
        name = str(descriptor.get("container"))
        try:
            found = await opened.daemon.call(lambda api: api.inspect_container(name))
        except DaemonError as error:
            raise EpisodeFailure("sandbox_lost", f"no sandbox {descriptor.get('sandbox_id')}: {error}") from error
        labels = found["Config"]["Labels"] or {}
        if leftovers.ID not in labels or not found["State"]["Running"]:
            raise EpisodeFailure("sandbox_lost", f"no sandbox {descriptor.get('sandbox_id')}: {name} is none of ours")
        identity = Identity(
            sandbox_id=labels[leftovers.ID],
            reference=name,
            workdir=found["Config"]["WorkingDir"],
            user=_not_root(found["Config"]["User"]),
            owner=(0, 0),
            # Not that of its start: its owner may have changed it.
            mode=next(iter(found["NetworkSettings"]["Networks"]), "none"),
            digest=labels.get(leftovers.DIGEST),
        )
        sandbox = DockerSandbox(opened.daemon, identity, opened.networks, name, owned=False)
        self._live.keep(sandbox)
        if sandbox.for_user:
            await sandbox.own_work_directory()
        return sandbox

    async def prepare(self, images: Sequence[str | None], on_progress: OnImageProgress | None = None) -> dict[str, str]:
        """See `SandboxProvider.prepare`."""
        try:
            return await self._open().images.prepare(images, on_progress)
        except DaemonError as error:
            raise UserError(Problem(str(error), "start Docker, or choose another", key="sandbox.host")) from error

    async def image(self, name: str, on_progress: OnImageProgress | None = None) -> ImageFacts:
        """See `SandboxProvider.image`."""
        try:
            return await self._open().images.ready(name, on_progress)
        except DaemonError as error:
            raise UserError(Problem(str(error), key="sandbox.host")) from error

    async def build(self, order: ImageBuild, on_progress: OnImageProgress | None = None) -> ImageFacts:
        """See `SandboxProvider.build`."""
        try:
            return await self._open().builds.ready(order, on_progress)
        except DaemonError as error:
            raise UserError(Problem(str(error), key="sandbox.host")) from error

    async def sweep(self) -> int:
        """See `SandboxProvider.sweep`."""
        return await self._looking(leftovers.sweep)

    async def found(self) -> list[Found]:
        """See `SandboxProvider.found`."""
        return await self._looking(leftovers.found)

    async def _looking(self, work: Callable[[Daemon], Awaitable[T]]) -> T:
        try:
            return await work(self._open().daemon)
        except DaemonError as error:
            raise UserError(Problem(str(error), key="sandbox.host")) from error

    async def aclose(self) -> None:
        """See `SandboxProvider.aclose`."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        failed = await self._live.stop()
        try:
            await uncancelled(opened.networks.aclose())
        except DaemonError as error:
            failed.append(str(error))
        await opened.swept.ended()
        await uncancelled(opened.builds.aclose())
        closing = asyncio.create_task(asyncio.to_thread(opened.daemon.close))
        await uncancelled(opened.images.aclose())
        await closing
        if failed:
            raise EpisodeFailure("cleanup_failed", "; ".join(failed))

    def _open(self) -> _Opened:
        if self._opened is None:
            self._opened = _Opened(self._config, leftovers.ownership())
        return self._opened

    def _refuse(self, spec: SandboxSpec) -> str:
        """Raise all that cannot be in `spec`, at once; returns the image."""
        problems = []
        image = spec.image or self._config.default_image
        if not image:
            fix = "name one in the task's sandbox, or set sandbox.default_image"
            problems.append(Problem("a docker sandbox needs an image", fix, key="image"))
        if (reason := refuses_workdir(spec.workdir)) is not None:
            problems.append(Problem(f"the work directory `{spec.workdir}` cannot be used: {reason}", key="workdir"))
        for mount in spec.mounts:
            if (reason := refuses_mount(mount)) is not None:
                what = f"{mount.source} cannot be mounted at `{mount.target}`: {reason}"
                problems.append(Problem(what, key="mounts"))
        if problems:
            raise UserError(problems)
        return image or ""

    async def _start_any(self, opened: _Opened, spec: SandboxSpec, image: ImageFacts, mode: str) -> DockerSandbox:
        """With what all sandboxes have, but without its mounts where the daemon does not see this machine's folders."""
        try:
            return await self._start(opened, self.common.added_to(spec, mounts=True), image, mode)
        except DaemonError as error:
            if UNSEEN_MOUNT not in str(error) or not self.common.mounts:
                raise
            log.warning("the Docker daemon does not see this machine's folders: %s", error)
            self.common = replace(self.common, mounts=())
            return await self._start(opened, self.common.added_to(spec, mounts=True), image, mode)

    async def _start(self, opened: _Opened, spec: SandboxSpec, image: ImageFacts, mode: str) -> DockerSandbox:
        sandbox_id = f"gym-{secrets.token_hex(6)}"
        name = f"{sandbox_id}-{secrets.token_hex(4)}"
        user = self._config.user if self._config.user is not None else image.user
        given = {**self._config.default_metadata, **spec.labels}
        labels = {
            **{f"{leftovers.LABEL}{key}": value for key, value in given.items()},
            **opened.labels,
            leftovers.ID: sandbox_id,
            leftovers.NETWORK: spec.network,
            leftovers.DIGEST: image.digest,
            leftovers.EXPIRES: str(int(time.time()) + form.ttl(self._config, spec)),
        }
        host = form.host(self._config, spec, mode)
        settings = form.settings(self._config, spec) | {"user": user or None, "labels": labels, "name": name}

        def start(api: Any) -> str:
            host_config = api.create_host_config(**host)
            made = str(api.create_container(image.name, host_config=host_config, **settings)["Id"])
            try:
                api.start(made)
            except BaseException:
                leftovers.remove_container(api, made)
                raise
            return made

        try:
            container = await uncancelled(opened.daemon.call(start))
        except asyncio.CancelledError:
            await uncancelled(opened.daemon.call(lambda api: leftovers.remove_container(api, name)))
            raise
        except DaemonError as error:
            if error.status == 404:
                opened.images.forget(image.name)
            raise
        identity = Identity(sandbox_id, container, spec.workdir, _not_root(user), (0, 0), mode, image.digest)
        return DockerSandbox(opened.daemon, identity, opened.networks, name, owned=True)


class _Opened:
    """What a provider holds while it is in use."""

    def __init__(self, config: DockerProviderConfig, labels: dict[str, str]) -> None:
        self.labels = labels
        self.daemon = Daemon(config.host)
        self.images = Images(self.daemon, config)
        self.builds = Builds(self.daemon, self.images, again=config.pull == "always")
        self.networks = Networks(self.daemon, labels)
        self.starts = asyncio.Semaphore(config.max_starts or max(4, os.cpu_count() or 1))
        self.swept = Shared(partial(leftovers.sweep, self.daemon))


def _not_root(user: str) -> str | None:
    return None if user in ROOT else user
