"""Server processes as the run sees them: how they are started, what they say, and their end.

A process is told its slice of the configuration through memory that only the two of them have, says itself when it is
ready, and its end is seen at once. It leaves with the run, however that goes. The other sides are `gym.launch.nursery`
and `gym.launch.child`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gym.composition.roots import PACKAGE
from gym.errors import Problem, UserError
from gym.launch.in_process import HTTP_GRACE_SECONDS, STOP_SECONDS
from gym.launch.logs import LineReader, ServerLog
from gym.launch.slices import INSTALLED, Slice, common_environment

GRACE_SECONDS = STOP_SECONDS + HTTP_GRACE_SECONDS + 8.0
"""How long a process may take to leave after it is told to."""
NURSERY_SECONDS = 5.0
COMMAND = ("-P", "-m", "gym.launch.nursery")

log = logging.getLogger(__name__)


class Died(Exception):
    """A process ended before it was ready."""


class Nursery:
    """The process that forks the server processes of one interpreter; started with the first of them.

    Attributes:
        gone: It has ended, and everything that came of it.
    """

    def __init__(self, python: Path | None) -> None:
        """`python` is an interpreter of an environment that has this package; None for this process's own."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, output_in = os.pipe()
        self._log = ServerLog(None, str, "")
        self._unborn: dict[int, Child] = {}
        self._born: dict[int, Child] = {}
        self._ordered = 0
        self.gone = False
        try:
            self._process = subprocess.Popen(
                [str(python or sys.executable), *COMMAND, str(theirs.fileno()), os.environ.get("PYTHONPATH", "")],
                stdin=subprocess.DEVNULL,
                stdout=output_in,
                stderr=output_in,
                pass_fds=(theirs.fileno(),),
                env=_environment(own=python is None),
                start_new_session=True,
            )
        except OSError:
            self._channel.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(output_in)
        self._channel.setblocking(False)
        self._output = LineReader(output, self._log.write)
        asyncio.get_running_loop().add_reader(self._channel, self._hear)

    def order(self, child: Child, name: str, descriptors: Sequence[int]) -> None:
        """Asks for a process."""
        self._ordered += 1
        message = json.dumps({"number": self._ordered, "name": name}).encode()
        try:
            socket.send_fds(self._channel, [message], list(descriptors))
        except OSError as error:
            child.over(f"could not be asked for: {error}")
        else:
            self._unborn[self._ordered] = child

    async def stop(self) -> None:
        """Ends it; idempotent. Its processes must have ended."""
        self._lose()
        try:
            await asyncio.to_thread(self._process.wait, NURSERY_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    text = self._channel.recv(4096)
                except ConnectionResetError:
                    text = b""
                if not text:
                    return self._lose()
                message = json.loads(text)
                if "number" in message:
                    child = self._unborn.pop(message["number"])
                    self._born[message["pid"]] = child
                    child.born(message["pid"])
                else:
                    code = message["code"]
                    how = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
                    self._born.pop(message["ended"]).over(how)
        return None

    def _lose(self) -> None:
        """Without it the end of its processes would not be noticed: they end with it."""
        if self.gone:
            return
        self.gone = True
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        self._output.close()
        said = self._log.tail(3)
        for child in [*self._unborn.values(), *self._born.values()]:
            child.kill()
            child.over("ended with the process that it came from" + (f": {said}" if said else ""))


class Child:
    """One process from its start to its end; never used again.

    Attributes:
        pid: None until it is known.
        ready: Done when it serves; UserError for what it refuses, Died where it ended before.
        ended: How it ended.
    """

    def __init__(
        self,
        nursery: Nursery,
        told: Slice,
        listener: socket.socket,
        server_log: ServerLog,
        heard: Callable[[Child, str, float], None],
    ) -> None:
        """Starts it; `heard` is told of the sessions whose keys it has closed."""
        loop = asyncio.get_running_loop()
        self.pid: int | None = None
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._known = asyncio.Event()
        self._is_doomed = False
        self._heard = heard
        outlet, outlet_in = os.pipe()
        output, output_in = os.pipe()
        lifeline_out, self._lifeline = os.pipe()
        os.set_blocking(self._lifeline, False)
        self._readers = [LineReader(output, server_log.write), LineReader(outlet, self._hear)]
        theirs = [_in_memory(told), lifeline_out, output_in, outlet_in]
        nursery.order(self, told.name, [*theirs, listener.fileno()])
        for descriptor in theirs:
            os.close(descriptor)

    def born(self, pid: int) -> None:
        """It runs."""
        self.pid = pid
        self._known.set()
        if self._is_doomed:
            self.kill()

    def over(self, how: str) -> None:
        """It has ended, and all processes of its group."""
        for reader in self._readers:
            reader.close()
        os.close(self._lifeline)
        self._known.set()
        if not self.ready.done():
            self.ready.set_exception(Died(how))
        self.ended.set_result(how)

    def learn(self, session: str, expires_at: float) -> None:
        """Tells it that the keys of a session are closed."""
        try:
            os.write(self._lifeline, json.dumps({"revoked": [session, expires_at]}).encode() + b"\n")
        except OSError as error:  # it is gone, or too busy to hear; the keys expire
            log.debug("process %s was not told: %s", self.pid, error)

    async def stop(self) -> None:
        """Asks it to leave, and makes it after `GRACE_SECONDS`."""
        try:
            await asyncio.wait_for(self._known.wait(), GRACE_SECONDS)
        except TimeoutError:
            return self.kill()  # its nursery ends next, and it with that
        if self.ended.done():
            return None
        self._signal(os.kill, signal.SIGTERM)
        _, late = await asyncio.wait([self.ended], timeout=GRACE_SECONDS)
        if late:
            log.warning("process %s did not leave within %g s; it is killed", self.pid, GRACE_SECONDS)
            self.kill()
            await asyncio.wait([self.ended])
        return None

    def kill(self) -> None:
        """Ends it and all processes of its group at once, or as soon as it is there."""
        self._is_doomed = True
        self._signal(os.killpg, signal.SIGKILL)
        self._signal(os.kill, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        """Its number is its own until its end has been heard."""
        if self.pid is not None and not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, number)

    def _hear(self, line: bytes) -> None:
        message = json.loads(line)
        if "revoked" in message:
            session, expires_at = message["revoked"]
            self._heard(self, session, expires_at)
        elif not self.ready.done():
            if "problems" in message:
                problems = [Problem(**{**item, "order": tuple(item["order"])}) for item in message["problems"]]
                self.ready.set_exception(UserError(problems))
            elif "crash" in message:
                self.ready.set_exception(Died(f"broke: {message['crash']}"))
            else:
                self.ready.set_result(None)


def _in_memory(told: Slice) -> int:
    """A descriptor to read the slice from; there is no file of it."""
    descriptor = os.memfd_create("slice")
    with os.fdopen(os.dup(descriptor), "w") as file:
        json.dump(told.model_dump(), file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _environment(*, own: bool) -> dict[str, str]:
    """The environment of a nursery; one with the interpreter of this process also finds this package."""
    environment = common_environment()
    places = [environment.pop("PYTHONPATH", "")] if own else []
    if own and PACKAGE.parent.name not in INSTALLED:
        places.insert(0, str(PACKAGE.parent))
    found = os.pathsep.join(filter(None, places))
    return {**environment, "PYTHONUNBUFFERED": "1"} | ({"PYTHONPATH": found} if found else {})
