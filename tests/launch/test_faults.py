"""Server processes that are killed in the middle of an episode: it fails by name, the run goes on, nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gym.failures import EpisodeFailure
from gym.launch.hosting import Apart, Hosted, Place, hosted
from gym.launch.slices import Part
from gym.sandbox.providers.local.provider import LocalProvider
from gym.servers.contract import RunRequest, RunResponse
from gym.servers.resources import ResourcesServerConfig
from tests.contract.remote import in_processes
from tests.contract.test_episode import run_request
from tests.contract.world import ENVIRONMENT, instances
from tests.launch.keeper import Keeper, box, opener
from tests.launch.parts import WAIT_SECONDS, assert_free, gone, is_alive, pid_of, up_again

PROMPT_SECONDS = 10
"""An episode whose server dies is told at once; this bound is only for what would be a hang."""


@asynccontextmanager
async def world() -> AsyncIterator[tuple[Hosted, dict[str, Any]]]:
    """The world in processes; afterwards no process of it and no port is left."""
    seen: set[int] = set()
    async with in_processes(instances(cleanup_timeout_seconds=20)) as (running, servers):
        seen |= {pid_of(running, name) for name in servers}
        yield running, servers
        seen |= {pid_of(running, name) for name in servers}
        urls = [running.url(name) for name in servers]
    for pid in seen:
        await gone(pid)
    for url in urls:
        assert_free(url)


async def run(running: Hosted, request: RunRequest) -> RunResponse:
    async with asyncio.timeout(PROMPT_SECONDS):
        return (await running.launched.client.post(ENVIRONMENT, "/run", request, RunResponse)).body


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.002)


async def kill(running: Hosted, name: str, number: int = signal.SIGKILL) -> None:
    pid = pid_of(running, name)
    os.kill(pid, number)
    await gone(pid)


async def assert_goes_on(running: Hosted, killed: str) -> None:
    await up_again(running, killed, 1)
    outcome = await run(running, run_request("r2"))
    assert outcome.result is not None
    assert outcome.result.reward == 1.0


STEPS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]] = {
    "seed": ({"fault": "seed hang"}, lambda servers: servers["counter"].log == ["seed"]),
    "activate": ({"tool": "hang"}, lambda servers: servers["policy_model"].rollouts),
    "tool": ({"fault": "tool hang"}, lambda servers: servers["policy_model"].rollouts),
    "verify": ({"fault": "verify hang"}, lambda servers: servers["counter"].log == ["seed", "verify"]),
}
"""What makes an episode wait in a step, and how to see that it is there."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    ("killed", "step", "stage"),
    [
        ("policy_model", "activate", "agent"),
        ("agent", "activate", "agent"),
        ("agent", "tool", "agent"),
        ("counter", "verify", "verification"),
    ],
)
async def test_a_server_that_is_killed_or_ended_fails_the_episode_at_once(
    killed: str, step: str, stage: str, number: int
) -> None:
    task, is_there = STEPS[step]
    async with world() as (running, servers):
        episode = asyncio.create_task(run(running, run_request("r1", **task)))
        await until(lambda: is_there(servers))
        await kill(running, killed, number)
        outcome = await episode
        assert outcome.failure is not None
        assert (outcome.failure.stage, outcome.failure.failure_kind) == (stage, "server_unreachable")
        assert not outcome.failure.terminal
        await assert_goes_on(running, killed)


async def test_an_agent_that_is_killed_while_it_opens_a_session_is_asked_again() -> None:
    async with world() as (running, servers):
        servers["agent"].gate.clear()
        episode = asyncio.create_task(run(running, run_request("r1")))
        await until(lambda: servers["agent"].log == ["open"])
        await kill(running, "agent")
        outcome = await episode
        assert outcome.result is not None
        assert outcome.result.reward == 1.0
        assert servers["counter"].sessions == {}
        await assert_goes_on(running, "agent")


@pytest.mark.parametrize(("step", "number"), [*((step, signal.SIGKILL) for step in STEPS), ("tool", signal.SIGTERM)])
async def test_an_environment_server_that_is_gone_is_told_to_its_caller(step: str, number: int) -> None:
    task, is_there = STEPS[step]
    async with world() as (running, servers):
        episode = asyncio.create_task(run(running, run_request("r1", **task)))
        await until(lambda: is_there(servers))
        await kill(running, "environment", number)
        with pytest.raises(EpisodeFailure) as caught:
            await episode
        assert caught.value.kind == "server_unreachable"
        await assert_goes_on(running, "environment")


