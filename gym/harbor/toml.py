"""One TOML file: its data, and the line of every key.

The data are what `tomllib` makes of the file. Lines come from a scanner that knows keys, strings and brackets, and
reads no values; it runs on text that `tomllib` has accepted, so it need not judge syntax.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym.composition.roots import shown
from gym.errors import Problem, UserError

KeyPath = tuple[str, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'', re.DOTALL)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]+")
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True)
class TomlFile:
    """A parsed file.

    Attributes:
        data: The table that the file holds. Not to be changed.
        lines: 1-based line of each key; items of arrays have their index as last part.
    """

    path: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    def line(self, key: KeyPath) -> int:
        """Line of a key, or of the closest part of it that the file has."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 1)

    def where(self, key: KeyPath = ()) -> str:
        """`file:line` of a key, or of the closest part of it that the file has."""
        return f"{shown(self.path)}:{self.line(key)}"


def load(path: Path) -> TomlFile:
    """Reads and parses a file.

    Raises:
        UserError: The file cannot be read, or is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(Problem(f"cannot read {shown(path)}: {error}", where=shown(path))) from error
    return parse(text, path)


def parse(text: str, path: Path) -> TomlFile:
    """As `load`, of a text that is (or would be) at `path`."""
    text = text.replace("\r\n", "\n")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line, column = place.groups() if place else (str(text.count("\n") + 1), "")
        what = _PLACE.sub("", str(error)) + (f" (column {column})" if column else "")
        raise UserError(Problem(f"not valid TOML: {what}", where=f"{shown(path)}:{line}")) from error
    return TomlFile(path, data, _Scanner(text).scan())


class _Scanner:
    """Walks a valid TOML text and notes where its keys are."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [position for position, letter in enumerate(text) if letter == "\n"]
        self._counts: dict[KeyPath, int] = {}
        self._lines: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        """The line of every key."""
        table: KeyPath = ()
        while self._skip():
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _skip(self) -> bool:
        """Steps over blanks and comments; whether anything is left."""
        match = _BLANK.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._at < len(self._text)

    def _note(self, key: KeyPath) -> None:
        self._lines.setdefault(key, bisect_right(self._ends, self._at - 1) + 1)

    def _header(self) -> KeyPath:
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        self._skip()
        start = self._at
        parts = self._key()
        table = self._inside(parts[:-1]) + parts[-1:]
        end, self._at = self._at, start
        for length in range(1, len(table) + 1):
            self._note(table[:length])
        if is_array:
            self._counts[table] = self._counts.get(table, -1) + 1
            table = (*table, str(self._counts[table]))
            self._note(table)
        else:
            table = self._inside(parts)
        self._at = end
        self._skip()
        self._at += 2 if is_array else 1
        return table

    def _inside(self, parts: KeyPath) -> KeyPath:
        """A header's name as a key path: of an array of tables, its last item is meant."""
        path: KeyPath = ()
        for part in parts:
            path = (*path, part)
            if path in self._counts:
                path = (*path, str(self._counts[path]))
        return path

    def _key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self._skip()
            quoted = _STRING.match(self._text, self._at)
            match = quoted or _BARE.match(self._text, self._at)
            assert match is not None
            parts.append(str(tomllib.loads(f"key = {match[0]}")["key"]) if quoted else match[0])
            self._at = match.end()
            self._skip()
            if not self._text.startswith(".", self._at):
                return tuple(parts)
            self._at += 1

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        key = self._key()
        end, self._at = self._at, start
        for length in range(1, len(key) + 1):
            self._note(table + key[:length])
        self._at = end + 1  # the equals sign
        self._value(table + key)

    def _value(self, key: KeyPath) -> None:
        self._skip()
        letter = self._text[self._at]
        if letter in "[{":
            self._items(key, closing="]" if letter == "[" else "}")
            return
        match = _STRING.match(self._text, self._at) or _SCALAR.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _items(self, key: KeyPath, closing: str) -> None:
        self._at += 1
        index = 0
        while self._skip() and self._text[self._at] != closing:
            if closing == "]":
                self._note((*key, str(index)))
                self._value((*key, str(index)))
            else:
                self._pair(key)
            index += 1
            self._skip()
            if self._text[self._at] == ",":
                self._at += 1
        self._at += 1
