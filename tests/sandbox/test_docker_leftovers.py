"""What crashes leave behind at the Docker daemon, and its removal."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gym.sandbox.interface import SandboxSpec
from gym.sandbox.owner import Owner
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
from gym.sandbox.providers.docker.leftovers import remove_container
from gym.sandbox.sweep import sweep_all
from tests.sandbox.conftest import IMAGE, docker
from tests.sandbox.docker_tools import ask, containers
from tests.sandbox.running import run_python

CRASH = """
import asyncio, os
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig

async def main():
    provider = DockerProvider(DockerProviderConfig(default_image={image!r}))
    sandbox = await provider.create(SandboxSpec(network={network!r}, ttl_seconds={ttl}))
    print(sandbox.id, flush=True)
    await sandbox.exec("setsid sleep 1000 & echo; sleep 1000", on_output=lambda *_: os.kill(os.getpid(), 9))

asyncio.run(main())
"""


def crashed(network: str = "none", ttl: float | None = None) -> str:
    """The sandbox of a process that was killed while a command ran."""
    done = run_python(CRASH.format(image=IMAGE, network=network, ttl=ttl))
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip()


async def test_the_next_start_removes_what_a_crash_left(containers: DockerProvider) -> None:
    left = crashed("gym_only")
    (container,) = look(left)
    (network,) = container["NetworkSettings"]["Networks"]
    assert container["State"] == "running"
    other = await DockerProvider(DockerProviderConfig(default_image=IMAGE)).create(SandboxSpec())
    assert look(left) == []
    assert network not in [item["Name"] for item in ask(lambda api: api.networks())]
    # What belongs to a process that lives is left alone.
    assert await containers.sweep() == 0
    assert await other.alive()
    await other.stop()


async def test_a_container_ends_by_itself(tmp_path: Path) -> None:
    docker(tmp_path)
    left = crashed(ttl=1)
    async with asyncio.timeout(60):
        while look(left):
            await asyncio.sleep(0.2)


async def test_sweep_all(containers: DockerProvider) -> None:
    mine = await containers.create(SandboxSpec())
    left = crashed()
    swept = {item.provider: item for item in await sweep_all()}
    assert swept["docker"].removed >= 1
    assert (swept["docker"].problem, swept["local"].problem) == ("", "")
    states = {one.id: one.left for one in swept["docker"].found}
    assert (states[left], states[mine.id]) == (True, False)
    assert look(left) == []


look = containers


@pytest.fixture
def planted() -> Iterator[dict[str, str]]:
    """Containers with all kinds of owners, by what they are."""
    now = Owner.current()
    ended = now.model_copy(update={"pid": 2**22 + 1})
    soon, past = str(int(time.time()) + 1000), str(int(time.time()) - 10)
    cases: dict[str, tuple[Owner | None, str, bool]] = {
        "of a live process": (now, soon, True),
        "in another container": (ended.model_copy(update={"pid_namespace": "x"}), soon, True),
        "running, of another machine": (ended.model_copy(update={"boot": "x"}), soon, True),
        "running, unreadable": (None, soon, True),
        "of an ended process": (ended, soon, True),
        "number used again": (now.model_copy(update={"start_time": "1"}), soon, True),
        "never started": (ended, soon, False),
        "being started by another container": (ended.model_copy(update={"pid_namespace": "x"}), soon, False),
        "renewed": (now, past, True),
    }

    def plant(api: Any) -> dict[str, str]:
        made = {}
        for name, (owner, expires, started) in cases.items():
            text = json.dumps({"other": 1}) if owner is None else owner.model_dump_json()
            labels = {"gym.sandbox": f"gym-test-{name}", "gym.owner": text, "gym.expires": expires}
            host = api.create_host_config(network_mode="none")
            made[name] = api.create_container(IMAGE, ["sleep", "600"], labels=labels, host_config=host)["Id"]
            if started:
                api.start(made[name])
        return made

    made = ask(plant)
    yield made
    for container in made.values():
        ask(partial(remove_container, reference=container))


async def test_sweep_takes_only_what_nobody_needs(containers: DockerProvider, planted: dict[str, str]) -> None:
    ended = {"of an ended process", "number used again", "never started"}
    expected = set(planted) - ended
    await containers.sweep()
    async with asyncio.timeout(20):
        # Other processes may sweep at the same time, and be about to remove one.
        while kept_of(planted) - expected:
            await asyncio.sleep(0.1)
    assert kept_of(planted) == expected


def kept_of(planted: dict[str, str]) -> set[str]:
    there = {item["Id"] for item in look()}
    return {name for name, container in planted.items() if container in there}
