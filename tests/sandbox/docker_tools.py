"""What tests with Docker share: the daemon behind a door that can be shut, and looks at what is there."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gym.errors import UserError
from gym.sandbox.providers.docker.daemon import Daemon

T = TypeVar("T")


def ask(work: Callable[[Any], T]) -> T:
    """Ask the daemon something with the SDK's client."""
    daemon = Daemon(None)
    try:
        return daemon.call_now(work)
    finally:
        daemon.close()


def containers(sandbox_id: str = "") -> list[dict[str, Any]]:
    """The containers of one sandbox, or of all."""
    label = f"gym.sandbox={sandbox_id}" if sandbox_id else "gym.sandbox"
    return list(ask(lambda api: api.containers(all=True, filters={"label": label})))


class Door:
    """A socket in front of the daemon's. `cut` breaks what is connected, `shut` lets nobody in any more."""

    def __init__(self, path: Path) -> None:
        self.host = f"unix://{path}"
        self._path = path
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._join, self._path)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def shut(self) -> None:
        assert self._server is not None
        self._server.close()
        self._path.unlink(missing_ok=True)
        self.cut()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outer, outer_writer = await asyncio.open_unix_connection(Daemon(None).host.removeprefix("unix://"))
        self._writers |= {writer, outer_writer}
        pumps = [_pump(reader, outer_writer), _pump(outer, writer)]
        await asyncio.gather(*pumps, return_exceptions=True)
        for one in (writer, outer_writer):
            one.transport.abort()
            self._writers.discard(one)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(65536):
        target.write(chunk)
        await target.drain()
    target.write_eof()


@asynccontextmanager
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    made = Door(tmp_path / "docker.sock")
    await made.open()
    yield made
    await made.shut()


class OwnDaemon:
    """A second Docker daemon, which a test may stop and start again.

    It runs in a network namespace of its own: a daemon without a bridge removes that of the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.host = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--data-root", "data", "--exec-root", "exec", "-p", "pid", "-H", self.host]
        quiet = ["--bridge=none", "--iptables=false", "--ip6tables=false"]
        words = [word if word.startswith(("-", "unix")) else str(self._folder / word) for word in options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["unshare", "--net", "dockerd", *words, *quiet], stdout=log, stderr=log)
        for _ in range(300):
            daemon = Daemon(self.host)
            try:
                daemon.version()
                return
            except UserError:
                time.sleep(0.1)
            finally:
                daemon.close()
        raise AssertionError((self._folder / "log").read_text()[-2000:])

    def load(self, image: str) -> None:
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            subprocess.run(
                ["docker", "-H", self.host, "load", "-q"], stdin=saved.stdout, check=True, capture_output=True
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None


@contextmanager
def own_daemon() -> Iterator[OwnDaemon]:
    # A short path: the names of sockets are bounded.
    with tempfile.TemporaryDirectory(prefix="gymd-", ignore_cleanup_errors=True) as folder:
        made = OwnDaemon(Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.stop()
