"""The record of a model server's calls: one append-only file a process, in which each message is stored once.

A request repeats the whole conversation. Here its lists (messages, items, tools) are named by the last of their
entries, as a commit names its history, and each entry is written when it is first seen. Lines are written whole, so
that a kill leaves at most one torn line, at the end. docs/models.md describes them; `gym.capture.reader` reads them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from pydantic_core import PydanticSerializationError, to_json

FOLDER = "model_calls"
"""Name of the folder in a run's directory."""

LONGEST_INLINE = 200
"""Characters of JSON up to which a field of a request stands in the call itself."""

MOST_REMEMBERED = 1_000_000
"""Entries after which all are forgotten, and written once more where they occur again: a bound on memory."""

Kind = Literal["call", "count"]
"""A call of the model, or a count of tokens."""

_DIGEST_BYTES = 12

log = logging.getLogger(__name__)


def encoded(value: Any) -> bytes:
    """A value as JSON. What UTF-8 has no place for, half of a surrogate pair, is escaped."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except PydanticSerializationError:
        return json.dumps(value, separators=(",", ":")).encode()


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


class Store:
    """Writes the calls of one instance into a file of its own: `<instance>.jsonl`, `<instance>.2.jsonl`, ...

    The file is made with the first call. A file that cannot be written is told once, and hinders no call.

    Args:
        mask: Takes secrets out of what is written.
    """

    def __init__(self, folder: Path, instance: str, mask: Callable[[str], str] = str) -> None:
        self._folder = folder
        self._instance = instance
        self._mask = mask
        self._fd: int | None = None
        self._broken = False
        self._messages: dict[bytes, str] = {}
        self._places: dict[bytes, tuple[str, int]] = {}

    def add(self, call: Mapping[str, Any], request: Mapping[str, Any], kind: Kind = "call") -> None:
        """Writes one call, and before it what of its request was not written yet.

        Args:
            call: Fields of the call.
            request: The body of the request.
            kind: What it is.
        """
        if len(self._messages) + len(self._places) > MOST_REMEMBERED:
            self._messages.clear()
            self._places.clear()
        lines: list[str] = []
        inline, referred = {}, {}
        for name, value in request.items():
            if isinstance(value, list | tuple) and value:
                referred[name] = {"history": self._history(value, lines)}
            elif isinstance(value, str | dict) and len(data := encoded(value)) > LONGEST_INLINE:
                referred[name] = {"message": self._message(data, lines)}
            else:
                inline[name] = value
        own = self._mask(encoded({**call, "request": inline}).decode())[1:]
        lines.append(f'{{"kind":"{kind}","refs":{encoded(referred).decode()},{own}\n')
        self._write("".join(lines).encode())

    def _message(self, data: bytes, lines: list[str]) -> str:
        """The name under which a JSON value is written."""
        digest = _digest(data)
        name = self._messages.get(digest)
        if name is None:
            text = data.decode()
            masked = self._mask(text)
            # What was masked is not named by its own digest, from which a weak secret could be guessed.
            name = (digest if masked == text else _digest(masked.encode())).hex()
            self._messages[digest] = name
            lines.append(f'{{"kind":"message","id":"{name}","value":{masked}}}\n')
        return name

    def _history(self, values: Sequence[Any], lines: list[str]) -> str:
        """The name of a list. What it shares with one that was written before is not repeated."""
        names = [self._message(encoded(value), lines) for value in values]
        chain, ends = b"", []
        for name in names:
            chain = _digest(chain + name.encode())
            ends.append(chain)
        shared = next((at for at in range(len(ends), 0, -1) if ends[at - 1] in self._places), 0)
        own, begins = ends[-1].hex(), {}
        if shared:
            holder, place = self._places[ends[shared - 1]]
            if holder == own:
                return own
            begins = {"after": holder, "first": place}
        line = {"kind": "history", "id": own, **begins, "messages": names[shared:]}
        lines.append(encoded(line).decode() + "\n")
        self._places.update((end, (own, at)) for at, end in enumerate(ends[shared:], shared + 1))
        self._places[ends[-1]] = (own, len(ends))
        return own

    def _write(self, data: bytes) -> None:
        """Writes all of the data or none of it."""
        try:
            if self._fd is None:
                self._fd = self._open()
            before, rest = os.fstat(self._fd).st_size, memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                os.ftruncate(self._fd, before)
                raise
        except OSError as error:
            self._messages.clear()
            self._places.clear()
            if not self._broken:
                log.error("%s: calls cannot be recorded in %s: %s", self._instance, self._folder, error.strerror)
            self._broken = True

    def _open(self) -> int:
        """A file that nobody has written to: those of earlier starts, and of other workers, stay as they are."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            name = f"{self._instance}.jsonl" if number == 1 else f"{self._instance}.{number}.jsonl"
            with contextlib.suppress(FileExistsError):
                fd = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
                weakref.finalize(self, os.close, fd)
                return fd
        raise AssertionError("unreachable")
