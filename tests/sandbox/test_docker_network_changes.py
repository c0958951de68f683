"""A container gets another network while it runs: what is in reach changes, and what runs goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gym.errors import UserError
from gym.sandbox.interface import Network, Sandbox, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider
from tests.sandbox.conftest import docker

NETWORKS: tuple[Network, ...] = ("none", "open", "gym_only")


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """Containers."""
    made = docker(tmp_path)
    yield made
    await made.aclose()


async def interfaces(sandbox: Sandbox) -> int:
    """Their number, beside loopback."""
    said = await sandbox.exec("ls /sys/class/net | grep -vc '^lo$'; true")
    return int(said.stdout_text)


@pytest.mark.parametrize("first", NETWORKS)
async def test_the_network_changes(provider: DockerProvider, first: Network) -> None:
    sandbox = await provider.create(SandboxSpec(network=first))
    await sandbox.exec("setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $! > service")
    reached: dict[str, set[str | None]] = {"open": set(), "gym_only": set()}
    for network in (*NETWORKS, first, "gym_only", "open"):
        await sandbox.change_network(network)
        borrowed = await provider.connect(sandbox.descriptor())
        assert await interfaces(sandbox) == int(network != "none")
        if network == "none":
            with pytest.raises(UserError, match="cannot reach"):
                await borrowed.gym_url("http://127.0.0.1:1/x")
        else:
            reached[network].add(urlsplit(await borrowed.gym_url("http://127.0.0.1:1/x")).hostname)
        with pytest.raises(UserError, match="only its owner can change the network"):
            await borrowed.change_network("open")
    # This machine has one address in each network, and not the same.
    assert [len(hosts) for hosts in reached.values()] == [1, 1]
    assert reached["open"] != reached["gym_only"]
    servers = (await sandbox.exec("cat /etc/resolv.conf")).stdout_text
    assert "nameserver" in servers
    assert "127.0.0.1\n" not in servers
    assert (await sandbox.exec("kill -0 $(cat service)")).exit_code == 0
    await sandbox.stop()
