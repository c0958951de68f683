"""What an agent could have prepared in a sandbox that its verifier shares, and what is done about it.

Services that the agent has left, such as a web server, go on: tasks are about them. So this cannot be as strong as a
verifier with a container of its own. What is kept up: nothing of the verifier is there before the agent has ended; a
process that serves nothing is ended before; what meddles with tests, results or programs is ended too, and the tests
run once more; and they run by the programs of the image (`gym.harbor.programs`, `gym.harbor.aside`).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gym.failures import EpisodeFailure
from gym.harbor import programs
from gym.harbor.boxes import ROOT, Box
from gym.harbor.programs import Programs
from gym.sandbox.scratch import scratch

FOLDER = re.compile(r"/proc/(\d+)/fd:")
SOCKET = re.compile(r"-> socket:\[(\d+)\]$")
END_ROUNDS = 50
START_SECONDS = 10.0
"""How long a server may take until it listens, from the start of its process."""

TICKS = 100
"""In which the kernel tells start times, per second."""

# Prints `process <pid>:<start time> <parent> <session> <name>` of all processes but this one, its ancestors and the
# first of the container.
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
    [ "$#" -ge 20 ] || { echo "process $pid:0 0 0 unreadable"; continue; }
    # The first process of the container waits by a sleep; nobody else gets into its session.
    [ "$2:$4:$name" != 1:1:sleep ] || continue
    echo "process $pid:${20} $2 $4 $name"
done
"""

# Prints `time <seconds since 1970> <seconds since the machine started>`.
CLOCKS = 'read -r up idle </proc/uptime; echo "time $(date +%s) $up"'

# Prints `<user>:<group>` of each of some processes.
OWNERS = r"""
for pid in "$@"; do
    user= group=
    while read -r key value rest; do
        case $key in Uid:) user=$value ;; Gid:) group=$value ;; esac
    done <"/proc/$pid/status"
    [ -z "$user" ] || echo "$user:$group"
done 2>/dev/null
true
"""

# Prints the tables of sockets, and then, by process, what is open.
SOCKETS = r"""
cd /proc/net && for table in tcp tcp6 udp udp6 unix; do echo "table $table"; cat "$table"; done 2>/dev/null
ls -l /proc/[0-9]*/fd 2>/dev/null
true
"""
SOCKETS_BYTES = 8 * 1024 * 1024

# True (0) when something has appeared in the folder $1 within a moment.
DISTURBED = 'sleep 0.4; [ -n "$(ls -A "$1" 2>/dev/null)" ]'


@dataclass(frozen=True)
class Process:
    """A process that has come since.

    Attributes:
        age_seconds: How long it has been running.
    """

    pid: str
    parent: str
    session: str
    name: str
    age_seconds: float = 0.0


@dataclass(frozen=True)
class Before:
    """What was there before the agent came.

    Attributes:
        processes: Each as `<pid>:<start time>`.
        seconds: When that was, by the sandbox's clock.
    """

    processes: frozenset[str]
    programs: Programs
    seconds: str


async def look(box: Box) -> Before:
    """Remembers what is there."""
    processes, seconds = await _seen(box)
    return Before(frozenset(processes), await programs.look(box), seconds)


async def since(box: Box, before: Before) -> list[Process]:
    """The processes that have come since, but for those that the ones of before have started."""
    seen, _ = await _seen(box)
    parents = {process.pid: process.parent for process in seen.values()}
    old = {process.pid for key, process in seen.items() if key in before.processes}

    def is_new(pid: str) -> bool:
        while pid in parents and pid not in old:
            pid = parents[pid]
        return pid not in old

    return [process for process in seen.values() if is_new(process.pid)]


async def end(box: Box, before: Before, *, keeps_services: bool = False) -> list[str]:
    """Kills the processes that have come since: all, or those that serve nothing. Returns their names.

    Raises:
        EpisodeFailure: `termination_unconfirmed`: some are still there.
    """
    if keeps_services:
        await _wait_for_servers(box, before)
    names = set[str]()
    for _ in range(END_ROUNDS):
        found = await (_idle if keeps_services else since)(box, before)
        if not found:
            return sorted(names)
        names.update(process.name for process in found)
        await box.as_root('kill -KILL "$@" 2>/dev/null; true', *(process.pid for process in found))
    message = f"processes that the agent left could not be ended: {told(names)}"
    raise EpisodeFailure("termination_unconfirmed", message, stage="verification")


async def _idle(box: Box, before: Before) -> list[Process]:
    """Those that have come since and serve nothing."""
    found = await since(box, before)
    kept = serving(found, await _listening(box, found)) if found else set()
    return [process for process in found if process.pid not in kept]


async def _wait_for_servers(box: Box, before: Before) -> None:
    """Waits for what has just been started: it may be about to listen."""
    until = None
    while idle := await _idle(box, before):
        now = asyncio.get_running_loop().time()
        until = until or now + START_SECONDS - max(0.0, min(process.age_seconds for process in idle))
        if now >= until:
            return
        await asyncio.sleep(0.25)


