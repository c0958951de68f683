"""What a server process writes, line by line: kept in a file without secrets, and its end in memory."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gym.composition.credentials import MASK, SESSION_KEY

KEPT_LINES = 20
LONGEST_LINE = 64 * 1024
CHUNK = 64 * 1024


def masker(redact: Callable[[str], str], token: str) -> Callable[[str], str]:
    """Takes out of a text what `redact` knows, the run's token and session keys."""

    def masked(text: str) -> str:
        text = redact(text)
        return SESSION_KEY.sub(MASK, text.replace(token, MASK) if token else text)

    return masked


class ServerLog:
    """The log of one instance.

    Attributes:
        path: Its file; None keeps nothing but the last lines.
        mask: Takes secrets out of a text.
    """

    def __init__(self, path: Path | None, redact: Callable[[str], str], token: str) -> None:
        self.path = path
        self.mask = masker(redact, token)
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1) if path is not None else None

    def write(self, line: bytes) -> None:
        """Adds a line: without the configuration's secrets, the run's token and session keys."""
        text = self.mask(line.decode("utf-8", "replace").rstrip("\r\n"))
        self._last.append(text)
        if self._file is not None and not self._file.closed:
            self._file.write(text + "\n")

    def tail(self, number: int) -> str:
        """The last lines that say anything, as one."""
        return " / ".join([line.strip() for line in self._last if line.strip()][-number:])

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


class LineReader:
    """Hands on the lines of a pipe as they come. Very long ones come in pieces."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._take = take
        self._rest = b""
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def close(self) -> None:
        """Hands on what is in the pipe now, and closes it."""
        while self._descriptor >= 0 and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        """Whether there was something."""
        try:
            data = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > LONGEST_LINE:
            self._take(self._rest)
            self._rest = b""
        return True

    def _end(self) -> None:
        if self._descriptor < 0:
            return
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        if self._rest:
            self._take(self._rest)
            self._rest = b""
