"""Find and end processes by a mark in their environment.

A process group misses children that call `setsid`; the environment is inherited by all of them. Only a process that
wipes its environment, or belongs to another user, escapes this.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "GYM_SANDBOX"
"""Variable that every command in a sandbox carries: `<sandbox id>:<number of the command>`."""

GONE_SECONDS = 5.0
PROC = Path("/proc")


def marked(prefixes: tuple[str, ...]) -> list[int]:
    """Ids of the live processes whose mark begins with one of `prefixes`."""
    starts = tuple(f"{MARK}={prefix}".encode() for prefix in prefixes)
    return [
        pid for pid in _pids() if any(item.startswith(starts) for item in _environment(pid).split(b"\0")) and alive(pid)
    ]


def in_session(session: int) -> list[int]:
    """Ids of the live processes of one session."""
    return [pid for pid in _pids() if (fields := _stat(pid)) and fields[3] == str(session) and fields[0] not in "ZX"]


def start_time(pid: int) -> str:
    """When the process started, in clock ticks since boot; empty when there is none."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone, or is not ours, is left alone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


async def end_all(find: Callable[[], list[int]]) -> list[int]:
    """Kill what `find` finds until it finds nothing, since a process may fork while it is being killed.

    Returns:
        The processes that are still there after `GONE_SECONDS`; normally none.
    """
    deadline = asyncio.get_running_loop().time() + GONE_SECONDS
    pause = 0.001
    while pids := await asyncio.to_thread(find):
        if asyncio.get_running_loop().time() > deadline:
            return pids
        for pid in pids:
            kill(pid)
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.1)
    return []


def _pids() -> Iterator[int]:
    own = str(os.getpid())
    with os.scandir(PROC) as entries:
        for entry in entries:
            if entry.name.isdigit() and entry.name != own:
                yield int(entry.name)


def _environment(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state (field 3) on; see proc(5)."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
