"""The `local` provider: sandboxes on this machine, without a daemon and without images."""

from __future__ import annotations

import asyncio
import functools
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import ClassVar

from pydantic import ValidationError

from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.sandbox.checks import unfit_spec
from gym.sandbox.interface import JSON, Capabilities, Found, Mount, Network, SandboxProvider, SandboxSpec, no_image
from gym.sandbox.life import Live
from gym.sandbox.owner import Owner
from gym.sandbox.providers.local import groups, limits
from gym.sandbox.providers.local.bubblewrap import Bubblewrap, Installed, probe
from gym.sandbox.providers.local.isolation import Isolation, Place
from gym.sandbox.providers.local.plain import Plain
from gym.sandbox.providers.local.record import Record, default_root, found, new_id, new_lease, remove, sweep
from gym.sandbox.providers.local.sandbox import LocalSandbox
from gym.sandbox.providers.local.settings import LocalProviderConfig
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import refuses_mount

NETWORKS: frozenset[Network] = frozenset({"open", "gym_only", "none"})
# Folders of a root that belong to the sandbox, so that mounts cannot have them.
OWN = frozenset({"tmp", "var", "run", "opt", "home"})


class LocalProvider(SandboxProvider):
    """Sandboxes that are a directory and, for each command, a bubblewrap."""

    name: ClassVar[str] = "local"
    config_type = LocalProviderConfig

    def __init__(self, config: LocalProviderConfig) -> None:
        self._config = config
        self._root = config.root or default_root()
        self._swept = False
        self._live: Live[LocalSandbox] = Live()

    @property
    def isolated(self) -> bool:
        """True under bubblewrap."""
        return self._isolation.isolated

    @property
    def capabilities(self) -> Capabilities:
        """One user, no images. Without isolation, `networks` says what is accepted, not what is kept."""
        isolation = self._isolation
        return Capabilities(root="0" in isolation.users, users=False, networks=NETWORKS, mounts=isolation.mounts)

    def describe(self) -> str:
        """One line for log and manifest."""
        return self._isolation.describe()

    def check(self, spec: SandboxSpec) -> list[Problem]:
        """See `SandboxProvider.check`."""
        problems = list(unfit_spec(spec, self.name, NETWORKS))
        if spec.image is not None:
            problems.append(no_image(self.name, spec.image))
        if (top := "".join(PurePosixPath(spec.workdir).parts[1:2])) in self._isolation.reserved:
            what = f"the work directory `{spec.workdir}` cannot be used: /{top} is a read-only part of the system"
            problems.append(Problem(what, key="workdir"))
        for mount in spec.mounts:
            if (reason := self._refuses_mount(mount, spec)) is not None:
                what = f"{mount.source} cannot be mounted at `{mount.target}`: {reason}"
                problems.append(Problem(what, key="mounts"))
        return problems

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """See `SandboxProvider.create`. The first call also sweeps what earlier runs left behind."""
        spec = self.common.added_to(spec, mounts=self._isolation.mounts)
        if problems := [*self._unisolated(), *self.check(spec)]:
            raise UserError(problems)
        name = new_id()
        directory = self._root.resolve() / name
        try:
            record = await uncancelled(asyncio.to_thread(self._make, directory, spec))
        except OSError as error:
            with suppress(OSError):  # the first error tells more
                await uncancelled(asyncio.to_thread(remove, directory, name))
            raise EpisodeFailure("sandbox_start", f"could not make the sandbox {directory}: {error}") from error
        except asyncio.CancelledError:
            await uncancelled(asyncio.to_thread(remove, directory, name))
            raise
        sandbox = LocalSandbox(Place(directory, record), self._isolation, owned=True)
        if spec.ttl_seconds is not None:
            sandbox.expire_after(spec.ttl_seconds)
        return self._live.keep(sandbox)

    async def connect(self, descriptor: Mapping[str, JSON]) -> LocalSandbox:
        """See `SandboxProvider.connect`; the sandbox must lie in this provider's root."""
        directory = Path(str(descriptor.get("directory")))
        try:
            if directory.parent != self._root.resolve():
                raise FileNotFoundError(f"{directory} is not in {self._root}")
            record = Record.load(directory)
        except (OSError, ValidationError) as error:
            raise EpisodeFailure("sandbox_lost", f"no sandbox {descriptor.get('sandbox_id')}: {error}") from error
        if record.lease != descriptor.get("lease"):
            raise EpisodeFailure("sandbox_lost", f"sandbox {record.id} was taken back by its owner")
        if record.isolation != self._isolation.name:
            raise EpisodeFailure("sandbox_lost", f"sandbox {record.id} has the isolation {record.isolation}, not ours")
        sandbox = LocalSandbox(Place(directory, record), self._isolation, owned=False)
        return self._live.keep(sandbox)

    async def sweep(self) -> int:
        """See `SandboxProvider.sweep`; what lies in this provider's root."""
        return await uncancelled(asyncio.to_thread(sweep, self._root))

    async def found(self) -> list[Found]:
        """See `SandboxProvider.found`; what lies in this provider's root."""
        return await asyncio.to_thread(found, self._root)

    async def aclose(self) -> None:
        """See `SandboxProvider.aclose`."""
        failed = await self._live.stop()
        if failed:
            raise EpisodeFailure("cleanup_failed", "; ".join(failed))

    @functools.cached_property
    def _isolation(self) -> Isolation:
        if self._config.isolation == "none":
            return Plain()
        found = probe()
        if isinstance(found, Installed):
            return Bubblewrap(found)
        if self._config.isolation == "auto":
            return Plain()
        fix = "install bubblewrap, or set `isolation: none` with `allow_unisolated: true`"
        raise UserError(Problem(found, fix, key="sandbox.isolation"))

    def _unisolated(self) -> list[Problem]:
        if self._isolation.isolated or self._config.allow_unisolated:
            return []
        found = probe() if self._config.isolation == "auto" else None
        what = found if isinstance(found, str) else "no isolation is set"
        fix = "make bubblewrap work, choose another sandbox, or set `allow_unisolated: true` for trusted code"
        return [Problem(f"sandboxes would not be isolated: {what}", fix, key="sandbox.isolation")]

    def _refuses_mount(self, mount: Mount, spec: SandboxSpec) -> str | None:
        if not self._isolation.mounts:
            return "without isolation there are no mounts"
        if (reason := refuses_mount(mount)) is not None:
            return reason
        top = PurePosixPath(mount.target).parts[1]
        taken = self._isolation.reserved | OWN | set(PurePosixPath(spec.workdir).parts[1:2])
        return f"/{top} is in use; take a top-level folder of its own, such as /gym" if top in taken else None

    def _make(self, directory: Path, spec: SandboxSpec) -> Record:
        """Make the directory of a sandbox, its record first; blocks."""
        self._open_root()
        now = time.time()
        owned = Record(
            id=directory.name,
            owner=Owner.current(),
            labels={**self._config.default_metadata, **spec.labels},
            created_at=now,
            expires_at=None if spec.ttl_seconds is None else now + spec.ttl_seconds,
            isolation=self._isolation.name,
            workdir=spec.workdir,
            env=dict(spec.env),
            network=spec.network,
            mounts=[(str(mount.source.resolve()), mount.target) for mount in spec.mounts],
            gym_address=spec.gym_address,
            lease=new_lease(),
        )
        owned.begin(directory)
        prepared = self._isolation.prepare(directory, spec)
        wanted = self._config.limits(spec.resources)
        grouped = groups.create(directory.name, wanted)
        made = {
            "workdir": prepared.workdir,
            "env": {**prepared.env, **spec.env},
            "control_groups": sorted({str(folder) for folder in grouped.values()}),
            "limits": limits.shell_lines(wanted, grouped, own_namespace=self._isolation.own_namespace),
        }
        record = owned.model_copy(update=made)
        record.save(directory)
        return record

    def _open_root(self) -> None:
        """Make the folder of all sandboxes, and clear it of earlier runs' once."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._root.lstat()
        if self._config.root is None and not (
            stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
        ):
            what = f"{self._root} is not a folder of this user alone"
            raise UserError(Problem(what, "remove it, or set another folder", key="sandbox.root"))
        if not self._swept:
            self._swept = True
            sweep(self._root)