def serving(found: Sequence[Process], listening: Collection[str]) -> set[str]:
    """The processes of services: those that listen, and all that are of their family or in their session.

    A server has workers, and perhaps somebody who starts it again; none of them need listen itself.
    """
    family = {process.pid: process.pid for process in found}

    def head(pid: str) -> str:
        while family[pid] != pid:
            pid = family[pid]
        return pid

    first_of = dict[str, str]()
    for process in found:
        if process.parent in family:
            family[head(process.pid)] = head(process.parent)
        if process.session not in ("", "0"):
            family[head(process.pid)] = head(first_of.setdefault(process.session, process.pid))
    heads = {head(pid) for pid in listening if pid in family}
    return {pid for pid in family if head(pid) in heads}


def told(names: Iterable[str]) -> str:
    """Names of processes in a few words."""
    return ", ".join(sorted(set(names)))[:200]


async def _listening(box: Box, found: Sequence[Process]) -> set[str]:
    """Those of some processes that have a socket where somebody can reach them, or are connected to one here by TCP.

    Root may not look into processes of others in a container, but they themselves may, unless a process has changed its
    user. Such a one counts as a server where nobody who can be seen has a socket that somebody listens on.
    """
    owners = (await box.as_root(OWNERS, *(process.pid for process in found))).stdout_text.split()
    opened: dict[str, set[str]] = {}
    sockets, connected = set[str](), set[str]()
    for user in dict.fromkeys([ROOT, *owners]):
        with suppress(EpisodeFailure):
            words = ["/bin/sh", "-c", SOCKETS]
            said = await box.run(words, user=user, env={"PATH": box.path}, cwd="/", max_output_bytes=SOCKETS_BYTES)
            sockets |= _read_sockets(said.stdout_text, opened)
            connected |= connections(said.stdout_text)
    seen = {pid for pid, inodes in opened.items() if inodes & (sockets | connected)}
    if sockets.difference(*opened.values()):
        seen |= {process.pid for process in found if process.pid not in opened}
    return seen


def _read_sockets(text: str, opened: dict[str, set[str]]) -> set[str]:
    """Inodes of the sockets that somebody listens on; adds to `opened` which sockets each process has."""
    sockets = set[str]()
    table = pid = ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("table "):
            table = line[6:]
        elif match := FOLDER.fullmatch(line):
            table, pid = "", match[1]
        elif table == "unix" and len(words) > 6 and words[3] == "00010000":
            sockets.add(words[6])
        elif table.startswith(("tcp", "udp")) and len(words) > 9 and words[3] == ("0A" if table[0] == "t" else "07"):
            sockets.add(words[9])
        elif not table and " -> " in line:
            inodes = opened.setdefault(pid, set())
            inodes.update(SOCKET.findall(line))
    return sockets


def connections(text: str) -> set[str]:
    """Inodes of the sockets that are connected by TCP to where somebody listens in the same sandbox."""
    rows = [words for words in map(str.split, text.splitlines()) if len(words) > 9 and words[0][:-1].isdecimal()]
    ports = {words[1].rpartition(":")[2] for words in rows if words[3] == "0A"}
    found = set[str]()
    for words in rows:
        (here, _, _), (there, _, port) = words[1].rpartition(":"), words[2].rpartition(":")
        if words[3] == "01" and here == there and port in ports:
            found.add(words[9])
    return found


async def is_disturbed(box: Box, folder: str) -> bool:
    """Whether somebody writes into a folder that has just been emptied."""
    return (await box.as_root(DISTURBED, folder)).exit_code == 0


async def is_changed(box: Box, folders: Sequence[Path], target: str) -> bool:
    """Whether files that were uploaded are gone, or not what they were; later folders lie over earlier ones.

    They are copied here and compared.
    """
    wanted: dict[str, bytes] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                wanted[path.relative_to(folder).as_posix()] = _digest(path)
    with scratch("tests") as copy:
        found = Path(copy) / "tests"
        try:
            await box.sandbox.download(target, found)
        except OSError:
            return True
        return await asyncio.to_thread(_differs, wanted, found)


def _differs(wanted: dict[str, bytes], found: Path) -> bool:
    paths = ((found / name, digest) for name, digest in wanted.items())
    return any(path.is_symlink() or not path.is_file() or _digest(path) != digest for path, digest in paths)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


async def _seen(box: Box) -> tuple[dict[str, Process], str]:
    """Processes, each by `<pid>:<start time>`, and the time."""
    said = await box.as_root(f"{CLOCKS}\n{PROCESSES}", max_output_bytes=SOCKETS_BYTES)
    processes: dict[str, Process] = {}
    seconds, up = "", 0.0
    for line in said.stdout_text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "time":
            seconds, _, running = rest.partition(" ")
            up = float(running or 0)
        elif kind == "process":
            key, parent, session, name = rest.split(" ", 3)
            pid, _, start = key.partition(":")
            processes[key] = Process(pid, parent, session, name, up - int(start) / TICKS)
    return processes, seconds
