"""What a container's files are beside those of its image, seen from outside: no program in it is asked, or believed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from gym.sandbox.interface import Change
from gym.sandbox.providers.docker.leftovers import ownership, remove_container
from gym.sandbox.providers.docker.order import Container

ELF = b"\x7fELF"
NO_FILE = sum(1 << bit for bit in (31, 27, 26, 25, 24, 21, 19))
"""Of the modes that the daemon tells, what a regular file has not."""

KINDS: tuple[Change, ...] = ("changed", "added", "removed")
"""As the daemon numbers them."""


async def changes(container: Container) -> dict[str, Change]:
    """Paths that are not as in the image.

    Raises:
        DaemonError: the container is gone, or the daemon does not answer.
    """
    found = await container.daemon.call(lambda api: api.diff(container.reference))
    return {item["Path"]: KINDS[item["Kind"]] for item in found or []}


async def restore(container: Container, paths: Iterable[str], *, machine_only: bool) -> list[str]:
    """See `Sandbox.restore`.

    Raises:
        DaemonError: the container is gone, or the daemon does not answer.
    """
    wanted = sorted(set(paths))

    def put_back(api: Any) -> list[str]:
        image = api.inspect_container(container.reference)["Image"]
        # Never started: its files are the image's.
        fresh = api.create_container(image, entrypoint=["none"], network_disabled=True, labels=ownership())["Id"]
        packed = io.BytesIO()
        try:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                done = [path for path in wanted if _copy(api, container.reference, fresh, path, archive, machine_only)]
        finally:
            remove_container(api, fresh)
        if done:
            api.put_archive(container.reference, "/", packed.getvalue())
        return done

    return await container.daemon.call(put_back) if wanted else []


def _copy(api: Any, used: str, fresh: str, path: str, archive: tarfile.TarFile, machine_only: bool) -> bool:
    """Add the image's file or link to an archive of the whole root; False for one that is left alone."""
    import docker.errors

    content: bytes | None = None
    member = tarfile.TarInfo()
    with suppress(docker.errors.NotFound):
        chunks, _ = api.get_archive(fresh, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as original:
            found = original.next()
            if found is None or not (found.isreg() or found.issym()):
                return False
            member = found
            stored = original.extractfile(member) if member.isreg() else None
            content = None if stored is None else stored.read()
    if machine_only and (content is None or not content.startswith(ELF)):
        return False
    if content is not None and _is_same(api, used, path, member, content):
        return False
    member.name = path.lstrip("/")
    archive.addfile(member, None if content is None else io.BytesIO(content))
    return True


def _is_same(api: Any, used: str, path: str, original: tarfile.TarInfo, content: bytes) -> bool:
    """Whether a file has the image's content and owner, can be read and run as there, and has no new set-id bit."""
    import docker.errors

    with suppress(docker.errors.NotFound):
        chunks, said = api.get_archive(used, path)
        # Whatever else stands there may be of any size.
        if said["mode"] & NO_FILE or said["size"] != len(content):
            return False
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            found = archive.next()
            stored = archive.extractfile(found) if found is not None and found.isreg() else None
            if found is None or stored is None or (found.uid, found.gid) != (original.uid, original.gid):
                return False
            lost, set_id = original.mode & 0o555 & ~found.mode, found.mode & 0o6000 & ~original.mode
            return not lost and not set_id and stored.read() == content
    return False
