"""The streams of a running exec, and the marks that our wrapper script puts into them.

A mark is a line that begins with a random token: an empty one on standard error when the wrapper has begun, and one
with the exit code on both streams when the command has ended. So the code does not depend on the daemon's own
book-keeping, which is wrong after a lost connection, and what a background process writes later need not be awaited.
"""

from __future__ import annotations

import asyncio
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator
from contextlib import suppress

from gym.sandbox.interface import StreamName

CHUNK = 262_144
NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}


class Marked:
    """Separates the marks in a stream from its content.

    Attributes:
        begun: The wrapper runs.
        trailer: What the last mark says; None before it. Nothing is delivered after it.
    """

    def __init__(self, token: bytes, deliver: Callable[[bytes], None]) -> None:
        self._token = token
        self._deliver = deliver
        self._held = b""
        self.begun = False
        self.trailer: bytes | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes. What may be the beginning of a mark is held back."""
        data = self._held + chunk
        while self.trailer is None and (at := data.find(self._token)) >= 0 and (end := data.find(b"\n", at)) >= 0:
            self._pass(data[:at])
            text = data[at + len(self._token) : end].strip()
            data = data[end + 1 :]
            self.begun = True
            if text:
                self.trailer = text
        if self.trailer is not None:
            return
        keep = len(data) - at if at >= 0 else self._overlap(data)
        self._pass(data[: len(data) - keep])
        self._held = data[len(data) - keep :]

    def finish(self) -> None:
        """The stream has ended: what was held back is content after all."""
        if self.trailer is None:
            self._pass(self._held)
        self._held = b""

    def _pass(self, content: bytes) -> None:
        if content:
            self._deliver(content)

    def _overlap(self, data: bytes) -> int:
        """Length of the longest end of `data` that a token may begin with."""
        for length in range(min(len(self._token) - 1, len(data)), 0, -1):
            if data.endswith(self._token[:length]):
                return length
        return 0


async def receive(reader: StreamReader, deliver: Callable[[StreamName, bytes], bool]) -> None:
    """Hand over chunks of both output streams until the connection ends, or `deliver` says that it was the last."""
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            kind, length = struct.unpack(">BxxxL", await reader.readexactly(8))
            while length:
                chunk = await reader.read(min(length, CHUNK))
                if not chunk:
                    return
                length -= len(chunk)
                if deliver(NAMES.get(kind, "stdout"), chunk):
                    return


async def send(writer: StreamWriter, head: bytes, content: bytes | Iterator[bytes]) -> None:
    """Write standard input and its end. A command need not read all of it."""
    with suppress(OSError):
        writer.write(head)
        if isinstance(content, bytes):
            for start in range(0, len(content), CHUNK):
                writer.write(content[start : start + CHUNK])
                await writer.drain()
        else:
            while chunk := await asyncio.to_thread(next, content, b""):
                writer.write(chunk)
                await writer.drain()
        writer.write_eof()
