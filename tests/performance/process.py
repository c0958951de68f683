"""What processes of their own cost: start, memory, restart, episodes a second: `python -m tests.performance.process`.

The world of the contract suite, once in one process and once with each of its four servers in a process of its own.
Memory counts shared pages by their share (PSS).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path

from gym.launch.hosting import Apart, Hosted, Place, hosted
from gym.servers.contract import RunResponse
from tests.contract.world import ENVIRONMENT, instances, no_sandboxes
from tests.performance.episodes import request

NAMES = ("policy_model", "counter", "agent", "environment")


async def measure(apart: bool, number: int) -> None:
    """Prints the figures of one way of hosting."""
    here = [] if apart else instances()
    there = [Apart(instance, {}) for instance in instances()] if apart else []
    begun = time.perf_counter()
    async with hosted(here, there, sandboxes=no_sandboxes, place=Place(tell=lambda _event: None)) as running:
        ready = time.perf_counter() - begun
        await episodes(running, 1, 1)
        first = time.perf_counter() - begun
        print(f"{'processes' if apart else 'in process':<11} ready {ready:5.2f} s   first episode {first:5.2f} s")
        for concurrency in (1, 16, 64, 256):
            await episodes(running, concurrency * 4, concurrency)
            used = sum(map(cpu_seconds, family(running)))
            seconds = await episodes(running, number, concurrency)
            used = (sum(map(cpu_seconds, family(running))) - used) / number * 1000
            print(f"    concurrency {concurrency:>3}: {number / seconds:6.0f} episodes/s   {used:5.1f} CPU-ms each")
        pids = family(running)
        print(f"    {len(pids)} processes, {sum(map(pss_mib, pids)):.0f} MiB")
        if apart:
            print(f"    restart of a killed server: {await restart(running) * 1000:.0f} ms")
        begun = time.perf_counter()
    print(f"    stopped in {time.perf_counter() - begun:.2f} s")


async def episodes(running: Hosted, number: int, concurrency: int) -> float:
    """Seconds for so many episodes, each with its reward."""
    queue = iter(range(number))
    client = running.launched.client

    async def worker() -> None:
        for index in queue:
            outcome = (await client.post(ENVIRONMENT, "/run", request(index), RunResponse)).body
            assert outcome.result is not None, outcome.failure

    begun = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return time.perf_counter() - begun


async def restart(running: Hosted) -> float:
    """Seconds from the kill of a server to its first answer, best of three."""
    times = []
    for count in range(1, 4):
        pid = running.processes()["counter"][0].pid
        assert pid is not None
        begun = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        while running.processes()["counter"][0].restarts < count or running.processes()["counter"][0].pid is None:
            await asyncio.sleep(0.0005)
        await episodes(running, 1, 1)
        times.append(time.perf_counter() - begun)
    return min(times)


def family(running: Hosted) -> list[int]:
    """This process, the servers' processes, and the one that they come from."""
    pids = [one.pid for states in running.processes().values() for one in states if one.pid]
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    return [os.getpid(), *parents, *pids]


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mib(pid: int) -> float:
    """Memory of a process in MiB, shared pages by their share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def run() -> None:
    """Entry of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000, help="episodes a concurrency")
    given = parser.parse_args()
    for apart in (False, True):
        asyncio.run(measure(apart, given.episodes))


if __name__ == "__main__":
    run()
