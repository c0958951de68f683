"""Labels that say whose a container is, and the sweep of what owners left behind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gym.sandbox.interface import Found
from gym.sandbox.owner import Owner
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.networks import remove_network
from gym.sandbox.spec import TASK_LABEL

ID = "gym.sandbox"
OWNER = "gym.owner"
LABEL = "gym.label."  # before the names of the owner's own labels
EXPIRES = "gym.expires"  # for people; the container ends by itself
NETWORK = "gym.network"
DIGEST = "gym.image"
USER = "gym.user"  # of its commands, since the first process is always root's
UNSEEN_SECONDS = 3600.0
REMOVE_SECONDS = 60.0
log = logging.getLogger(__name__)


def ownership() -> dict[str, str]:
    """Labels of everything that this process makes."""
    return {OWNER: Owner.current().model_dump_json()}


async def found(daemon: Daemon) -> list[Found]:
    """The sandboxes that are there.

    Raises:
        DaemonError: the daemon does not answer.
    """
    observer = Owner.current()
    containers = await daemon.call(lambda api: api.containers(all=True, filters={"label": ID}))
    return [_found(item, observer) for item in containers]


def _found(item: Mapping[str, Any], observer: Owner) -> Found:
    labels: Mapping[str, str] = item["Labels"]
    own = {name.removeprefix(LABEL): value for name, value in labels.items() if name.startswith(LABEL)}
    owner = _owner(labels)
    return Found(labels[ID], own, owner.pid if owner else None, item["Created"], _left(item, observer))


async def sweep(daemon: Daemon) -> int:
    """Remove the containers and networks that ended processes left behind.

    Returns:
        The number of containers.

    Raises:
        DaemonError: the daemon does not answer.
    """

    def remove(api: Any) -> int:
        observer = Owner.current()
        filters = {"label": OWNER}
        containers = [item for item in api.containers(all=True, filters=filters) if _left(item, observer)]
        for item in containers:
            remove_container(api, item["Id"])
        for item in api.networks(filters=filters):
            if (item["Labels"] or {}).get(OWNER) and _gone(item["Labels"], observer) is True:
                try:
                    remove_network(api, item["Name"])
                except Exception as error:  # somebody's container may hang on it; the next sweep tries again
                    log.warning("the network %s could not be removed: %s", item["Name"], error)
        return len(containers)

    return await daemon.call(remove)


async def sweep_images(daemon: Daemon, label: str = TASK_LABEL, least_age_seconds: float = 3600) -> int:
    """Remove the images that were built for tasks, but for new ones, and for those of containers that are there.

    New ones may be those of a run that has not come to their tasks yet.

    Returns:
        The number of images.

    Raises:
        DaemonError: the daemon does not answer.
    """

    def remove(api: Any) -> int:
        import docker.errors

        removed = 0
        for image in api.images(filters={"label": label}):
            if image["Created"] > time.time() - least_age_seconds:
                continue
            try:
                for name in image["RepoTags"] or [image["Id"]]:
                    api.remove_image(name)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):
                    raise
            else:
                removed += 1
        return removed

    return await daemon.call(remove)


def remove_container(api: Any, reference: str) -> None:
    """Remove a container with its processes; one that is gone or going is left alone."""
    import docker.errors

    try:
        api.remove_container(reference, force=True, v=True)
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):
            raise


async def remove(daemon: Daemon, reference: str) -> None:
    """The same as `remove_container`, until it is gone.

    Raises:
        DaemonError: it stays, or the daemon does not answer.
    """
    await daemon.call(lambda api: remove_container(api, reference))
    deadline = time.monotonic() + REMOVE_SECONDS
    # Somebody else, such as its own end, may be removing it at the same time.
    while await daemon.call(lambda api: api.containers(all=True, filters={"id": reference})):
        if time.monotonic() > deadline:
            raise DaemonError(500, f"its container is still there after {REMOVE_SECONDS:g} s")
        await asyncio.sleep(0.1)


def _left(item: Mapping[str, Any], observer: Owner) -> bool:
    """Whether nobody needs a container.

    Where its owner cannot be seen, it is kept as long as it runs: none of ours survives a boot, so it is another
    machine's. One that does not run may be about to be started.
    """
    gone = _gone(item["Labels"], observer)
    if gone is None:
        running = item["State"] in ("running", "paused", "restarting")
        return not running and time.time() - item["Created"] > UNSEEN_SECONDS
    return gone


def _gone(labels: Mapping[str, str], observer: Owner) -> bool | None:
    """Whether an owner has ended; None for one of another boot or container, or that cannot be read."""
    owner = _owner(labels)
    if owner is None or (owner.boot, owner.pid_namespace) != (observer.boot, observer.pid_namespace):
        return None
    return owner.gone(observer)


def _owner(labels: Mapping[str, str]) -> Owner | None:
    try:
        return Owner.model_validate_json(labels[OWNER])
    except (ValidationError, KeyError):
        return None
