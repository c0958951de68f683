"""A server process, from its fork on.

It reads its slice of the configuration first, and from standard input what it must know later. When that ends, the
run is gone, however it went: then this process ends too. What it has to say goes out as lines of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gym.composition.redact import Redactor, Secret
from gym.composition.roots import make_importable
from gym.errors import EXIT_OK, EXIT_SOME_FAILED, EXIT_WRONG_INPUT, UserError
from gym.launch.closing import close_all
from gym.launch.in_process import Instance, calm_collector, launch
from gym.launch.slices import Part, Slice
from gym.sandbox.interface import Common, SandboxProvider
from gym.servers.base import one_line

ORPHAN_SECONDS = 45.0
"""How long a server may take to free what it holds when its parent is gone."""

Learn = Callable[[str, float], None]
log = logging.getLogger(__name__)


class Outlet:
    """The pipe to the process of the run."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def say(self, **message: Any) -> None:
        """Sends one message. Where nobody hears it, this process ends soon."""
        try:
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")
        except OSError as error:
            log.warning("nobody hears this process: %s", error)

    def revoked(self, session: str, expires_at: float) -> None:
        """The keys of a session were closed here."""
        self.say(revoked=[session, expires_at])


class Lifeline(threading.Thread):
    """Waits for what the run says, and for its end; a thread, so that a busy event loop hinders nothing."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._loop = asyncio.get_running_loop()
        self._stop = stop
        self._early: list[tuple[str, float]] = []
        self._learn: Learn = lambda session, expires_at: self._early.append((session, expires_at))

    def connect(self, learn: Learn) -> None:
        """Who is told from now on of the sessions that were closed elsewhere, and now of those before."""
        self._learn = learn
        for session, expires_at in self._early:
            learn(session, expires_at)

    def run(self) -> None:
        """Reads until the run is gone, and makes sure that this process does not outlive it for long."""
        for line in _lines(sys.stdin.fileno()):
            self._call(self._heard, *json.loads(line)["revoked"])
        self._call(self._stop)
        threading.Event().wait(ORPHAN_SECONDS)
        os.killpg(os.getpid(), signal.SIGKILL)

    def _heard(self, session: str, expires_at: float) -> None:
        self._learn(session, expires_at)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends already
            self._loop.call_soon_threadsafe(function, *arguments)


def _lines(descriptor: int) -> Iterator[bytes]:
    """Without a buffered file, whose lock a thread that still reads would hold when Python ends."""
    rest = b""
    while data := os.read(descriptor, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


class Providers:
    """The sandbox providers that the slice holds, made when they are asked for."""

    def __init__(self, parts: dict[str, Part], common: Common) -> None:
        self._parts = parts
        self._common = common
        self._open: dict[str, SandboxProvider] = {}

    def __call__(self, name: str) -> SandboxProvider:
        """The provider of a block; KeyError for a block that is not this server's."""
        if name not in self._open:
            provider_class, config = self._parts[name].load()
            self._open[name] = provider_class(config)
            self._open[name].common = self._common
        return self._open[name]

    async def aclose(self) -> None:
        """Stops what they created."""
        for left in await close_all(self._open):
            log.warning("%s", left.text)


async def serve(told: Slice, outlet: Outlet, listener: socket.socket) -> None:
    """Serves until it is told to leave, or the run is gone.

    Raises:
        UserError: The server refuses its settings.
    """
    lifeline = Lifeline(_stopping())
    lifeline.start()
    server_class, config = told.server.load()
    providers = Providers(told.sandboxes, told.common.load())
    try:
        async with launch(
            [Instance(told.name, told.type, server_class, config)],
            sandboxes=providers,
            advertise_host=told.host,
            token=told.token,
            listener=listener,
            remote=told.urls,
            records=Path(told.records) if told.records else None,
            redact=Redactor(map(Secret, told.secrets)).text,
        ) as launched:
            for session, expires_at in told.revoked.items():
                launched.keys.learn(session, expires_at)
            launched.keys.issuer = told.issuer
            launched.keys.tell = outlet.revoked
            lifeline.connect(launched.keys.learn)
            await _answers(listener, told.name)
            calm_collector()
            outlet.say(ready=True)
            await asyncio.Event().wait()
    finally:
        await providers.aclose()


def _stopping() -> Callable[[], None]:
    """Cancels the current task once: when it is called, and on SIGTERM. The servers' own cleanups are shielded."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    told: list[bool] = []

    def stop() -> None:
        if not told:
            told.append(True)
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    return stop


async def _answers(listener: socket.socket, name: str) -> None:
    """Asks the server whether it lives, as a client would; so the first request does not wait for what is loaded late.

    Raises:
        RuntimeError: It does not say so.
    """
    host, port = listener.getsockname()[:2]
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /{name}/livez HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n".encode())
    said = await reader.read()
    writer.close()
    if b" 200 " not in said.partition(b"\r\n")[0]:
        raise RuntimeError("the server does not answer")


def run(slice_descriptor: int, outlet_descriptor: int, listener_descriptor: int) -> int:
    """Runs one server process in the descriptors that it was given; returns its exit code."""
    with os.fdopen(slice_descriptor, "rb") as file:
        told = Slice.model_validate(json.load(file))
    outlet, listener = Outlet(outlet_descriptor), socket.socket(fileno=listener_descriptor)
    _settle(told)
    try:
        asyncio.run(serve(told, outlet, listener))
    except asyncio.CancelledError:
        return EXIT_OK
    except UserError as error:
        outlet.say(problems=[{**asdict(problem), "data": {}} for problem in error.problems])
        return EXIT_WRONG_INPUT
    except Exception as error:
        traceback.print_exc()
        outlet.say(crash=one_line(error))
    return EXIT_SOME_FAILED


def _settle(told: Slice) -> None:
    """Makes the process like the one that the run is in: modules, environment, log."""
    os.environ.update(told.environment)
    make_importable()
    sys.path += [place for place in told.path if place not in sys.path]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("gym").setLevel(logging.INFO)
