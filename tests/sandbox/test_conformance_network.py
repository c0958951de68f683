"""What the shipped providers' sandboxes reach, by the suite that every provider can be put through."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gym.sandbox.interface import SandboxProvider, SandboxSpec
from gym.testing.sandbox_conformance.network import *  # noqa: F403
from tests.sandbox.conftest import bubblewrap, docker


@pytest.mark.parametrize("make", [bubblewrap, docker])
async def test_none_has_a_loopback_and_no_route(make: Callable[[Path], SandboxProvider], tmp_path: Path) -> None:
    provider = make(tmp_path)
    sandbox = await provider.create(SandboxSpec(network="none"))
    interfaces = await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1; tail -n +2 /proc/net/route")
    assert interfaces.stdout_text.split() == ["lo"]
    await provider.aclose()
