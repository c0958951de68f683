"""Sandbox fixtures, and the shipped providers that go through the conformance suite."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.sandbox.interface import SandboxProvider
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.sandbox.providers.local.bubblewrap import probe
from gym.sandbox.providers.opensandbox import OpenSandboxProvider
from gym.testing.sandbox_conformance.checks import MakeProvider, provider, sandbox, spec
from tests.conftest import needs
from tests.sandbox.opensandbox.deployment import Server, server
from tests.sandbox.opensandbox.recycling import Recycling

IMAGE = "gym-base"
__all__ = ["provider", "sandbox", "spec"]  # fixtures


def bubblewrap(root: Path) -> LocalProvider:
    found = probe()
    needs("bubblewrap", present=not isinstance(found, str), reason=str(found))
    return LocalProvider(LocalProviderConfig(isolation="bubblewrap", root=root))


def plain(root: Path) -> LocalProvider:
    return LocalProvider(LocalProviderConfig(isolation="none", allow_unisolated=True, root=root))


@functools.cache
def daemon_lacks() -> str:
    """What is missing for tests with Docker, and how to get it; empty where they can run."""
    daemon = Daemon(None)
    try:
        daemon.version()
        daemon.call_now(lambda api: api.inspect_image(IMAGE))
    except UserError as error:
        return str(error)
    except DaemonError as error:
        return f"{error}; `python tests/tools/base_image.py` builds it" if error.status == 404 else str(error)
    finally:
        daemon.close()
    return ""


def docker(root: Path) -> DockerProvider:
    needs("Docker", present=not daemon_lacks(), reason=daemon_lacks())
    return DockerProvider(DockerProviderConfig(default_image=IMAGE, pull="never"))


def opensandbox(root: Path) -> OpenSandboxProvider:
    found = server()
    needs("OpenSandbox", present=isinstance(found, Server), reason=str(found))
    assert isinstance(found, Server)
    return Recycling(found.config())


PROVIDERS: dict[str, Callable[[Path], SandboxProvider]] = {
    "docker": docker,
    "local-bubblewrap": bubblewrap,
    "local-plain": plain,
    "opensandbox": opensandbox,
}


@pytest.fixture(params=sorted(PROVIDERS))
def make_provider(request: pytest.FixtureRequest, tmp_path: Path) -> MakeProvider:
    """Each provider."""
    return lambda: PROVIDERS[request.param](tmp_path / "sandboxes")


@pytest.fixture(params=["local-bubblewrap", "local-plain"])
async def local(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """The local provider, in its two ways."""
    made = PROVIDERS[request.param](tmp_path / "sandboxes")
    yield made
    await made.aclose()


@pytest.fixture
async def isolated(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """The local provider with bubblewrap."""
    made = bubblewrap(tmp_path / "sandboxes")
    yield made
    await made.aclose()


@pytest.fixture
async def containers(tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """The docker provider."""
    made = docker(tmp_path)
    yield made
    await made.aclose()
