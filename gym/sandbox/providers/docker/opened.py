"""What a provider holds while it is in use, and how a container is started with it."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from functools import partial
from typing import Any

from gym.sandbox.interface import ImageFacts, SandboxSpec
from gym.sandbox.providers.docker import form, leftovers
from gym.sandbox.providers.docker.builds import Builds
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.identity import Identity, is_powerless, not_root
from gym.sandbox.providers.docker.images import Images
from gym.sandbox.providers.docker.networks import Networks
from gym.sandbox.providers.docker.sandbox import DockerSandbox
from gym.sandbox.providers.docker.settings import DockerProviderConfig
from gym.sandbox.shared import Shared
from gym.sandbox.waiting import uncancelled


class Opened:
    """The daemon of a provider, and what it has there.

    Args:
        config: Settings of the provider.
        labels: Of everything that this process makes.

    Attributes:
        labels: The same.
    """

    def __init__(self, config: DockerProviderConfig, labels: dict[str, str]) -> None:
        self._config = config
        self.labels = labels
        self.daemon = Daemon(config.host)
        self.images = Images(self.daemon, config)
        self.builds = Builds(self.daemon, self.images, again=config.pull == "always")
        self.networks = Networks(self.daemon, labels)
        self.starts = asyncio.Semaphore(config.max_starts or max(4, os.cpu_count() or 1))
        self.swept = Shared(partial(leftovers.sweep, self.daemon))

    async def start(self, spec: SandboxSpec, image: ImageFacts, mode: str) -> DockerSandbox:
        """Start a container, or leave nothing of it; `mode` is its network mode.

        Raises:
            DaemonError: refused, or no answer.
        """
        sandbox_id = f"gym-{secrets.token_hex(6)}"
        name = f"{sandbox_id}-{secrets.token_hex(4)}"
        user = self._config.user if self._config.user is not None else image.user
        given = {**self._config.default_metadata, **spec.labels}
        labels = {
            **{f"{leftovers.LABEL}{key}": value for key, value in given.items()},
            **self.labels,
            leftovers.ID: sandbox_id,
            leftovers.NETWORK: spec.network,
            leftovers.DIGEST: image.digest,
            leftovers.USER: user,
            leftovers.EXPIRES: str(int(time.time()) + form.ttl(self._config, spec)),
        }
        host = form.host(self._config, spec, mode)
        settings = form.settings(self._config, spec) | {"labels": labels, "name": name}

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
            container = await uncancelled(self.daemon.call(start))
        except asyncio.CancelledError:
            await uncancelled(self.daemon.call(lambda api: leftovers.remove_container(api, name)))
            raise
        except DaemonError as error:
            if error.status == 404:
                self.images.forget(image.name)
            raise
        powerless = is_powerless(self._config.cap_drop)
        identity = Identity(sandbox_id, container, spec.workdir, not_root(user), mode, image.digest, powerless)
        return DockerSandbox(self.daemon, identity, self.networks, name, owned=True)
