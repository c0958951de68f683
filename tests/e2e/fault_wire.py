"""A proxy before each server of a run, which does one fault to the first request of one step of a task's episode.

Servers bind 127.0.0.1 and are known as 127.0.0.2 (`bind_host`, `default_host`), where the proxies listen at the same
ports. What is not to go wrong passes as it is; whoever goes away is gone for the other side too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.launch.parts import gone, is_alive
from tests.tools.fault_table import STEPS, Cell, Fault, Step

BIND, KNOWN_AS = "127.0.0.1", "127.0.0.2"
ROLLOUT = re.compile(rb"\r\nx-ng-rollout-id: *(\S+)", re.IGNORECASE)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)
INSIDE: dict[Step, Step] = {"run": "model", "activate": "model"}
"""Steps whose server waits for others meanwhile: it is killed when it has come to this one."""
END_OF_RUN: tuple[Fault, ...] = ("interrupted", "run_killed")
FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 9\r\nconnection: close\r\n\r\nnot today"
MALFORMED = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\nconnection: close\r\n\r\n{"half": '
)


@dataclass(frozen=True)
class Request:
    """One request to a server.

    Attributes:
        rollout: The rollout, and `-aN` for a later try of it.
    """

    server: str
    step: Step | None
    rollout: str
    raw: bytes

    @property
    def task(self) -> str:
        """The task's id."""
        return self.rollout.split(".")[1] if self.rollout else ""


class Wire:
    """The proxies of one run.

    Attributes:
        ports: Of each server, and of the proxy before it.
        asked: How often a step was asked for in a try of a rollout: by step and rollout.
        all_held: Every task whose fault is done to the run waits in its step.
        left: Tries that began while a sandbox of an earlier one was there, by the rollout of the try.
    """

    def __init__(
        self, cells: Mapping[str, Cell], servers: list[str], marker: str, sandboxes: Callable[[], list[str]]
    ) -> None:
        """What goes wrong, and where.

        Args:
            cells: By task.
            servers: The instances.
            marker: A text in the environment of all processes of the run.
            sandboxes: The rollouts that have a sandbox now.
        """
        self._due = dict(cells)
        self._marker = marker.encode()
        self._sandboxes = sandboxes
        self._listeners = {name: _listener() for name in servers}
        self.ports = {name: listener.getsockname()[1] for name, listener in self._listeners.items()}
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_hold = sum(cell.fault in END_OF_RUN for cell in cells.values())
        self.asked: Counter[tuple[Step, str]] = Counter()
        self.all_held = asyncio.Event()
        self.left: set[str] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Wire]:
        """Serves until the end of the block."""
        servers = [
            await asyncio.start_server(partial(self._accept, name), sock=listener)
            for name, listener in self._listeners.items()
        ]
        try:
            yield self
        finally:
            for server in servers:
                server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(self._serve(name, reader, writer))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of a connection; the next one comes on a new connection."""
        try:
            request = await _read(name, reader)
            if request is not None:
                caller = asyncio.ensure_future(_left(reader))
                try:
                    answer = await self._answer(request, caller)
                finally:
                    caller.cancel()
                if answer:
                    writer.write(answer)
                    await writer.drain()
                else:
                    _reset(writer)
        except OSError:
            _reset(writer)
        finally:
            writer.close()

    async def _answer(self, request: Request, caller: asyncio.Future[None]) -> bytes:
        """What the caller gets; nothing for a connection that is reset."""
        if request.step is not None:
            self.asked[request.step, request.rollout] += 1
        if request.step == "seed_resources":
            self._look(request.rollout)
        cell = self._due.get(request.task)
        if cell is not None and cell.fault == "killed" and request.step == INSIDE.get(cell.step):
            del self._due[request.task]
            await self._kill(STEPS[cell.step].server)
            return await self._passed(request, caller)
        if cell is None or request.step != cell.step or (cell.fault == "killed" and cell.step in INSIDE):
            return await self._passed(request, caller)
        del self._due[request.task]
        return await self._faulty(cell.fault, request, caller)

    async def _faulty(self, fault: Fault, request: Request, caller: asyncio.Future[None]) -> bytes:
        if fault == "dropped_before":
            return b""
        if fault == "late":
            await caller
            self._begin(self._deliver(request))
            return b""
        await self._ask(request)
        match fault:
            case "killed":
                await self._kill(request.server)
            case "error":
                return FAILED
            case "malformed":
                return MALFORMED
            case "interrupted" | "run_killed":
                self._to_hold -= 1
                if not self._to_hold:
                    self.all_held.set()
                await caller
        return b""

    async def _passed(self, request: Request, caller: asyncio.Future[None]) -> bytes:
        asking = asyncio.ensure_future(self._ask(request))
        either: set[asyncio.Future[Any]] = {asking, caller}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking})
            return b""
        return asking.result()

    async def _ask(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_connection(BIND, self.ports[request.server])
        try:
            writer.write(request.raw)
            return await reader.read()
        finally:
            writer.close()

    async def _deliver(self, request: Request) -> None:
        with contextlib.suppress(OSError):  # the run may have ended by now
            await self._ask(request)

    def _look(self, rollout: str) -> None:
        """Notes what an earlier try has left."""
        first = rollout.partition("-a")[0]
        if any(owner.partition("-a")[0] == first for owner in self._sandboxes() if owner != rollout):
            self.left.add(rollout)

    async def _kill(self, server: str) -> None:
        (pid,) = server_processes(self._marker, server)
        os.kill(pid, signal.SIGKILL)
        await gone(pid)


def _listener() -> socket.socket:
    """A socket of a proxy, at a port that its server can have too; no connection gets one of these by itself."""
    for port in random.sample(range(10_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server((BIND, port)):
            return socket.create_server((KNOWN_AS, port))
    raise AssertionError("no port is free")


async def _read(name: str, reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length = LENGTH.search(head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    path = head.split(b" ", 2)[1].decode()
    steps = [key for key, step in STEPS.items() if step.server == name and re.search(step.path, path)]
    named = ROLLOUT.search(head)
    rollout = named[1].decode() if named else _rollout_in(body)
    head = CONNECTION.sub(b"", head).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    return Request(name, steps[0] if steps else None, rollout, head + body)


def _rollout_in(body: bytes) -> str:
    episode = json.loads(body or b"{}").get("episode_id", {})
    later = f"-a{episode['attempt']}" if episode.get("attempt") else ""
    return f"{episode['rollout_id']}{later}" if episode else ""


async def _left(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read(1)


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def processes_of(marker: bytes) -> list[int]:
    """The processes that have a text in their environment or command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return [pid for pid in found if is_alive(pid)]


def server_processes(marker: bytes, server: str) -> list[int]:
    """Those of them that are a server."""
    return [pid for pid in processes_of(marker) if _name(pid) == f"gym {server}"[:15]]


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
