"""The `docker` provider: sandboxes that are containers of a local Docker daemon."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import (
    JSON,
    Capabilities,
    Network,
    OnImageProgress,
    Resources,
    SandboxProvider,
    SandboxSpec,
)
from gym.sandbox.providers.docker import leftovers
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.images import Image, Images
from gym.sandbox.providers.docker.networks import Networks
from gym.sandbox.providers.docker.sandbox import DockerSandbox, Identity
from gym.sandbox.providers.docker.scripts import MAIN
from gym.sandbox.providers.docker.settings import DockerProviderConfig
from gym.sandbox.shared import Shared
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import checked_environment, refuses_mount, refuses_workdir

NETWORKS: frozenset[Network] = frozenset({"open", "gym_only", "none"})
ROOT = ("", "0", "root", "0:0", "root:root")
# A container outlives its sandbox's own bound by this much, so that the end has one cause.
SLACK_SECONDS = 5
# Ours in each container: its first processes, and the shell around each command.
OWN_PROCESSES = 8
MIB = 1024 * 1024


class DockerProvider(SandboxProvider):
    """One container a sandbox, with networks that its sandboxes share."""

    name: ClassVar[str] = "docker"
    config_type = DockerProviderConfig

    def __init__(self, config: DockerProviderConfig) -> None:
        self._config = config
        self._run = secrets.token_hex(6)
        self._opened: _Opened | None = None
        self._live: list[DockerSandbox] = []

    @property
    def isolated(self) -> bool:
        """Containers are."""
        return True

    @property
    def capabilities(self) -> Capabilities:
        """Everything but snapshots and GPUs. Commands run as root unless image or configuration name a user."""
        root = self._config.user is None or self._config.user in ROOT
        return Capabilities(root=root, users=True, networks=NETWORKS, background=True, mounts=True, images=True)

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
                sandbox = await self._start(opened, spec, image, mode)
        except DaemonError as error:
            raise EpisodeFailure("sandbox_start", f"no container of {image_name} could be started: {error}") from error
        self._keep(sandbox)
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
            mode=found["HostConfig"]["NetworkMode"],
            digest=labels.get(leftovers.DIGEST),
        )
        sandbox = DockerSandbox(opened.daemon, identity, opened.networks, name, owned=False)
        self._keep(sandbox)
        if sandbox.for_user:
            await sandbox.own_work_directory()
        return sandbox

    async def prepare(self, images: Sequence[str | None], on_progress: OnImageProgress | None = None) -> dict[str, str]:
        """See `SandboxProvider.prepare`."""
        try:
            return await self._open().images.prepare(images, on_progress)
        except DaemonError as error:
            raise UserError(Problem(str(error), "start Docker, or choose another", key="sandbox.host")) from error

    async def sweep(self) -> int:
        """See `SandboxProvider.sweep`."""
        try:
            return await leftovers.sweep(self._open().daemon)
        except DaemonError as error:
            raise UserError(Problem(str(error), key="sandbox.host")) from error

    async def aclose(self) -> None:
        """See `SandboxProvider.aclose`."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        results = await asyncio.gather(*(sandbox.stop() for sandbox in self._live), return_exceptions=True)
        failed = [str(result) for result in results if isinstance(result, EpisodeFailure)]
        try:
            await uncancelled(opened.networks.aclose())
        except DaemonError as error:
            failed.append(str(error))
        await opened.swept.ended()
        closing = asyncio.create_task(asyncio.to_thread(opened.daemon.close))
        await uncancelled(opened.images.aclose())
        await closing
        if failed:
            raise EpisodeFailure("cleanup_failed", "; ".join(failed))

    def _open(self) -> _Opened:
        if self._opened is None:
            self._opened = _Opened(self._config, leftovers.ownership(self._run))
        return self._opened

    def _keep(self, sandbox: DockerSandbox) -> None:
        self._live = [*(one for one in self._live if not one.freed), sandbox]

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

    async def _start(self, opened: _Opened, spec: SandboxSpec, image: Image, mode: str) -> DockerSandbox:
        sandbox_id = f"gym-{secrets.token_hex(6)}"
        name = f"{sandbox_id}-{secrets.token_hex(4)}"
        user = self._config.user if self._config.user is not None else image.user
        labels = {
            **{f"gym.label.{key}": value for key, value in {**self._config.default_metadata, **spec.labels}.items()},
            **opened.labels,
            leftovers.ID: sandbox_id,
            leftovers.NETWORK: spec.network,
            leftovers.DIGEST: image.digest,
            leftovers.EXPIRES: str(int(time.time()) + self._ttl(spec)),
        }
        host = self._host(spec, mode)
        settings = self._settings(spec) | {"user": user or None, "labels": labels, "name": name}

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

    def _ttl(self, spec: SandboxSpec) -> int:
        return math.ceil(spec.ttl_seconds or self._config.default_ttl_seconds) + SLACK_SECONDS

    def _settings(self, spec: SandboxSpec) -> dict[str, Any]:
        """Arguments of the SDK's `create_container`."""
        return {
            "entrypoint": ["/bin/sh", "-c", MAIN, "gym-sandbox"],
            "command": [str(self._ttl(spec))],
            "working_dir": spec.workdir,
            "environment": checked_environment(spec.env, utf8=True),
            "hostname": "sandbox",
            "healthcheck": {"test": ["NONE"]},
        }

    def _host(self, spec: SandboxSpec, mode: str) -> dict[str, Any]:
        """Arguments of the SDK's `create_host_config`."""
        import docker.types

        config = self._config
        tmpfs = dict(config.tmpfs)
        if config.read_only_root:
            tmpfs = dict.fromkeys(("/tmp", "/var/tmp", "/run", spec.workdir), "exec,mode=1777") | tmpfs
        return {
            **_limits(config.limits(spec.resources)),
            "network_mode": mode,
            "auto_remove": True,
            "read_only": config.read_only_root,
            "tmpfs": tmpfs,
            "cap_drop": config.cap_drop or None,
            "security_opt": ["no-new-privileges"] if config.no_new_privileges else None,
            "extra_hosts": {"host.docker.internal": "host-gateway"} if spec.network == "open" else None,
            # Else the daemon may look names up for a sandbox that must not reach anything.
            "dns": ["127.0.0.1"] if spec.network == "gym_only" else None,
            "log_config": docker.types.LogConfig(type="none"),
            "mounts": [
                docker.types.Mount(mount.target, str(mount.source.resolve()), type="bind", read_only=True)
                for mount in spec.mounts
            ],
        }


