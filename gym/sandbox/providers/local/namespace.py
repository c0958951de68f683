"""The processes of one `bwrap`: how it started and ended, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gym.failures import EpisodeFailure
from gym.sandbox.processes import GONE_SECONDS
from gym.sandbox.providers.local import netns
from gym.sandbox.providers.local.command import Verdict
from gym.sandbox.relay import Relay
from gym.sandbox.waiting import uncancelled


class Namespace:
    """The process namespace of one command: it dies with its first process, and everything in it.

    Args:
        reach: Loopback ports inside that lead to servers of this machine, with host and port of each.
    """

    def __init__(self, reach: Mapping[int, tuple[str, int]] | None = None) -> None:
        self._reach = dict(reach or {})
        self._relays: list[Relay] = []
        self._status_fd, status_child_fd = os.pipe()
        self._options_fd = os.memfd_create("options", 0)
        self.child_fds: tuple[int, ...] = (status_child_fd, self._options_fd)
        self._hold_fd = -1
        if self._reach:
            held_fd, self._hold_fd = os.pipe()
            self.child_fds += (held_fd,)
        self._status = bytearray()
        self._known = asyncio.Event()
        self._process: Process | None = None
        self._init_pid = 0
        self._init_pidfd: int | None = None
        self._exit_code: int | None = None
        os.set_blocking(self._status_fd, False)
        asyncio.get_running_loop().add_reader(self._status_fd, self._ready)

    def words(self, options: Sequence[str]) -> list[str]:
        """What to write on bwrap's command line so that it reads `options` and reports to this object."""
        with os.fdopen(os.dup(self._options_fd), "wb") as file:
            file.write(b"".join(os.fsencode(word) + b"\0" for word in options))
        os.lseek(self._options_fd, 0, os.SEEK_SET)
        status, options_fd, *held = self.child_fds
        # Held back, bwrap has everything ready and waits to start the command.
        hold = ["--block-fd", str(held[0])] if held else []
        return ["--args", str(options_fd), "--json-status-fd", str(status), *hold]

    def started(self, process: Process | None) -> None:
        """Remember the first process and close what it has inherited by now."""
        self._process = process
        for fd in self.child_fds:
            os.close(fd)
        self.child_fds = ()

    async def entered(self) -> None:
        """Let the command reach its servers, and only then begin."""
        if not self._reach:
            return
        await self._known.wait()
        if self._init_pidfd is None:
            return
        try:
            await uncancelled(self._relay())
        except OSError as error:
            raise EpisodeFailure("sandbox_lost", f"could not join a sandbox's network: {error}") from error
        os.write(self._hold_fd, b".")

    async def _relay(self) -> None:
        """Makes the relays, for `end` to close: a caller that is cancelled meanwhile must not lose the sockets."""
        sockets = await asyncio.to_thread(netns.listen, self._init_pid, list(self._reach))
        self._relays = [Relay(one, target) for one, target in zip(sockets, self._reach.values(), strict=True)]

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
            for relay in self._relays:
                await relay.aclose()

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
                self._init_pid = report["child-pid"]
                with suppress(ProcessLookupError):
                    self._init_pidfd = os.pidfd_open(self._init_pid)
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
        if self._hold_fd >= 0:
            os.close(self._hold_fd)
            self._hold_fd = -1
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
