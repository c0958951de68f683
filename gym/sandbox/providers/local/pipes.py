"""The pipes of one command on the host, watched by the event loop: input, and bounded output."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass

from gym.sandbox.interface import DEFAULT_OUTPUT_BYTES, DEFAULT_TIMEOUT_SECONDS, OnOutput, StreamName
from gym.sandbox.output import Capture

CHUNK = 65536


@dataclass(frozen=True)
class Terms:
    """Input and bounds of one command; see `Sandbox.exec`."""

    stdin: bytes | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    on_output: OnOutput | None = None


class Streams:
    """Standard input, output and error of one command.

    Attributes:
        failed: Set with what `on_output` raises.
    """

    def __init__(self, terms: Terms) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.input = None if terms.stdin is None else _Writer(terms.stdin)
        self.out = _Reader("stdout", terms, self.failed)
        self.err = _Reader("stderr", terms, self.failed)

    def started(self) -> None:
        """The child has its ends now."""
        for pipe in (self.input, self.out, self.err):
            if pipe is not None:
                pipe.close_child()

    async def drained(self, seconds: float) -> None:
        """Wait for the end of its output, but not longer than that; raises what `on_output` raised."""
        await asyncio.wait({self.out.ended, self.err.ended}, timeout=seconds)
        if self.failed.done():
            self.failed.result()

    def close(self) -> None:
        """Close what is still open."""
        self.started()
        for pipe in (self.input, self.out, self.err):
            if pipe is not None:
                pipe.close()
        if not self.failed.cancel() and not self.failed.cancelled():
            self.failed.exception()  # mark as seen, also when another error is on its way


class _Pipe:
    """Our end of a pipe, watched by the event loop, and the end for the child."""

    def __init__(self, fd: int, child_fd: int) -> None:
        self.fd = fd
        self.child_fd = child_fd
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        os.set_blocking(fd, False)

    def close_child(self) -> None:
        if self.child_fd >= 0:
            os.close(self.child_fd)
            self.child_fd = -1

    def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            asyncio.get_running_loop().remove_reader(self.fd)
            asyncio.get_running_loop().remove_writer(self.fd)
            os.close(self.fd)


class _Reader(_Pipe):
    def __init__(self, name: StreamName, terms: Terms, failed: asyncio.Future[None]) -> None:
        super().__init__(*os.pipe())
        self.capture = Capture(terms.max_output_bytes)
        self._name = name
        self._on_output = terms.on_output
        self._failed = failed
        asyncio.get_running_loop().add_reader(self.fd, self._ready)

    def _ready(self) -> None:
        try:
            chunk = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.close()
            return
        self.capture.feed(chunk)
        if self._on_output is None or self._failed.done():
            return
        try:
            self._on_output(self._name, chunk)
        except Exception as error:  # raised again in the caller of `exec`
            self._failed.set_exception(error)


class _Writer(_Pipe):
    def __init__(self, content: bytes) -> None:
        child_fd, fd = os.pipe()
        super().__init__(fd, child_fd)
        self._left = memoryview(content)
        asyncio.get_running_loop().add_writer(self.fd, self._ready)

    def _ready(self) -> None:
        try:
            # A command need not read all of its input.
            with suppress(BlockingIOError):
                self._left = self._left[os.write(self.fd, self._left) :]
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            self.close()
