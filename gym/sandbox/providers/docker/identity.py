"""Who a container's commands and files belong to."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from gym.failures import EpisodeFailure
from gym.sandbox.programs import FIND, SYSTEM_PATH, path_of
from gym.sandbox.providers.docker.command import run
from gym.sandbox.providers.docker.daemon import DaemonError
from gym.sandbox.providers.docker.order import Container, Order

ROOT = ("", "0", "root", "0:0", "root:root")
POWERS = frozenset({"ALL", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"})
"""What root needs to write files for others. Without one of these, users write theirs themselves."""

# By image: containers of one have their programs in the same places.
_paths: dict[str, str] = {}

# $1 is the work directory; the rest of what it prints is the directory's mode and real path.
_WHO = 'id -u && id -g && cd -- "$1" && stat -c %a . && pwd -P'


@dataclass(frozen=True)
class Identity:
    """What is known of a container.

    Attributes:
        sandbox_id: Name of the sandbox.
        reference: Container id for the owner; for a borrower the container's name, which the owner may change.
        user: Who commands run as, None for root; with `owner`, user and group of what is uploaded.
        mode: Its network mode.
        powerless: Its root may not write files for others.
        path: PATH of our own scripts.
    """

    sandbox_id: str
    reference: str
    workdir: str
    user: str | None
    mode: str
    digest: str | None
    powerless: bool = False
    owner: tuple[int, int] = (0, 0)
    path: str = SYSTEM_PATH

    @property
    def writer(self) -> str:
        """Who copies files in and out."""
        return self.user if self.powerless and self.user is not None else "0"


def not_root(user: str | None) -> str | None:
    """A user; None for root, by whatever name."""
    return None if user in ROOT else user


def is_powerless(cap_drop: Iterable[str]) -> bool:
    """Whether root may not write files for others, without these capabilities."""
    return any(name.upper().removeprefix("CAP_") in POWERS for name in cap_drop)


async def with_path(container: Container, identity: Identity) -> Identity:
    """The same, with the PATH of our own scripts; to be called before anybody works in the container.

    Raises:
        DaemonError: the container is gone, or the daemon does not answer.
    """
    image = identity.digest or identity.sandbox_id
    if image not in _paths:
        _paths[image] = path_of((await run(container, Order(["/bin/sh", "-c", FIND], user="0"))).stdout_text)
    return replace(identity, path=_paths[image])


async def with_owner(container: Container, identity: Identity, *, give: bool) -> Identity:
    """The same, with the numbers of its user, who then owns the work directory if that is to be given away.

    Raises:
        UserError: the image has no such user.
        DaemonError: the container is gone, or the daemon does not answer.
        EpisodeFailure: `sandbox_start`: the user cannot have the work directory; `sandbox_lost`.
    """
    said = await run(container, Order(["sh", "-c", _WHO, "sh", identity.workdir], user=identity.user, ours=True))
    words = said.stdout_text.split("\n")
    if said.exit_code or len(words) < 4:
        what = f"the user `{identity.user}` cannot enter the work directory {identity.workdir}"
        raise EpisodeFailure("sandbox_start", f"{what}: {said.stderr_text.strip()[-300:]}")
    owner = int(words[0]), int(words[1])
    if give and identity.powerless:
        await _give_from_outside(container, owner, int(words[2], 8), PurePosixPath("\n".join(words[3:])[:-1]))
        may_write = Order(["test", "-w", identity.workdir], user=identity.user, ours=True)
        given = await run(container, may_write)
        if given.exit_code:
            # The daemon reaches neither a read-only root nor a folder in memory. Such a folder is nobody else's.
            opened = await run(container, Order(["chmod", "1777", "--", identity.workdir], user="0", ours=True))
            given = opened if opened.exit_code else await run(container, may_write)
    elif give:
        command = ["chown", f"{owner[0]}:{owner[1]}", "--", identity.workdir]
        given = await run(container, Order(command, user="0", ours=True))
    if give and given.exit_code:
        what = f"the work directory {identity.workdir} cannot be given to `{identity.user}`"
        problem = given.stderr_text.strip()[-300:] or "it may not write there"
        raise EpisodeFailure("sandbox_start", f"{what}: {problem}")
    return replace(identity, owner=owner)


async def _give_from_outside(container: Container, owner: tuple[int, int], mode: int, path: PurePosixPath) -> None:
    """The daemon may change the owner of a folder where root inside may not."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        folder = tarfile.TarInfo(path.name)
        folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, mode, int(time.time())
        folder.uid, folder.gid = owner
        archive.addfile(folder)
    with suppress(DaemonError):  # it refuses all on a read-only root
        await container.daemon.call(
            lambda api: api.put_archive(container.reference, str(path.parent), packed.getvalue())
        )