async def test_a_session_that_a_killed_server_had_is_lost() -> None:
    async with world() as (running, servers):
        servers["agent"].gate.clear()
        episode = asyncio.create_task(run(running, run_request("r1")))
        await until(lambda: servers["agent"].log == ["open"])
        await kill(running, "counter")
        await up_again(running, "counter", 1)
        servers["agent"].gate.set()
        outcome = await episode
        assert outcome.failure is not None
        assert (outcome.failure.stage, outcome.failure.failure_kind) == ("agent", "session_lost")
        assert not outcome.failure.terminal
        await assert_goes_on(running, "counter")


async def test_a_tool_server_that_is_killed_fails_the_agents_turn() -> None:
    task, is_there = STEPS["tool"]
    async with world() as (running, servers):
        episode = asyncio.create_task(run(running, run_request("r1", **task)))
        await until(lambda: is_there(servers))
        await kill(running, "counter")
        outcome = await episode
        assert outcome.failure is not None
        # The call runs when the server dies, or comes to the one that was started in its place.
        assert outcome.failure.failure_kind in ("server_unreachable", "session_lost")
        assert (outcome.failure.stage, outcome.failure.terminal) == ("agent", False)
        await assert_goes_on(running, "counter")


async def test_a_server_that_nobody_asks_meanwhile_may_die_unnoticed() -> None:
    async with world() as (running, servers):
        servers["agent"].gate.clear()
        episode = asyncio.create_task(run(running, run_request("r1")))
        await until(lambda: servers["agent"].log == ["open"])
        await kill(running, "policy_model")
        servers["agent"].gate.set()
        assert (await episode).result is not None
        await assert_goes_on(running, "policy_model")


@pytest.mark.parametrize("step", ["tool", "verify"])
async def test_the_sandboxes_of_a_killed_server_go_with_it(step: str, tmp_path: Path) -> None:
    model, counter, agent, environment = instances(cleanup_timeout_seconds=20)
    keeper = Apart(
        type(counter)(counter.name, counter.type, Keeper, ResourcesServerConfig()),
        {"box": Part.of(LocalProvider, box(tmp_path), "box")},
    )
    providers = opener(tmp_path)

    def boxes() -> list[Path]:
        return list(tmp_path.glob("*gym-*/sandbox.json"))

    place = Place(tell=lambda _event: None)
    async with hosted([model, agent, environment], [keeper], sandboxes=providers.__getitem__, place=place) as running:
        episode = asyncio.create_task(run(running, run_request("r1", fault=f"{step} hang")))
        await until(boxes)
        await until(lambda: running.launched.directory.local["policy_model"].rollouts)  # type: ignore[attr-defined]
        await kill(running, "counter")
        outcome = await episode
        assert outcome.failure is not None
        assert outcome.failure.failure_kind == "server_unreachable"
        await until(lambda: not boxes())
        assert await sandbox_processes(tmp_path) == []
        outcome = await run(running, run_request("r2"))
        assert outcome.result is not None
    assert boxes() == []


async def sandbox_processes(root: Path) -> list[str]:
    """Command lines of what runs in sandboxes below a folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            shown = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if str(root).encode() in shown:
            found.append(shown.decode(errors="replace"))
    return found


PROGRAM = """
import asyncio, json, sys
from tests.contract.remote import in_processes
from tests.contract.world import instances
from tests.launch.parts import pid_of

async def main():
    async with in_processes(instances()) as (running, servers):
        pids = {name: pid_of(running, name) for name in servers}
        print(json.dumps([pids, {name: running.url(name) for name in servers}]), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def started(program: str) -> tuple[subprocess.Popen[str], dict[str, int], dict[str, str]]:
    """A run in a process of its own, with the processes and addresses of its servers."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    pids, urls = json.loads(process.stdout.readline())
    return process, pids, urls


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_run_that_is_killed(number: int) -> None:
    process, pids, urls = started(PROGRAM)
    family = {*pids.values(), *(parent_of(pid) for pid in pids.values())}
    assert process.pid not in family  # servers come from a process between
    handles = [os.pidfd_open(pid) for pid in family]
    process.send_signal(number)
    process.communicate(timeout=WAIT_SECONDS)
    for handle in handles:
        ended, _, _ = select.select([handle], [], [], WAIT_SECONDS)
        os.close(handle)
        assert ended
    for url in urls.values():
        assert_free(url)


def parent_of(pid: int) -> int:
    """The process that a process came from."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


BUSY = """
import asyncio, os, sys, time
from gym.launch import child

async def main():
    child.ORPHAN_SECONDS = 0.1
    child.Lifeline(lambda: None).start()
    print("busy", flush=True)
    while True:
        pass

asyncio.run(main())
"""


def test_a_server_that_is_busy_for_ever_ends_too() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"busy\n"
    process.stdin.close()
    assert process.wait(WAIT_SECONDS) == -signal.SIGKILL
    process.stdout.close()
    assert not is_alive(process.pid)
