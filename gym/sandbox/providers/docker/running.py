"""One command in a container, from its start to its result."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import StreamName
from gym.sandbox.output import Capture
from gym.sandbox.providers.docker.daemon import DaemonError
from gym.sandbox.providers.docker.leftovers import remove_container
from gym.sandbox.providers.docker.order import Container, Order
from gym.sandbox.providers.docker.stream import Marked, receive, send
from gym.sandbox.waiting import uncancelled

START_SECONDS = 90.0
DRAIN_SECONDS = 5.0
KILLED_CODE = 128 + signal.SIGKILL
SIGNALS = {int(number) for number in signal.Signals}


class Running:
    """One exec from its start to its result.

    Args:
        end: Kills all its processes; returns whether the container was there to do so.
    """

    def __init__(self, container: Container, exec_id: str, order: Order, end: Callable[[], Awaitable[bool]]) -> None:
        self._daemon = container.daemon
        self._container = container
        self._exec_id = exec_id
        self._order = order
        self._end = end
        loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = loop.create_future()
        self._begun = asyncio.Event()
        self._captures: dict[StreamName, Capture] = {}
        self._streams: dict[StreamName, Marked] = {}
        self._token = secrets.token_hex(16).encode()
        for name in ("stdout", "stderr"):
            self._captures[name] = Capture(order.max_output_bytes)
            self._streams[name] = Marked(self._token, lambda chunk, name=name: self._take(name, chunk))  # type: ignore[misc]
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start it, and begin to read and write.

        Raises:
            DaemonError: refused, or no answer.
        """
        reader, self._writer = await self._daemon.start_exec(self._exec_id)
        reading = asyncio.ensure_future(receive(reader, self._deliver))
        content = b"" if self._order.stdin is None else self._order.stdin
        writing = asyncio.ensure_future(send(self._writer, self._token + b"\n", content))
        self._tasks = [reading, writing]
        reading.add_done_callback(lambda _: self._begun.set())

    async def ended(self) -> bool:
        """Wait for the end of the command; True when its time was up before."""
        reading, stopped = self._tasks[0], self._container.ended
        beginning = asyncio.ensure_future(self._begun.wait())
        try:
            for first, seconds in ((beginning, START_SECONDS), (reading, self._order.timeout_seconds)):
                signs: set[asyncio.Future[Any]] = {first, reading, stopped, self._failed}
                await asyncio.wait(signs, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if self._failed.done():
                    self._failed.result()
                if stopped.done() and not reading.done():
                    raise EpisodeFailure("sandbox_lost", f"{stopped.result()}, while a command ran in it")
                if not first.done():
                    break
        finally:
            beginning.cancel()
        if not self._begun.is_set():
            raise EpisodeFailure("sandbox_lost", f"a command did not begin within {START_SECONDS:g} s")
        return not reading.done()

    async def abandon(self) -> None:
        """Kill the command and wait for the end of its output."""
        goes_with_container = self._container.owned and self._container.ended.done()
        try:
            if self._order.killable and self._tasks and not goes_with_container:
                # Killed before it has begun, it would begin afterwards.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._begun.wait(), START_SECONDS)
                await self._kill()
                await asyncio.wait({self._tasks[0]}, timeout=DRAIN_SECONDS)
        finally:
            await self._close()

    async def _kill(self) -> bool:
        """Kill the command; where that is not possible (a fork bomb leaves no room for it), everything goes."""
        try:
            return await self._end()
        except EpisodeFailure as error:
            if not self._container.owned:
                raise
            with suppress(DaemonError):
                await self._daemon.call(lambda api: remove_container(api, self._container.reference))
            raise EpisodeFailure("sandbox_lost", f"{error.message}; so the sandbox was removed") from error

    async def result(self, *, timed_out: bool) -> dict[str, Any]:
        """What `ExecResult` says of it, but for the time that it took."""
        await self._close()
        out, err = self._captures["stdout"], self._captures["stderr"]
        if self._failed.done():
            self._failed.result()
        trailer = self._streams["stdout"].trailer or self._streams["stderr"].trailer
        if timed_out:
            code, oom = KILLED_CODE, False
        elif trailer is not None:
            words = trailer.split()
            code, oom = int(words[0]), words[-1] == b"oom"
        else:
            code, oom = await self._unmarked_code(), False
        return {
            "exit_code": code,
            "signal": code - 128 if code - 128 in SIGNALS else None,
            "timed_out": timed_out,
            "oom": oom,
            "stdout": out.value(),
            "stderr": err.value(),
            "stdout_truncated": out.left_out,
            "stderr_truncated": err.left_out,
        }

    async def _unmarked_code(self) -> int:
        """The output ended without our mark: the wrapper was killed, never began, or the connection is lost."""
        words = self._captures["stdout"].value().decode("utf-8", "replace").strip()[-300:]
        if not self._streams["stderr"].begun:
            if "argument list too long" in words:
                self._captures["stdout"] = Capture(0)
                self._captures["stderr"].feed(b"sh: argument list too long\n")
                return 126
            if re.search(r"unable to find (user|group)", words):
                raise UserError(f"the image has no user `{self._order.user}`: {words}")
        # The daemon needs a moment to notice what has ended.
        for pause in (0, 0.1, 0.3):
            await asyncio.sleep(pause)
            found = await self._daemon.call(lambda api: api.exec_inspect(self._exec_id))
            state = await self._daemon.call(lambda api: api.inspect_container(self._container.reference)["State"])
            if not state["Running"]:
                raise DaemonError(409, "its container has ended")
        begun, code = self._streams["stderr"].begun, found["ExitCode"]
        if self._order.killable and (begun or found["Running"]) and not await uncancelled(self._kill()):
            raise DaemonError(409, "its container has ended")
        if not begun and not found["Running"]:
            raise EpisodeFailure("sandbox_lost", f"the container could not start a command: {words}")
        # A wrapper that was not killed has written its mark, whether it arrived or not.
        if found["Running"] or code - 128 not in SIGNALS:
            raise EpisodeFailure("sandbox_lost", "the connection to the Docker daemon was lost while a command ran")
        return int(code)

    def _deliver(self, name: StreamName, chunk: bytes) -> bool:
        self._streams[name].feed(chunk)
        if self._streams["stderr"].begun:
            self._begun.set()
        return all(stream.trailer is not None for stream in self._streams.values())

    def _take(self, name: StreamName, chunk: bytes) -> None:
        self._captures[name].feed(chunk)
        if self._order.on_output is None or self._failed.done():
            return
        try:
            self._order.on_output(name, chunk)
        except Exception as error:  # raised again in the caller of `exec`
            self._failed.set_exception(error)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for stream in self._streams.values():
            stream.finish()
        if self._writer is not None:
            self._writer.transport.abort()
            with suppress(OSError):
                await self._writer.wait_closed()
        if self._failed.done():
            self._failed.exception()  # seen, also when another error is on its way