class _Opened:
    """What a provider holds while it is in use."""

    def __init__(self, config: DockerProviderConfig, labels: dict[str, str]) -> None:
        self.labels = labels
        self.daemon = Daemon(config.host)
        self.images = Images(self.daemon, config)
        self.networks = Networks(self.daemon, labels)
        self.starts = asyncio.Semaphore(config.max_starts or max(4, os.cpu_count() or 1))
        self.swept = Shared(partial(leftovers.sweep, self.daemon))


def _not_root(user: str) -> str | None:
    return None if user in ROOT else user


def _limits(limits: Resources) -> dict[str, Any]:
    import docker.types

    memory = None if limits.memory_mib is None else limits.memory_mib * MIB
    ulimits = [docker.types.Ulimit(name="core", soft=0, hard=0)]
    if limits.disk_mib is not None:
        size = limits.disk_mib * MIB
        ulimits.append(docker.types.Ulimit(name="fsize", soft=size, hard=size))
    return {
        "nano_cpus": None if limits.cpu is None else int(limits.cpu * 1e9),
        "mem_limit": memory,
        # The same number: no swap on top of it.
        "memswap_limit": memory,
        "pids_limit": None if limits.pids is None else limits.pids + OWN_PROCESSES,
        "ulimits": ulimits,
    }
