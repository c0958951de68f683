"""The `docker` provider: sandboxes that are containers of a local Docker daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.sandbox.checks import unfit_spec
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
from gym.sandbox.programs import SYSTEM_PATH
from gym.sandbox.providers.docker import leftovers
from gym.sandbox.providers.docker.accounts import unknown
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.identity import Identity, is_powerless, not_root
from gym.sandbox.providers.docker.opened import Opened
from gym.sandbox.providers.docker.sandbox import DockerSandbox
from gym.sandbox.providers.docker.settings import DockerProviderConfig
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import refuses_mount

T = TypeVar("T")
NETWORKS: frozenset[Network] = frozenset({"open", "gym_only", "none"})
UNSEEN_MOUNT = "bind source path does not exist"
"""What a daemon says that runs elsewhere, or that a container reaches by a mounted socket."""
log = logging.getLogger(__name__)


class DockerProvider(SandboxProvider):
    """One container a sandbox, with networks that its sandboxes share."""

    name: ClassVar[str] = "docker"
    config_type = DockerProviderConfig

    def __init__(self, config: DockerProviderConfig) -> None:
        self._config = config
        self._opened: Opened | None = None
        self._live: Live[DockerSandbox] = Live()

    @property
    def isolated(self) -> bool:
        """Containers are."""
        return True

    @property
    def capabilities(self) -> Capabilities:
        """Everything but snapshots and GPUs. Commands run as root unless image or configuration name a user."""
        root = not_root(self._config.user) is None
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

    def check(self, spec: SandboxSpec) -> list[Problem]:
        """See `SandboxProvider.check`."""
        problems = list(unfit_spec(spec, self.name, NETWORKS, utf8=True))
        if not self._image(spec):
            fix = "name one in the task's sandbox, or set sandbox.default_image"
            problems.append(Problem("a docker sandbox needs an image", fix, key="image"))
        for mount in spec.mounts:
            if (reason := refuses_mount(mount)) is not None:
                what = f"{mount.source} cannot be mounted at `{mount.target}`: {reason}"
                problems.append(Problem(what, key="mounts"))
        return problems

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """See `SandboxProvider.create`. The first call also sweeps what earlier runs left behind."""
        if problems := self.check(spec):
            raise UserError(problems)
        image_name = self._image(spec)
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
            await sandbox.settle()
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
            user=not_root(labels.get(leftovers.USER)),
            # Not that of its start: its owner may have changed it.
            mode=next(iter(found["NetworkSettings"]["Networks"]), "none"),
            digest=labels.get(leftovers.DIGEST),
            powerless=is_powerless(found["HostConfig"]["CapDrop"] or ()),
            path=str(descriptor.get("path", SYSTEM_PATH)),
        )
        sandbox = DockerSandbox(opened.daemon, identity, opened.networks, name, owned=False)
        self._live.keep(sandbox)
        await sandbox.settle()
        return sandbox

    async def prepare(self, images: Sequence[str | None], on_progress: OnImageProgress | None = None) -> dict[str, str]:
        """See `SandboxProvider.prepare`."""
        try:
            digests = await self._open().images.prepare(images, on_progress)
            await self._refuse_unknown_user(list(digests))
            return digests
        except DaemonError as error:
            raise UserError(Problem(str(error), "start Docker, or choose another", key="sandbox.host")) from error

    async def _refuse_unknown_user(self, images: Sequence[str]) -> None:
        user, opened = self._config.user, self._open()
        looks = [unknown(opened.daemon, image, user, opened.labels) for image in images] if user else []
        missing = zip(images, await asyncio.gather(*looks), strict=False)
        problems = [
            Problem(f"the image `{image}` does not know `{name}`", "choose another user, or image", key="sandbox.user")
            for image, name in missing
            if name is not None
        ]
        if problems:
            raise UserError(problems)

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

    async def sweep_images(self) -> int:
        """See `SandboxProvider.sweep_images`."""
        return await self._looking(leftovers.sweep_images)

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

    def _image(self, spec: SandboxSpec) -> str:
        return spec.image or self._config.default_image or ""

    def _open(self) -> Opened:
        if self._opened is None:
            self._opened = Opened(self._config, leftovers.ownership())
        return self._opened

    async def _start_any(self, opened: Opened, spec: SandboxSpec, image: ImageFacts, mode: str) -> DockerSandbox:
        """With what all sandboxes have, but without its mounts where the daemon does not see this machine's folders."""
        try:
            return await opened.start(self.common.added_to(spec, mounts=True), image, mode)
        except DaemonError as error:
            if UNSEEN_MOUNT not in str(error) or not self.common.mounts:
                raise
            log.warning("the Docker daemon does not see this machine's folders: %s", error)
            self.common = replace(self.common, mounts=())
            return await opened.start(self.common.added_to(spec, mounts=True), image, mode)
