"""Bounded capture of a stream: beginning and end are kept, the middle is counted."""

from __future__ import annotations


class Capture:
    """Keeps at most `limit` bytes of what `feed` gets, whatever the length of the stream."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self._total += len(chunk)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        # Cut only now and then: cutting moves the whole tail.
        if len(self._tail) > 2 * self._tail_limit + 65536:
            self._cut()

    @property
    def left_out(self) -> int:
        """Bytes that `value` does not hold."""
        return max(0, self._total - self._head_limit - self._tail_limit)

    def value(self) -> bytes:
        """The bytes kept, with a line that says how many are missing where they are missing."""
        self._cut()
        if not self.left_out:
            return bytes(self._head + self._tail)
        mark = f"\n[... {self.left_out} bytes left out ...]\n".encode()
        return bytes(self._head) + mark + bytes(self._tail)

    def _cut(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_limit)]
