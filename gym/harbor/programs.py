"""The programs of a sandbox that its tests are run by: those of the image, whatever an agent did to them.

The tools that any script needs are the image's, always. An interpreter, and any other program of the image, may have
been replaced because the task wanted it: a machine program in its place is taken for that, unless it is a copy of
another one; a script in the place, or in front, of a machine program is a forgery. What was changed in place is put
back, as far as the provider can tell and do that; what stands in front of it in PATH is passed over.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from gym.harbor.boxes import Box
from gym.sandbox.interface import Change
from gym.sandbox.programs import SYSTEM_PATH

INTERPRETERS = ("python", "python3", "uv", "uvx", "pytest")
TOOLS = frozenset(
    {
        *("[", "ash", "awk", "base64", "basename", "bash", "busybox", "cat", "chmod", "chown", "cmp", "cp", "curl"),
        *("cut", "dash", "date", "diff", "dirname", "du", "echo", "egrep", "env", "expr", "false", "fgrep", "find"),
        *("gawk", "grep", "gunzip", "gzip", "head", "kill", "ln", "ls", "mawk", "md5sum", "mkdir", "mktemp", "mv"),
        *("id", "od", "paste", "pgrep", "pidof", "printf", "ps", "pwd", "readlink", "realpath", "rm", "rmdir", "sed"),
        *("seq", "setsid", "sh", "sha1sum", "sha256sum", "sleep", "sort", "stat", "su", "tail", "tar", "tee", "test"),
        *("timeout", "touch", "tr", "true", "uname", "uniq", "wc", "wget", "which", "whoami", "xargs", "xz", "zcat"),
    }
)
"""By which tests look at what is there; a task that asks for another one of these needs a verifier of its own."""

FORGERY = ("script", "machine")
"""What stands in front, and what it stands in front of."""

LOADER = "/etc/ld.so.preload"
LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
LIST_BYTES = 4 * 1024 * 1024

# Prints `program <path>` of all programs in the directories of $1, in its order, and `link <path>:<file>` of those that
# are links and have one of the further names. Directories stand there by their real paths.
LIST = r"""
IFS=:
path=
for directory in $1; do
    real=$(cd -P -- "$directory" 2>/dev/null && pwd -P) || continue
    case :$path in *":$real:"*) continue ;; esac
    path=$path$real:
    for file in "$real"/*; do [ -f "$file" ] && [ -x "$file" ] && printf 'program %s\n' "$file"; done
done
shift
for name in "$@"; do
    for directory in $path; do
        file=$directory/$name
        [ -x "$file" ] && [ -L "$file" ] && printf 'link %s:%s\n' "$file" "$(readlink -f -- "$file")"
    done
done
true
"""

# Prints `script`, `copy` or `machine` of each path. $1 are the directories of programs, by their real paths, in which
# the originals of copies are looked for; with nothing, they are not.
JUDGE = r"""
directories=$1
shift
for path in "$@"; do
    if [ "$(head -c 4 -- "$path" 2>/dev/null | tail -c 3)" != ELF ]; then echo script; continue; fi
    said=machine name=${path##*/}
    stem=${name%%[0-9.]*}
    [ -z "$directories" ] || size=$(stat -L -c %s -- "$path") sum=$(sha256sum <"$path")
    IFS=:
    for file in $([ -z "$directories" ] || find $directories -maxdepth 1 -type f -size "${size}c" | tr '\n' :); do
        case ${file##*/} in "$stem"*) continue ;; esac
        [ "$(sha256sum <"$file")" != "$sum" ] || said=copy
    done
    unset IFS
    echo "$said"
done
"""

# Makes $1 with a program for each pair of a name and a path. Not links: an interpreter finds what belongs to it by its
# own path.
FRONT = r"""
folder=$1
shift
mkdir -- "$folder" || exit 1
while [ "$#" -gt 0 ]; do
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$2" >"$folder/$1"
    shift 2
done
chmod -R 755 "$folder"
"""


@dataclass(frozen=True)
class Programs:
    """The programs of a sandbox at some time.

    Attributes:
        places: Where each is that PATH leads to, by name; of directories, their real paths.
        files: Further paths that lead to the file of a tool or an interpreter, by name.
        changed: What was not as in the image; None where nobody can tell.
        behind: Where else in PATH a tool is, by name: each its path, and those of the files that it leads to.
    """

    places: Mapping[str, str]
    files: Mapping[str, tuple[str, ...]]
    changed: frozenset[str] | None
    behind: Mapping[str, tuple[tuple[str, ...], ...]]

    @property
    def directories(self) -> str:
        """Where they are, as PATH has it."""
        return ":".join(dict.fromkeys(place.rpartition("/")[0] for place in self.places.values()))

    def place(self, name: str, new: Mapping[str, Change]) -> str | None:
        """Where the image's own is: the first, or, where that one was removed, the next that is as it was."""
        first = self.places.get(name)
        if first and new.get(first) == "removed":
            return next((paths[0] for paths in self.behind.get(name, ()) if not new.keys() & set(paths)), first)
        return first

    def paths(self, names: Collection[str]) -> dict[str, str]:
        """Names by all paths that lead to these programs."""
        found = {place: name for name, place in self.places.items() if name in names}
        return found | {path: name for name, paths in self.files.items() if name in names for path in paths}


async def look(box: Box) -> Programs:
    """The programs that are there now."""
    wanted = sorted(TOOLS.union(INTERPRETERS))
    said = await box.as_root(LIST, f"{box.image_path}:{SYSTEM_PATH}", *wanted, max_output_bytes=LIST_BYTES)
    found: dict[str, list[str]] = {}
    links: dict[str, tuple[str, ...]] = {}
    for line in said.stdout_text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "program":
            found.setdefault(rest.rpartition("/")[2], []).append(rest)
        elif kind == "link":
            path, _, file = rest.partition(":")
            links[path] = (f"/etc/alternatives/{path.rpartition('/')[2]}", file)
    places = {name: paths[0] for name, paths in found.items()}
    files = {name: links[path] for name, path in places.items() if path in links}
    behind = {name: tuple((path, *links.get(path, ())) for path in found.get(name, ())[1:]) for name in TOOLS}
    changed = await box.sandbox.changed_files()
    return Programs(places, files, None if changed is None else frozenset(changed), behind)


async def mend(box: Box, before: Programs) -> list[str]:
    """Puts the image's own programs back where an agent has changed them; returns notes on that.

    Where the provider can no longer tell what was changed, all tools and interpreters are put back.

    Raises:
        EpisodeFailure: `sandbox_lost`.
    """
    found = await box.sandbox.changed_files()
    if before.changed is None:
        return []
    if found is None:
        await _restore(box, {*before.paths(TOOLS.union(INTERPRETERS)), *LINKS, LOADER})
        return []
    new = _since(before, found)
    # First of all those by which everything else is looked at, from outside.
    tools = before.paths({name for name in TOOLS if before.place(name, new) == before.places.get(name)})
    done = await _restore(box, {*tools, *LINKS, LOADER} & new.keys())
    interpreters = before.paths(INTERPRETERS).keys() & new.keys()
    kinds = await _kinds(box, before.directories, [path for path in interpreters if new[path] != "removed"])
    done += await _restore(box, {path for path in interpreters if kinds.get(path) != "machine"})
    others = set(before.places.values()) & new.keys() - interpreters - set(done)
    kinds = await _kinds(box, "", [path for path in others if new[path] != "removed"])
    done += await _restore(box, {path for path, kind in kinds.items() if kind == "script"}, machine_only=True)
    return [f"programs of the image were changed, and put back: {', '.join(sorted(done))[:300]}"] if done else []


async def passed_over(box: Box, before: Programs) -> dict[str, str]:
    """Programs of the image that a forgery stands in front of, with their own paths."""
    new = _since(before, await box.sandbox.changed_files() or {})
    own = {name: before.place(name, new) or place for name, place in before.places.items()}
    places = (await look(box)).places
    ahead = {name: place for name, place in places.items() if own.get(name, place) != place}
    asked = {name: place for name, place in ahead.items() if name in INTERPRETERS}
    kinds = await _kinds(box, before.directories, list(asked.values()))
    others = {name: place for name, place in ahead.items() if name not in TOOLS and name not in asked}
    kinds |= await _kinds(box, "", [*others.values(), *(own[name] for name in others)])
    forged = {name for name, place in asked.items() if kinds[place] != "machine"}
    forged |= {name for name, place in others.items() if (kinds[place], kinds[own[name]]) == FORGERY}
    return {name: own[name] for name in ahead if name in TOOLS or name in forged}


async def front(box: Box, programs: Mapping[str, str]) -> str:
    """PATH by which these programs are those of the image; in front is a folder that is made for it."""
    folder = f"/.gym-{secrets.token_hex(6)}"
    await box.as_root(FRONT, folder, *(word for pair in programs.items() for word in pair))
    return f"{folder}:{box.image_path}"


def _since(before: Programs, found: Mapping[str, Change]) -> dict[str, Change]:
    """What has changed since; of programs, also those whose folder is gone."""
    new = {path: how for path, how in found.items() if path not in (before.changed or ())}
    behind = {path for places in before.behind.values() for paths in places for path in paths}
    for path in behind.union(before.paths(TOOLS.union(INTERPRETERS))):
        if any(new.get(str(folder)) == "removed" for folder in PurePosixPath(path).parents):
            new.setdefault(path, "removed")
    return new


async def _restore(box: Box, paths: set[str], *, machine_only: bool = False) -> list[str]:
    return await box.sandbox.restore(paths, machine_only=machine_only) if paths else []


async def _kinds(box: Box, directories: str, paths: list[str]) -> dict[str, str]:
    """`script`, `machine`, or `copy` of a program in one of the directories, by path."""
    if not paths:
        return {}
    said = await box.as_root(JUDGE, directories, *paths, max_output_bytes=LIST_BYTES)
    found = said.stdout_text.split()
    return dict(zip(paths, [*found, *["script"] * (len(paths) - len(found))], strict=True))
