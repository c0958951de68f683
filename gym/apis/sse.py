"""Server-sent events: bytes in pieces of any size -> events, and events -> bytes.

Format: WHATWG HTML, server-sent events. Of its fields only `event` and `data` are used by the model APIs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import from_json

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class Sent(NamedTuple):
    """One event: its name (empty where it has none) and its data."""

    event: str
    data: str


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def encoded(data: Mapping[str, Any], event: str = "") -> bytes:
    """An event with JSON data."""
    text = _to_json(data)
    return f"event: {event}\ndata: {text}\n\n".encode() if event else f"data: {text}\n\n".encode()


def decoded(text: str | bytes) -> Any:
    """JSON data. Half of a surrogate pair, which models write at times, is read too.

    Raises:
        ValueError: The text is no JSON.
    """
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


class Parser:
    """Reads events from pieces of bytes. What is left unfinished at the end is no event, as the format says."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._event = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Sent]:
        """The events that this piece completes."""
        self._rest.append(piece)
        if b"\n" not in piece and b"\r" not in piece:
            return []
        buffer = b"".join(self._rest)
        held = b""
        if b"\r" in buffer:
            # A carriage return at the very end may be the first half of a line's end.
            held = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = buffer.split(b"\n")
        self._rest = [lines.pop() + held]
        return [sent for line in lines if (sent := self._line(line)) is not None]

    def _line(self, line: bytes) -> Sent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
        elif name == b"event":
            self._event = text
        return None

    def _dispatch(self) -> Sent | None:
        sent = Sent(self._event, "\n".join(self._data)) if self._data else None
        self._event, self._data = "", []
        return sent
