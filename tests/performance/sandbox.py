"""What sandboxes cost: `python -m tests.performance.sandbox [--rounds N] [--in-a-row N]`.

A life is create, one command, stop. Those of the docker provider are measured against the bare calls of the Docker API
in the same run, in turns, so that what else the machine does falls on both. Needs a daemon and the image `gym-base`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import http.client
import itertools
import json
import os
import resource
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gym.sandbox.interface import SandboxProvider, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
from gym.sandbox.providers.docker.daemon import Daemon
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

IMAGE = "gym-base"
LARGE_BYTES = 200_000_000
LIVES = {1: 6, 8: 24, 32: 48}
Life = Callable[[], Awaitable[None]]


class _UnixConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(Daemon(None).host.removeprefix("unix://"))


def _call(method: str, path: str, body: object = None) -> Any:
    connection = _UnixConnection("docker", timeout=300)
    content = b"" if body is None else json.dumps(body).encode()
    connection.request(method, f"/v1.41{path}", content, {"Content-Type": "application/json"})
    answer = connection.getresponse().read()
    connection.close()
    return json.loads(answer) if answer.startswith(b"{") else answer


def bare_life() -> None:
    """The calls that nobody can do without, one after the other."""
    host = {"NetworkMode": "none", "AutoRemove": True, "PidsLimit": 4096}
    made = _call("POST", "/containers/create", {"Image": IMAGE, "Cmd": ["sleep", "600"], "HostConfig": host})["Id"]
    _call("POST", f"/containers/{made}/start")
    streams = {"AttachStdout": True, "AttachStderr": True}
    command = _call("POST", f"/containers/{made}/exec", {**streams, "Cmd": ["/bin/sh", "-c", "echo life"]})["Id"]
    assert b"life" in _call("POST", f"/exec/{command}/start", {"Detach": False, "Tty": False})
    assert _call("GET", f"/exec/{command}/json")["ExitCode"] == 0
    _call("DELETE", f"/containers/{made}?force=true&v=true")


def life_of(provider: SandboxProvider) -> Life:
    """The same through a provider."""

    async def life() -> None:
        sandbox = await provider.create(SandboxSpec())
        assert (await sandbox.exec("echo life")).stdout == b"life\n"
        await sandbox.stop()

    return life


async def seconds(life: Life, count: int, concurrency: int) -> float:
    """Wall time of a life, at so many at once."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await life()

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return (time.perf_counter() - started) / count


async def compare(provider: SandboxProvider, rounds: int) -> None:
    """Lives of the docker provider against bare calls."""
    ours = life_of(provider)
    for concurrency, count in LIVES.items():
        with ThreadPoolExecutor(concurrency) as pool:

            async def bare(pool: ThreadPoolExecutor = pool) -> None:
                await asyncio.get_running_loop().run_in_executor(pool, bare_life)

            await asyncio.gather(bare(), ours())
            pairs = [
                (await seconds(bare, count, concurrency), await seconds(ours, count, concurrency))
                for _ in range(rounds)
            ]
        raw, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(second / first for first, second in pairs)
        print(
            f"docker, concurrency {concurrency:>2}: {mine * 1000:6.0f} ms a life ({1 / mine:4.1f}/s), "
            f"bare API {raw * 1000:6.0f} ms, {ratio:.2f} x",
            flush=True,
        )


async def transfer(name: str, provider: SandboxProvider) -> None:
    """One large file in and out, and the memory that this took."""
    with tempfile.TemporaryDirectory() as folder:
        source, back = Path(folder, "large"), Path(folder, "back")
        with source.open("wb") as file:
            for _ in range(LARGE_BYTES // 1_000_000):
                file.write(os.urandom(1_000_000))
        sandbox = await provider.create(SandboxSpec())
        before = _peak_mib()
        times = [time.perf_counter()]
        await sandbox.upload(source, "large")
        times.append(time.perf_counter())
        await sandbox.download("large", back)
        times.append(time.perf_counter())
        grown = _peak_mib() - before
        assert _digest(source) == _digest(back)
        await sandbox.stop()
    up, down = (after - earlier for earlier, after in itertools.pairwise(times))
    print(
        f"{name}: {LARGE_BYTES // 1_000_000} MB in {up:.1f} s, out {down:.1f} s, "
        f"peak memory of this process grew by {grown:.0f} MiB",
        flush=True,
    )


async def in_a_row(name: str, provider: SandboxProvider, count: int) -> None:
    """Many sandboxes, one after the other, and what is left of them."""
    life = life_of(provider)
    await life()
    before = _held()
    took = await seconds(life, count, 1)
    after = _held()
    grown = ", ".join(f"{key} {after[key] - before[key]:+d}" for key in before)
    print(f"{name}: {count} sandboxes in a row, {took * 1000:.0f} ms each; {grown}", flush=True)


def _held() -> dict[str, int]:
    """Open files, threads, tasks and memory of this process, and containers and networks of the daemon."""
    daemon = Daemon(None)
    containers = daemon.call_now(lambda api: api.containers(all=True, filters={"label": "gym.sandbox"}))
    mine = [item for item in containers if f'"pid":{os.getpid()},' in item["Labels"]["gym.owner"]]
    networks = [item for item in daemon.call_now(lambda api: api.networks()) if item["Name"].startswith("gym")]
    daemon.close()
    return {
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "memory MiB": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 2**20,
        "containers": len(mine),
        "networks": len(networks),
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def main() -> None:
    """Measures and prints all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each comparison")
    parser.add_argument("--in-a-row", type=int, default=200, help="sandboxes in a row")
    arguments = parser.parse_args()
    docker = DockerProvider(DockerProviderConfig(default_image=IMAGE, pull="never"))
    with tempfile.TemporaryDirectory() as root:
        local = LocalProvider(LocalProviderConfig(root=Path(root)))
        print(f"{docker.describe()}; {local.describe()}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        await transfer("docker", docker)
        await transfer("local", local)
        await compare(docker, arguments.rounds)
        await in_a_row("docker", docker, arguments.in_a_row)
        await in_a_row("local", local, arguments.in_a_row)
        await docker.aclose()
        await local.aclose()


if __name__ == "__main__":
    asyncio.run(main())
