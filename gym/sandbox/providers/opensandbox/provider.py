"""The `opensandbox` provider: sandboxes of an OpenSandbox deployment, through its Python SDK."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import ClassVar, TypeVar

from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.sandbox.checks import unfit_spec
from gym.sandbox.interface import JSON, Capabilities, Found, Network, OnImageProgress, SandboxProvider, SandboxSpec
from gym.sandbox.life import Live
from gym.sandbox.providers.opensandbox import labels
from gym.sandbox.providers.opensandbox.errors import DeploymentError
from gym.sandbox.providers.opensandbox.facts import Facts, new_lease
from gym.sandbox.providers.opensandbox.labels import Process
from gym.sandbox.providers.opensandbox.remote import Deployment, Start
from gym.sandbox.providers.opensandbox.sandbox import SHORTEST_TTL_SECONDS, OpenSandbox
from gym.sandbox.providers.opensandbox.settings import OpenSandboxConfig
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import checked_environment

T = TypeVar("T")
PACKAGE = "opensandbox"
MISSING = "the package `opensandbox` is not installed; run: pip install 'hydra-gym[opensandbox]'"

NO_NETWORK = "use `open`; for `none` the deployment must block addresses, and `enforces_egress` must say so"
KEY_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
REQUEST_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)


class OpenSandboxProvider(SandboxProvider):
    """Sandboxes somewhere else, on whatever the deployment runs them."""

    name: ClassVar[str] = "opensandbox"
    config_type = OpenSandboxConfig
    unavailable: ClassVar[str] = "" if importlib.util.find_spec(PACKAGE) else MISSING

    def __init__(self, config: OpenSandboxConfig) -> None:
        self._config = config
        self._deployment = Deployment(config)
        self._creator = secrets.token_hex(8)
        self._starts = asyncio.Semaphore(config.max_starts)
        self._live: Live[OpenSandbox] = Live()
        self._swept = False
        self._unsure = False

    @property
    def isolated(self) -> bool:
        """How well, is the deployment's choice; always away from this machine's own processes and files."""
        return True

    @property
    def capabilities(self) -> Capabilities:
        """`none` only where the deployment is said to enforce it."""
        networks: set[Network] = {"open", "none"} if self._config.enforces_egress else {"open"}
        return Capabilities(root=True, users=True, networks=frozenset(networks), background=True, images=True)

    def describe(self) -> str:
        """One line for log and manifest."""
        version = importlib.metadata.version(PACKAGE) if not self.unavailable else "not installed"
        return f"OpenSandbox at {self._config.domain} (SDK {version})"

    def check(self, spec: SandboxSpec) -> list[Problem]:
        """See `SandboxProvider.check`."""
        problems = [
            replace(found, fix=NO_NETWORK) if found.key == "network" else found
            for found in unfit_spec(spec, self.name, self.capabilities.networks)
        ]
        if not self._image(spec):
            fix = "name one in the task or in sandbox.default_image"
            what = "a sandbox of OpenSandbox starts from an image, and none is named"
            problems.append(Problem(what, fix, key="image"))
        if spec.resources.pids is not None:
            what = "OpenSandbox has no limit for the processes of a single sandbox"
            problems.append(Problem(what, "leave it to the deployment's own", key="resources.pids"))
        for mount in spec.mounts:
            what = f"{mount.source} cannot be mounted at `{mount.target}`: OpenSandbox has no mounts of this machine"
            problems.append(Problem(what, "upload it", key="mounts"))
        return problems

    async def create(self, spec: SandboxSpec) -> OpenSandbox:
        """See `SandboxProvider.create`. The first call also sweeps what earlier runs left behind."""
        spec = self.common.added_to(spec, mounts=False)
        self._refuse_missing()
        if problems := self.check(spec):
            raise UserError(problems)
        async with self._starts:
            await self._sweep_once()
            sandbox = await self._start(spec)
        if spec.ttl_seconds is None:
            sandbox.keep_alive(self._config.unattended_seconds)
        else:
            sandbox.expire_after(spec.ttl_seconds)
        return sandbox

    async def connect(self, descriptor: Mapping[str, JSON]) -> OpenSandbox:
        """See `SandboxProvider.connect`; the descriptor must be of the same deployment."""
        self._refuse_missing()
        sandbox_id = str(descriptor.get("sandbox_id"))
        if descriptor.get("domain") != self._config.domain:
            raise EpisodeFailure("sandbox_lost", f"no sandbox {sandbox_id} at {self._config.domain}")
        facts = Facts.lent(descriptor)
        try:
            metadata = (await self._deployment.info(sandbox_id)).metadata or {}
            if metadata.get(labels.LEASE) != facts.lease:
                raise EpisodeFailure("sandbox_lost", f"sandbox {sandbox_id} was taken back by its owner")
            remote = await self._deployment.attach(sandbox_id)
        except DeploymentError as error:
            raise EpisodeFailure("sandbox_lost", f"no sandbox {sandbox_id}: {error}") from error
        return self._live.keep(OpenSandbox(self._deployment, remote, facts, owned=False))

    async def prepare(self, images: Sequence[str | None], on_progress: OnImageProgress | None = None) -> dict[str, str]:
        """See `SandboxProvider.prepare`. The deployment pulls by itself, and is only asked whether it would hear us."""
        del images, on_progress
        await self._looking(lambda: self._deployment.find({labels.CREATOR: self._creator}))
        return {}

    async def sweep(self) -> int:
        """See `SandboxProvider.sweep`; of this machine's processes only."""
        return await self._looking(self._sweep)

    async def found(self) -> list[Found]:
        """See `SandboxProvider.found`; the labels as the deployment accepted them."""
        observer = Process.current()
        infos = await self._looking(lambda: self._deployment.find(labels.MANAGED))
        return [labels.found(info.id, info.metadata or {}, info.created_at.timestamp(), observer) for info in infos]

    async def _looking(self, work: Callable[[], Awaitable[T]]) -> T:
        self._refuse_missing()
        try:
            return await work()
        except DeploymentError as error:
            raise self._key_refused(error) or self._unreached(error) from error

    async def aclose(self) -> None:
        """See `SandboxProvider.aclose`."""
        failed = await self._live.stop()
        try:
            await uncancelled(self._remove_unsure())
        except DeploymentError as error:
            failed.append(str(error))
        if failed:
            raise EpisodeFailure("cleanup_failed", "; ".join(failed))

    async def _start(self, spec: SandboxSpec) -> OpenSandbox:
        """Make a sandbox and its work directory, or nothing."""
        lease = new_lease()
        try:
            remote = await self._deployment.start(self._asked(spec, lease))
        except DeploymentError as error:
            self._unsure |= error.status is None
            raise self._not_started(error) from error
        except asyncio.CancelledError:
            self._unsure = True
            raise
        facts = Facts(spec.workdir, spec.network, spec.resources.disk_mib, lease)
        sandbox = OpenSandbox(self._deployment, remote, facts, owned=True)
        try:
            await sandbox.prepare()
        except EpisodeFailure as failure:
            await sandbox.stop()
            raise EpisodeFailure("sandbox_start", failure.message) from failure
        except BaseException:
            await sandbox.stop()
            raise
        return self._live.keep(sandbox)

    def _asked(self, spec: SandboxSpec, lease: str) -> Start:
        config = self._config
        return Start(
            image=self._image(spec),
            env=checked_environment(spec.env),
            cpu=spec.resources.cpu or config.default_cpu,
            memory_mib=spec.resources.memory_mib or config.default_memory_mib,
            ttl_seconds=max(SHORTEST_TTL_SECONDS, spec.ttl_seconds or config.unattended_seconds),
            metadata={
                **labels.metadata({**config.default_metadata, **spec.labels}),
                **labels.MANAGED,
                **Process.current().labels(),
                labels.CREATOR: self._creator,
                labels.LEASE: lease,
            },
            deny_egress=spec.network == "none",
        )

    def _image(self, spec: SandboxSpec) -> str:
        return spec.image or self._config.default_image or ""

    async def _sweep_once(self) -> None:
        if not self._swept:
            # What is wrong with the deployment, its answer to the request for a sandbox tells better.
            with suppress(DeploymentError):
                await self._sweep()
                self._swept = True

    async def _sweep(self) -> int:
        observer = Process.current()
        found = await self._deployment.find({**labels.MANAGED, labels.MACHINE: observer.machine})
        left = [info.id for info in found if (maker := Process.of(info.metadata or {})) and maker.gone(observer)]
        for sandbox_id in left:
            await self._deployment.destroy(sandbox_id)
        return len(left)

    async def _remove_unsure(self) -> None:
        """Remove sandboxes that were asked for, and of which no answer told."""
        if self._unsure:
            for info in await self._deployment.find({labels.CREATOR: self._creator}):
                await self._deployment.destroy(info.id)
            self._unsure = False

    @property
    def _where(self) -> str:
        return f"OpenSandbox at {self._config.domain}"

    def _key_refused(self, error: DeploymentError) -> UserError | None:
        if error.status not in KEY_REFUSED:
            return None
        fix = "set sandbox.api_key, which is the variable OPENSANDBOX_API_KEY unless told otherwise"
        return UserError(Problem(f"{self._where} refuses the key: {error}", fix, key="sandbox.api_key"))

    def _unreached(self, error: DeploymentError) -> UserError:
        fix = "set sandbox.domain, which is the variable OPENSANDBOX_DOMAIN unless told otherwise"
        return UserError(Problem(f"{self._where} cannot be reached: {error}", fix, key="sandbox.domain"))

    def _not_started(self, error: DeploymentError) -> Exception:
        if (refused := self._key_refused(error)) is not None:
            return refused
        if error.status in REQUEST_REFUSED:
            return UserError(f"{self._where} refuses this sandbox: {error}")
        return EpisodeFailure("sandbox_start", f"{self._where} could not make a sandbox: {error}")

    def _refuse_missing(self) -> None:
        if self.unavailable:
            raise UserError(Problem(self.unavailable, key="sandbox"))
