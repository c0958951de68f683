"""Sandboxes that go from one test to the next, emptied: most of the suite's time would go into making them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import urllib.request
from dataclasses import dataclass
from typing import ClassVar

from gym.failures import EpisodeFailure
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.opensandbox import OpenSandboxConfig, OpenSandboxProvider
from gym.sandbox.providers.opensandbox.errors import DeploymentError
from gym.sandbox.providers.opensandbox.facts import Facts
from gym.sandbox.providers.opensandbox.sandbox import OpenSandbox

ORDINARY = SandboxSpec()
EMPTY = "rm -rf /work /tmp/* /tmp/.[!.]* /root/* /root/.[!.]* && mkdir /work"


@dataclass(frozen=True)
class Spare:
    """A sandbox that nobody uses."""

    sandbox_id: str
    facts: Facts


class Recycling(OpenSandboxProvider):
    """Hands an ordinary sandbox on when its test has left it in order. All others are made and ended as ever."""

    spares: ClassVar[list[Spare]] = []

    def __init__(self, config: OpenSandboxConfig) -> None:
        super().__init__(config)
        self._ordinary: list[OpenSandbox] = []

    async def _start(self, spec: SandboxSpec) -> OpenSandbox:
        sandbox = await self._recycled(spec) or await super()._start(spec)
        if spec == ORDINARY:
            self._ordinary.append(sandbox)
        return sandbox

    async def _recycled(self, spec: SandboxSpec) -> OpenSandbox | None:
        if spec != ORDINARY or not self.spares:
            return None
        spare = self.spares.pop()
        try:
            remote = await self._deployment.attach(spare.sandbox_id)
        except BaseException:
            self.spares.append(spare)
            raise
        return self._live.keep(OpenSandbox(self._deployment, remote, spare.facts, owned=True))

    async def aclose(self) -> None:
        """Keep what can be used again, and end the rest."""
        while self._ordinary:
            sandbox = self._ordinary.pop()
            if await self._in_order(sandbox):
                await self._release(sandbox)
        await super().aclose()

    async def _in_order(self, sandbox: OpenSandbox) -> bool:
        if sandbox.freed or sandbox._life.ended.done():
            return False
        try:
            await sandbox._runner.clear(sandbox._facts.keep)
            return (await sandbox.exec(EMPTY, cwd="/")).exit_code == 0
        except (EpisodeFailure, DeploymentError):
            return False

    async def _release(self, sandbox: OpenSandbox) -> None:
        self._live.forget(sandbox)
        sandbox._life.end("is stopped")
        sandbox._life.never_expire()
        if sandbox._renewal is not None:
            sandbox._renewal.cancel()
        await sandbox._remote.close()
        self.spares.append(Spare(sandbox.id, sandbox._facts))
        _end_spares_at_exit(self._config.domain, self._config.api_key or "")


@functools.cache
def _end_spares_at_exit(domain: str, api_key: str) -> None:
    """End what is left over, without an event loop, for which it is too late then."""

    def end() -> None:
        for spare in Recycling.spares:
            address = f"http://{domain}/v1/sandboxes/{spare.sandbox_id}"
            key = {"OPEN-SANDBOX-API-KEY": api_key}
            with contextlib.suppress(OSError):
                urllib.request.urlopen(urllib.request.Request(address, method="DELETE", headers=key)).close()

    atexit.register(end)
