"""The processes of one `bwrap`: how it started and ended, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress

from gym.failures import EpisodeFailure
from gym.sandbox.providers.local.command import Verdict
from gym.sandbox.providers.local.processes import GONE_SECONDS


class Namespace:
    """The process namespace of one command: it dies with its first process, and everything in it."""

    def __init__(self) -> None:
        self._status_fd, status_child_fd = os.pipe()
        self._options_fd = os.memfd_create("options", 0)
        self.child_fds: tuple[int, ...] = (status_child_fd, self._options_fd)
        self._status = bytearray()
        self._known = asyncio.Event()
        self._process: Process | None = None
        self._init_pidfd: int | None = None
        self._exit_code: int | None = None
        os.set_blocking(self._status_fd, False)
        asyncio.get_running_loop().add_reader(self._status_fd, self._ready)

    def words(self, options: Sequence[str]) -> list[str]:
        """What to write on bwrap's command line so that it reads `options` and reports to this object."""
        with os.fdopen(os.dup(self._options_fd), "wb") as file:
            file.write(b"".join(os.fsencode(word) + b"\0" for word in options))
        os.lseek(self._options_fd, 0, os.SEEK_SET)
        status, options_fd = self.child_fds
        return ["--args", str(options_fd), "--json-status-fd", str(status)]

    def started(self, process: Process | None) -> None:
        """Remember the first process and close what it has inherited by now."""
        self._process = process
        for fd in self.child_fds:
            os.close(fd)
        self.child_fds = ()

    async def end(self) -> None:
        """Kill everything in the namespace and wait until it is gone."""
        try:
            # Killed before it reports its child, bwrap would leave one behind that waits for ever.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._known.wait(), GONE_SECONDS)
            if self._init_pidfd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
            if self._process is not None:
                with suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
            if self._init_pidfd is not None and not await _readable(self._init_pidfd, GONE_SECONDS):
                raise EpisodeFailure("sandbox_lost", "the processes of a command could not be ended")
        finally:
            self._ready()
            self._close()

    def verdict(self, returncode: int) -> Verdict | None:
        """Bubblewrap passes the exit code on; without its report the command never ran."""
        if self._exit_code is None:
            return None
        return Verdict(returncode, returncode - 128 if returncode - 128 in set(signal.Signals) else None)

    def _ready(self) -> None:
        """Read what bwrap reports: one JSON object a line, first `child-pid`, at the end `exit-code`."""
        if self._status_fd < 0:
            return
        with suppress(BlockingIOError):
            while chunk := os.read(self._status_fd, 65536):
                self._status += chunk
                self._parse()
            self._close_status()

    def _parse(self) -> None:
        *lines, rest = self._status.split(b"\n")
        self._status = rest
        for line in lines:
            report = json.loads(line)
            if "child-pid" in report:
                with suppress(ProcessLookupError):
                    self._init_pidfd = os.pidfd_open(report["child-pid"])
                self._known.set()
            self._exit_code = report.get("exit-code", self._exit_code)

    def _close_status(self) -> None:
        if self._status_fd >= 0:
            asyncio.get_running_loop().remove_reader(self._status_fd)
            os.close(self._status_fd)
            self._status_fd = -1
            self._known.set()

    def _close(self) -> None:
        self._close_status()
        if self._init_pidfd is not None:
            os.close(self._init_pidfd)
            self._init_pidfd = None


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _readable(fd: int, seconds: float) -> bool:
    """Wait until `fd` is readable: for a pidfd, until the process has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _set, ready)
    try:
        await asyncio.wait({ready}, timeout=seconds)
    finally:
        loop.remove_reader(fd)
    return ready.done()
