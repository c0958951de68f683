"""What happens to commands and launches when connection, container or daemon are lost."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from gym.failures import EpisodeFailure
from gym.sandbox.interface import ExecResult, Sandbox, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
from gym.sandbox.providers.docker.leftovers import remove_container
from gym.sandbox.supervisor import launch
from gym.testing.sandbox_conformance.commands import HOLD, free
from tests.conftest import needs
from tests.sandbox.conftest import IMAGE, docker
from tests.sandbox.docker_tools import Door, ask, containers, door, own_daemon


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Door]:
    docker(tmp_path)
    async with door(tmp_path) as opened:
        yield opened


@pytest.fixture
async def sandbox(way: Door) -> AsyncIterator[Sandbox]:
    """A sandbox whose daemon is behind a door."""
    provider = DockerProvider(DockerProviderConfig(default_image=IMAGE, host=way.host))
    made = await provider.create(SandboxSpec())
    yield made
    await asyncio.gather(provider.aclose(), return_exceptions=True)
    for item in containers(made.id):
        ask(partial(remove_container, reference=item["Id"]))


async def running(sandbox: Sandbox) -> asyncio.Task[ExecResult]:
    """A command that has begun, holds the lock and does not end."""
    locked = asyncio.Event()
    command = asyncio.create_task(sandbox.exec(HOLD, on_output=lambda *_: locked.set()))
    await asyncio.wait_for(locked.wait(), 30)
    return command


async def test_a_lost_connection_is_no_result_and_leaves_no_process(way: Door, sandbox: Sandbox) -> None:
    command = await running(sandbox)
    way.cut()
    with pytest.raises(EpisodeFailure, match="connection to the Docker daemon was lost") as caught:
        await command
    assert caught.value.kind == "sandbox_lost"
    assert await free(sandbox)


async def test_a_launch_outlives_its_connection(way: Door, sandbox: Sandbox) -> None:
    chunks: list[bytes] = []
    began = asyncio.Event()

    def take(chunk: bytes) -> None:
        chunks.append(chunk)
        began.set()

    command = "for n in 1 2 3 4 5 6; do echo $n; sleep 0.3; done; exit 7"
    started = await launch(sandbox, ["sh", "-c", command], on_stdout=take, deadline_seconds=60)
    await began.wait()
    way.cut()
    receipt = await started.wait()
    assert (receipt.return_code, receipt.cleanup_confirmed) == (7, True)
    assert b"".join(chunks) == b"1\n2\n3\n4\n5\n6\n"


async def test_a_daemon_that_is_gone_ends_everything_at_once(way: Door, sandbox: Sandbox) -> None:
    command = await running(sandbox)
    started = await launch(sandbox, ["sleep", "1000"], deadline_seconds=1000)
    await way.shut()
    for use in (command, started.wait(), sandbox.exec("true"), sandbox.upload(b"x", "x"), sandbox.read_file("x", 1)):
        with pytest.raises(EpisodeFailure, match="does not answer") as caught:
            await use
        assert caught.value.kind == "sandbox_lost"
    assert not await sandbox.alive()
    with pytest.raises(EpisodeFailure, match="does not answer") as caught:
        await sandbox.stop()
    assert caught.value.kind == "cleanup_failed"


async def test_a_container_that_ends_is_noticed_at_once(sandbox: Sandbox) -> None:
    command = await running(sandbox)
    started = await launch(sandbox, ["sleep", "1000"], deadline_seconds=1000)
    container = containers(sandbox.id)[0]["Id"]
    ask(lambda api: api.kill(container))
    for use in (command, started.wait(), sandbox.exec("true")):
        with pytest.raises(EpisodeFailure, match="is gone: its container has ended") as caught:
            await use
        assert caught.value.kind == "sandbox_lost"
    assert not await sandbox.alive()
    await sandbox.stop()


async def test_a_container_removed_by_somebody_else_is_lost_and_can_be_stopped(sandbox: Sandbox) -> None:
    container = containers(sandbox.id)[0]["Id"]
    ask(lambda api: remove_container(api, container))
    with pytest.raises(EpisodeFailure, match="its container has ended"):
        await sandbox.download("x", Path("/nowhere"))
    await asyncio.gather(sandbox.stop(), sandbox.stop())


@pytest.mark.skipif(os.geteuid() != 0, reason="a daemon needs root")
async def test_a_restart_of_the_daemon(tmp_path: Path) -> None:
    docker(tmp_path)
    needs("dockerd", present=shutil.which("dockerd") is not None, reason="install Docker's daemon")
    with own_daemon() as daemon:
        daemon.load(IMAGE)
        provider = DockerProvider(DockerProviderConfig(default_image=IMAGE, host=daemon.host))
        sandbox = await provider.create(SandboxSpec())
        command = await running(sandbox)
        await asyncio.to_thread(daemon.stop)
        with pytest.raises(EpisodeFailure) as caught:
            await command
        assert caught.value.kind == "sandbox_lost"
        await asyncio.to_thread(daemon.start)
        assert not await sandbox.alive()
        await sandbox.stop()
        again = await provider.create(SandboxSpec())
        assert (await again.exec("echo again")).stdout == b"again\n"
        await provider.aclose()
        assert await DockerProvider(DockerProviderConfig(host=daemon.host)).sweep() == 0
