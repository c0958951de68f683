"""The process that server processes come from: `python -P -m gym.launch.nursery DESCRIPTOR PYTHONPATH`.

It has loaded what all of them need, and forks: so a server starts, and starts again, in a moment, and what is loaded
is in memory once. It holds no secret and no part of a configuration: those come with the descriptors that it passes on.
One runs for each interpreter. It leaves with the run.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from gym.launch import child

HANDED = 5
"""Descriptors that come with an order, in this order: slice, lifeline, output, outlet, listener."""


def main() -> int:
    """Forks as it is told, and tells who came of it and how each ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when to stop
    os.environ["PYTHONPATH"] = sys.argv[2]  # what finds this package is not for the programs that servers start
    _load()
    channel = socket.socket(fileno=int(sys.argv[1]))
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not channel:
                    selector.unregister(key.fileobj)
                    _tell(channel, ended=key.data, code=_buried(key.data, key.fd))
                    continue
                text, handed, _, _ = socket.recv_fds(channel, 4096, HANDED)
                if not text:
                    return 0
                order = json.loads(text)
                pid = os.fork()
                if pid == 0:
                    return _become(order["name"], handed)
                for descriptor in handed:
                    os.close(descriptor)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                _tell(channel, number=order["number"], pid=pid)


def _load() -> None:
    """Loads what every server needs. No thread may run here: it would be missing after a fork."""
    import httpx_aiohttp  # noqa: F401
    import uvicorn  # noqa: F401
    from fastapi import FastAPI
    from pydantic import BaseModel

    import gym.servers.agent
    import gym.servers.environment
    import gym.servers.http
    import gym.servers.mcp
    import gym.servers.model
    import gym.servers.resources  # noqa: F401

    async def route(body: BaseModel) -> None:
        """The first route of all makes FastAPI load more."""

    FastAPI().add_api_route("/", route, methods=["POST"])
    gc.collect()
    gc.freeze()


def _tell(channel: socket.socket, **message: object) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except OSError:
        _leave(1)  # the run is gone


def _buried(pid: int, handle: int) -> int:
    """The exit code of a process that has ended, negative for a signal. What is left of its group is killed.

    It is a zombie until then, so its number still belongs to it.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(pid, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(name: str, handed: list[int]) -> int:
    """Makes the forked process a server; returns its exit code."""
    os.setsid()
    Path("/proc/self/comm").write_text(f"gym {name}")
    told, lifeline, output, outlet, listener = handed
    os.dup2(lifeline, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for found in Path("/proc/self/fd").iterdir():
        if int(found.name) > 2 and int(found.name) not in (told, outlet, listener):
            with contextlib.suppress(OSError):
                os.close(int(found.name))
    return child.run(told, outlet, listener)


def _leave(code: int) -> NoReturn:
    """Ends at once: taking all modules apart again would cost as much as starting."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
