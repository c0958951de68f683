"""What an agent could have prepared in a sandbox that its verifier shares, and what is done about it.

Services that the agent has left, such as a web server, go on: tasks are about them. So this cannot be as strong as a
verifier with a container of its own. What is kept up: nothing of the verifier is there before the agent has ended; what
writes where only the verifier should write is ended, and the tests run once more; and a script in front of an
interpreter of the image is passed over. What a root agent does to the image's own programs is not seen.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gym.failures import EpisodeFailure
from gym.harbor.boxes import Box

INTERPRETERS = ("sh", "bash", "env", "python", "python3", "uv", "uvx", "pytest")
"""Programs by which tests run, looked up in PATH."""

END_ROUNDS = 50

# Prints `process <pid>:<start time> <name>` of all processes but this one, its ancestors and the container's first.
PROCESSES = r"""
mine=" 1 "
pid=$$
while [ "$pid" -gt 1 ] 2>/dev/null; do
    mine="$mine$pid "
    read -r line <"/proc/$pid/stat" || break
    line=${line##*) } line=${line#* } pid=${line%% *}
done
for file in /proc/[0-9]*/stat; do
    { read -r line <"$file"; } 2>/dev/null || continue
    pid=${file#/proc/} pid=${pid%/stat} name=${line#*(} name=${name%)*} line=${line##*) }
    case $mine in *" $pid "*) continue ;; esac
    case $line in Z*) continue ;; esac
    set -- $line
    # A name with a line break in it hides the rest.
    [ "$#" -ge 20 ] || { echo "process $pid:0 unreadable"; continue; }
    # The first process of the container waits by a sleep; nobody else gets into its session.
    [ "$2:$4:$name" != 1:1:sleep ] || continue
    shift 19
    echo "process $pid:$1 $name"
done
"""

# Prints `<kind> <name> <path>` of each program: kind is `elf` for a machine program, else `script`.
LOOKUP = r"""
for name in "$@"; do
    path=$(command -v "$name" 2>/dev/null) || continue
    case $path in /*) ;; *) continue ;; esac
    kind=script
    [ "$(head -c 4 "$path" 2>/dev/null | tail -c 3)" != ELF ] || kind=elf
    echo "$kind $name $path"
done
"""

# True (0) when something has appeared in the folder $1 within a moment.
DISTURBED = 'sleep 0.4; [ -n "$(ls -A "$1" 2>/dev/null)" ]'


@dataclass(frozen=True)
class Before:
    """What was there before the agent came: processes, and where the interpreters are.

    Attributes:
        seconds: When that was, by the sandbox's clock.
    """

    processes: frozenset[str]
    programs: Mapping[str, str]
    seconds: str


@dataclass(frozen=True)
class Since:
    """What has come since.

    Attributes:
        processes: Names by `<pid>:<start time>`.
        passed_over: Interpreters of the image that a script now stands in front of, with their own path.
    """

    processes: Mapping[str, str]
    passed_over: Mapping[str, str]


async def look(box: Box) -> Before:
    """Remembers what is there."""
    processes, programs, seconds = await _seen(box)
    return Before(frozenset(processes), {name: path for name, (_, path) in programs.items()}, seconds)


async def since(box: Box, before: Before) -> Since:
    """What has come since, as far as it could serve to deceive a verifier."""
    processes, programs, _ = await _seen(box)
    return Since(
        {key: name for key, name in processes.items() if key not in before.processes},
        {
            name: path
            for name, path in before.programs.items()
            if name in programs and programs[name][1] != path and programs[name][0] == "script"
        },
    )


async def end(box: Box, before: Before) -> None:
    """Kills all processes that have come since.

    Raises:
        EpisodeFailure: `termination_unconfirmed`: some are still there.
    """
    for _ in range(END_ROUNDS):
        found = (await since(box, before)).processes
        if not found:
            return
        pids = [key.partition(":")[0] for key in found]
        await box.as_root('kill -KILL "$@" 2>/dev/null; true', *pids)
    message = f"processes that the agent left could not be ended: {', '.join(sorted(set(found.values())))[:200]}"
    raise EpisodeFailure("termination_unconfirmed", message, stage="verification")


async def is_disturbed(box: Box, folder: str) -> bool:
    """Whether somebody writes into a folder that has just been emptied."""
    return (await box.as_root(DISTURBED, folder)).exit_code == 0


async def is_changed(box: Box, folders: Sequence[Path], target: str) -> bool:
    """Whether files that were uploaded are not what they were; folders later in the list lie over earlier ones."""
    wanted: dict[str, str] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                name = f"{target}/{path.relative_to(folder).as_posix()}"
                wanted[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    said = await box.as_root('sha256sum -- "$@" 2>/dev/null', *wanted)
    found = {name: digest for digest, _, name in (line.partition("  ") for line in said.stdout_text.splitlines())}
    return any(found.get(name, digest) != digest for name, digest in wanted.items())


async def clean_path(box: Box, programs: Mapping[str, str]) -> str:
    """PATH by which these programs are those of the image; in front is a folder that is made for it."""
    folder = f"/.gym-{secrets.token_hex(6)}"
    for name, path in programs.items():
        # Not a link: an interpreter finds what belongs to it by its own path.
        await box.put(f'#!/bin/sh\nexec "{path}" "$@"\n'.encode(), f"{folder}/{name}")
    said = await box.as_root('chmod -R 755 "$1"; printf %s "$PATH"', folder)
    return f"{folder}:{said.stdout_text}"


async def _seen(box: Box) -> tuple[dict[str, str], dict[str, tuple[str, str]], str]:
    """Processes, kind and path of the interpreters, and the time."""
    said = await box.as_root(f'echo "time $(date +%s)"\n{LOOKUP}\n{PROCESSES}', *INTERPRETERS)
    seconds = ""
    processes: dict[str, str] = {}
    programs: dict[str, tuple[str, str]] = {}
    for line in said.stdout_text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "time":
            seconds = rest
        elif kind == "process":
            key, _, name = rest.partition(" ")
            processes[key] = name
        elif kind in ("elf", "script"):
            name, _, path = rest.partition(" ")
            programs[name] = (kind, path)
    return processes, programs, seconds
