"""What to run, and in which container."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gym.sandbox.interface import DEFAULT_OUTPUT_BYTES, DEFAULT_TIMEOUT_SECONDS, OnOutput
from gym.sandbox.programs import SYSTEM_PATH
from gym.sandbox.providers.docker.daemon import Daemon


@dataclass(frozen=True)
class Order:
    """What to run, and its bounds; see `Sandbox.exec`.

    Attributes:
        argv: Program and arguments.
        cwd: Where to start, from the root.
        env: Variables on top of the container's own.
        user: None for the container's own.
        stdin: None for an empty input.
        killable: Its processes carry a mark, by which they are found and killed. Only our own small scripts do not.
        script: Runs in place of `argv`, in the very shell that goes round commands; one of ours.
        ours: It is one of our own scripts, and finds its programs by the container's `path`.
    """

    argv: Sequence[str]
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stdin: bytes | Iterator[bytes] | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    on_output: OnOutput | None = None
    killable: bool = True
    script: str = ""
    ours: bool = False


@dataclass(frozen=True)
class Container:
    """A container to run commands in.

    Attributes:
        reference: Its id, or a name that the owner may take away.
        sandbox_id: Name of the sandbox.
        ended: Why no more commands can run; set once.
        owned: With the end, the container goes too.
        path: PATH of our own scripts; see `gym.sandbox.programs`.
    """

    daemon: Daemon
    reference: str
    sandbox_id: str
    ended: asyncio.Future[str]
    owned: bool
    path: str = SYSTEM_PATH
