"""Sandbox fixtures. To put another provider under the conformance suite, add one entry to `PROVIDERS`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gym.sandbox.interface import Sandbox, SandboxProvider, SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.sandbox.providers.local.bubblewrap import probe


def missing(reason: str) -> None:
    """Skip what this machine cannot run; on CI it must be able to."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"required on CI: {reason}")
    pytest.skip(reason)


def bubblewrap(root: Path) -> SandboxProvider:
    found = probe()
    if isinstance(found, str):
        missing(found)
    return LocalProvider(LocalProviderConfig(isolation="bubblewrap", root=root))


def plain(root: Path) -> SandboxProvider:
    return LocalProvider(LocalProviderConfig(isolation="none", allow_unisolated=True, root=root))


PROVIDERS: dict[str, Callable[[Path], SandboxProvider]] = {"local-bubblewrap": bubblewrap, "local-plain": plain}


@pytest.fixture(params=sorted(PROVIDERS))
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    made = PROVIDERS[request.param](tmp_path / "sandboxes")
    yield made
    await made.aclose()


@pytest.fixture
def spec() -> SandboxSpec:
    return SandboxSpec()


@pytest.fixture
async def sandbox(provider: SandboxProvider, spec: SandboxSpec) -> Sandbox:
    return await provider.create(spec)


@pytest.fixture
async def isolated(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """A provider whose isolation is bubblewrap."""
    made = bubblewrap(tmp_path / "sandboxes")
    yield made
    await made.aclose()
