"""Scripts for a sandbox, and the records that they print.

OpenSandbox passes output on as lines of text: line ends, and bytes that are no UTF-8, are lost on the way. So output
travels as base64. The script itself travels in a variable, since command lines show in the sandbox's list of processes.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gym.sandbox.providers.opensandbox import shell

FOLDER = "/tmp/.gym-"
INLINE_BYTES = 90_000
"""A script of this size still fits, as base64, into one variable (128 KiB with its name)."""

_UNLIMITED = 2**62
# What a shell can export; the others, among them what bash keeps for itself, `env` can.
_NAME = re.compile("(?!UID$|EUID$|PPID$|BASH|SHELLOPTS$)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_VARIABLE = "GYM_SCRIPT"
_FROM_ENV = f'eval "$(printf %s "${_VARIABLE}" | base64 -d)"'


@dataclass(frozen=True)
class Script:
    """A script, ready to be run.

    Attributes:
        command: What OpenSandbox is told to run; short, since it shows in the sandbox's list of processes.
        env: Variables for it: the script itself, unless that is too long.
        files: Content by absolute path; to be uploaded before, and deleted afterwards.
    """

    command: str
    env: dict[str, str]
    files: dict[str, bytes]


@dataclass(frozen=True)
class Limits:
    """How much of each stream comes back: all, or beginning and end."""

    head: int
    tail: int

    @classmethod
    def of(cls, max_bytes: int, *, everything: bool) -> Limits:
        """The same parts that `gym.sandbox.output.Capture` keeps."""
        return cls(_UNLIMITED if everything else max_bytes - max_bytes // 2, max(1, max_bytes // 2))


@dataclass(frozen=True)
class Line:
    """A command, in words that `os.fsencode` can encode.

    Attributes:
        words: Program and arguments.
        cwd: Absolute path where it starts.
        env: Variables on top of those of the sandbox.
        stdin: Its input; None is an empty one.
        disk_mib: Size in MiB of the largest file that it can write.
    """

    words: Sequence[str]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    disk_mib: int | None = None


def run_script(mark: str, line: Line, limits: Limits) -> Script:
    """The script that runs a command.

    Args:
        mark: `<sandbox id>:<number of the command>`, as in `gym.sandbox.processes`.
        line: The command.
        limits: What comes back of its output.
    """
    folder = _folder(mark)
    content = line.stdin or b""
    inline = len(content) <= INLINE_BYTES // 4
    settings = {
        "g_mark": mark,
        "g_d": folder,
        "g_head": str(limits.head),
        "g_tail": str(limits.tail),
        "g_cwd": line.cwd,
        # A POSIX shell counts in blocks of 512 bytes.
        "g_blocks": "unlimited" if line.disk_mib is None else str(line.disk_mib * 2048),
        "g_in": f"{folder}.in" if not inline else "/dev/null",
        "g_input": base64.b64encode(content).decode() if inline else "",
    }
    exports = {name: value for name, value in line.env.items() if _NAME.fullmatch(name)}
    others = [f"{name}={value}" for name, value in line.env.items() if name not in exports]
    words = [*(["env", *others] if others else []), *line.words]
    run = (shell.PUMP + shell.RUN).encode().replace(b"@EXPORTS@", _assign(exports, b"export "))
    script = _assign(settings) + b"set -- " + b" ".join(map(_quote, words)) + run
    files = {} if inline else {settings["g_in"]: content}
    return _packed(folder, script, files)


def end_script(mark: str) -> Script:
    """The script that kills all processes of a command, and sees to it that it cannot begin any more."""
    folder = _folder(mark)
    return _packed(folder, _assign({"g_mark": mark, "g_d": folder}) + shell.END.encode(), {})


def clear_script(mark: str, keep: str) -> Script:
    """The script that kills all processes but those in `keep`, which is what `shell.PROCESSES` prints."""
    return _packed(_folder(mark), _assign({"g_keep": keep}) + shell.CLEAR.encode(), {})


def _folder(mark: str) -> str:
    return FOLDER + mark.rpartition(":")[2]


def _packed(folder: str, script: bytes, files: dict[str, bytes]) -> Script:
    if len(script) <= INLINE_BYTES:
        return Script(_FROM_ENV, {_VARIABLE: base64.b64encode(script).decode()}, files)
    path = f"{folder}.sh"
    return Script(f"exec /bin/sh {path}", {}, files | {path: script})


def _assign(settings: dict[str, str], before: bytes = b"") -> bytes:
    return b"".join(before + name.encode() + b"=" + _quote(value) + b"\n" for name, value in settings.items())


def _quote(word: str) -> bytes:
    return b"'" + os.fsencode(word).replace(b"'", rb"'\''") + b"'"


@dataclass(frozen=True)
class Record:
    """One record of a script.

    Attributes:
        kind: Empty for output; `#` for the number of bytes that came after the beginning; `=` for the end of the
            stream, with the exit code and perhaps a `+` for lack of memory; `!` for why the script cannot run.
        content: The bytes of output, or the letters of the rest.
    """

    kind: str
    content: bytes


class Records:
    """Takes the text of a stream as it comes, in pieces that begin and end anywhere."""

    _WHOLE = re.compile(r"<(?:(!)([^<>]*)|([#=]?)([A-Za-z0-9+/=\s]*))>")

    def __init__(self) -> None:
        self._left = ""
        self._other = ""

    @property
    def other(self) -> str:
        """What was no record: the complaint of a shell or daemon that could not run the script."""
        return (self._other + self._left)[:500].strip()

    def feed(self, text: str) -> Iterator[Record]:
        """The records that `text` completes."""
        self._left += text
        end = 0
        for match in self._WHOLE.finditer(self._left):
            self._other = (self._other + self._left[end : match.start()])[:500]
            end = match.end()
            kind, content = match[1] or match[3] or "", match[2] or match[4] or ""
            yield Record(kind, content.encode() if kind else base64.b64decode(content))
        self._left = self._left[end:]
