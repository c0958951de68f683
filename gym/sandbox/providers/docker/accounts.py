"""Whether an image knows a user, seen before anything runs in it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import Any

from gym.sandbox.providers.docker.daemon import Daemon
from gym.sandbox.providers.docker.leftovers import remove_container

FILES = ("/etc/passwd", "/etc/group")


async def unknown(daemon: Daemon, image: str, user: str, labels: Mapping[str, str]) -> str | None:
    """The name of the user, or of its group, that an image does not know; numbers need not be known.

    Raises:
        DaemonError: refused, or no answer.
    """
    wanted = [(name, file) for name, file in zip(user.split(":"), FILES, strict=False) if not name.isdigit()]
    if not wanted:
        return None

    def look(api: Any) -> str | None:
        made = api.create_container(image, entrypoint=["/bin/sh"], labels=dict(labels))["Id"]
        try:
            return next((name for name, file in wanted if name not in _names(api, made, file)), None)
        finally:
            remove_container(api, made)

    return await daemon.call(look)


def _names(api: Any, container: str, path: str) -> set[str]:
    import docker.errors

    try:
        chunks, _ = api.get_archive(container, path)
    except docker.errors.NotFound:
        return set()
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        file = next((archive.extractfile(member) for member in archive if member.isfile()), None)
        lines = file.read().decode("utf-8", "replace").splitlines() if file is not None else []
    return {line.partition(":")[0] for line in lines}
