"""Shell scripts that run in containers. They need a POSIX shell and the likes of coreutils, of busybox for example."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gym.sandbox.words import is_utf8

_WRAPPER = """
unset GYM_TOKEN
IFS= read -r GYM_TOKEN || exit 125
exec 3>&2 2>/dev/null
gym_killed() {
    GYM_KILLED=0
    for GYM_FILE in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
        [ -r "$GYM_FILE" ] || continue
        while read -r GYM_KEY GYM_VALUE; do
            [ "$GYM_KEY" != oom_kill ] || GYM_KILLED=$GYM_VALUE
        done <"$GYM_FILE"
    done
}
gym_killed
GYM_BEFORE=$GYM_KILLED
printf '%s\\n' "$GYM_TOKEN" >&3
( cd -- "$1" 2>&3 || exit 126; shift; exec "$@" 2>&3 3>&- )INPUT
GYM_CODE=$?
gym_killed
GYM_WORD=
[ "$GYM_KILLED" = "$GYM_BEFORE" ] || GYM_WORD=oom
printf '%s %s %s\\n' "$GYM_TOKEN" "$GYM_CODE" "$GYM_WORD"
printf '%s %s %s\\n' "$GYM_TOKEN" "$GYM_CODE" "$GYM_WORD" >&3
exit "$GYM_CODE"
"""

KILL = r"""
marked() {
    # Others, such as busybox, look no further than the first variable.
    case $(grep -V 2>/dev/null) in
        *GNU*)
            grep -lF -e "$1" /proc/[0-9]*/environ 2>/dev/null
            return
            ;;
    esac
    for file in /proc/[0-9]*/environ; do
        case $(cat "$file" 2>/dev/null) in *"$1"*) echo "$file" ;; esac
    done 2>/dev/null
}
left=200
while :; do
    found=
    for file in $(marked "$1"); do
        process=${file#/proc/}
        found=1
        kill -9 "${process%/environ}" 2>/dev/null
    done
    [ "$found" ] || break
    left=$((left - 1))
    [ "$left" -gt 0 ] || { echo "some do not end" >&2; exit 1; }
    sleep 0.02 2>/dev/null || sleep 1
done
for process in /proc/[0-9]*; do
    { true <"$process/environ"; } 2>/dev/null && continue
    { while read -r key value rest; do [ "$key" != Uid: ] || echo "$value"; done <"$process/status"; } 2>/dev/null
done
exit 0
"""
"""Kills every process that has $1 in its environment, until none is left. Without the right to look into the processes
of other users, it prints the numbers of these users: as them, it can."""


def wrapper(*, with_input: bool) -> str:
    """The script around each command: `$1` is where to start, the rest is the command. See `stream` for its marks.

    The token comes in the first line of standard input, where no process of the command can see it.
    """
    return _WRAPPER.replace("INPUT", "" if with_input else " </dev/null")


def as_utf8(cwd: str, argv: Sequence[str], script: str) -> list[str]:
    """Words that run `script` with `cwd` and `argv` as its arguments; the daemon's API carries UTF-8 only.

    What is not UTF-8 (in Python, half surrogates from `os.fsdecode`) travels as escapes that the shell resolves.
    """
    words = [cwd, *argv]
    if all(is_utf8(word) for word in words):
        return ["/bin/sh", "-c", script, "sh", *words]
    lines = ["set --"]
    for word in words:
        # An `x` at the end keeps newlines there from being cut off.
        escapes = "".join(f"\\0{byte:03o}" for byte in os.fsencode(word))
        lines.append(f"GYM_WORD=$(printf '%bx' '{escapes}'); set -- \"$@\" \"${{GYM_WORD%x}}\"")
    return ["/bin/sh", "-c", "\n".join(lines) + "\n" + script, "sh"]


RENEWED = "/dev/shm/.gym-renewed"
MAIN = f"""
trap exit TERM INT
is_number() {{ case $1 in "" | *[!0-9]*) return 1 ;; esac; }}
now=$(date +%s) && until=$((now + $1)) || exit 1
failures=0
while [ "$failures" -lt 20 ]; do
    now=$(date +%s)
    is_number "$now" || {{ failures=$((failures + 1)); continue; }}
    failures=0
    [ "$now" -lt "$until" ] || exit 0
    sleep $((until - now)) &
    wait $!
    renewed=
    [ ! -s {RENEWED} ] || read -r renewed <{RENEWED}
    is_number "$renewed" && until=$renewed
done
"""
"""The first process of a container, which lives for $1 seconds, or until the time that a renewal has set.

It is process 1, so nothing inside can kill it, whereas the child of an init process falls to `kill -9 -1`; and waiting,
it takes care of orphans as an init process does.
"""
