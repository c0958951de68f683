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
BODY
GYM_CODE=$?
gym_killed
GYM_WORD=
[ "$GYM_KILLED" = "$GYM_BEFORE" ] || GYM_WORD=oom
printf '%s %s %s\\n' "$GYM_TOKEN" "$GYM_CODE" "$GYM_WORD"
printf '%s %s %s\\n' "$GYM_TOKEN" "$GYM_CODE" "$GYM_WORD" >&3
exit "$GYM_CODE"
"""

COMMAND = '( cd -- "$1" 2>&3 || exit 126; shift; exec "$@" 2>&3 3>&- )'

# Sets `line` to the part of $1, a file /proc/N/stat, from the state on. Names may have line breaks, and brackets.
_STAT = r"""
stat_of() {
    line=
    { while IFS= read -r part; do line="$line$part "; done <"$1"; } 2>/dev/null
    line=${line##*) }
}
"""

KILL = (
    f"{_STAT}"
    + r"""
mark=$1 sessions=' '
marked() {
    # Others, such as busybox, look no further than the first variable.
    case $(grep -V 2>/dev/null) in
        *GNU*)
            grep -lF -e "$mark" /proc/[0-9]*/environ 2>/dev/null
            return
            ;;
    esac
    for file in /proc/[0-9]*/environ; do
        case $(cat "$file" 2>/dev/null) in *"$mark"*) echo "$file" ;; esac
    done 2>/dev/null
}
find_tree() {
    tree=' ' table=
    for file in $(marked); do
        process=${file#/proc/}
        tree="$tree${process%/environ} "
    done
    for file in /proc/[0-9]*/stat; do
        stat_of "$file"
        set -- $line
        [ "$4" ] && [ "$1" != Z ] || continue
        process=${file#/proc/}
        table="$table ${process%/stat}:$2:$4"
    done
    grown=1
    while [ "$grown" ]; do
        grown=
        for entry in $table; do
            process=${entry%%:*} session=${entry##*:} parent=${entry#*:}
            case $tree in *" $process "*)
                case $sessions in *" $session "*) continue ;; esac
                [ "$session" = 0 ] || sessions="$sessions$session " grown=1
                continue
                ;;
            esac
            case $sessions in *" $session "*) tree="$tree$process " grown=1; continue ;; esac
            case $tree in *" ${parent%:*} "*) tree="$tree$process " grown=1 ;; esac
        done
    done
}
left=200
while :; do
    found=
    find_tree
    for process in $tree; do
        kill -9 "$process" 2>/dev/null && found=1
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
)
"""Kills every process that has $1 in its environment, what descends from it and what is in its sessions, until none is
left. Without the right to look into the processes of other users, it prints the numbers of these users: as them, it
can."""

CLEAR = (
    f"{_STAT}"
    + r"""
clear() {
    kill -9 -1
    stat_of "/proc/$$/stat"
    set -- $line
    began=${20} rounds=0 others=
    while :; do
        dying=
        for file in /proc/[0-9]*/stat; do
            process=${file#/proc/} process=${process%/stat}
            case $process in 1 | "$$") continue ;; esac
            stat_of "$file"
            set -- $line
            [ "${20}" ] && [ "$1" != Z ] || continue
            # The first process begins to sleep again.
            if ! kill -0 "$process"; then others="$others $process"
            elif [ "$2" != 1 ] || [ "${20}" -lt "$began" ]; then dying=1; fi
        done
        [ "$dying" ] || break
        rounds=$((rounds + 1)) others=
        # No pause: `sleep` is a program, and may be one of those that have to end.
        [ "$rounds" -lt 2000 ] || { echo "some do not end" >&3; return 1; }
    done
    for process in $others; do
        while read -r key value rest; do [ "$key" != Uid: ] || echo "$value"; done <"/proc/$process/status"
    done
    return 0
}
clear
"""
)
"""Kills every process but the first and the shell that runs this, at once, so that none can escape by making others.
What it may not kill belongs to other users, whose numbers it prints: as them, it can."""


def wrapper(body: str) -> str:
    """The script around each command: `$1` is where to start, the rest is the command. See `stream` for its marks.

    The token comes in the first line of standard input, where no process of the command can see it.
    """
    return _WRAPPER.replace("BODY", body)


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


RENEWED = "/dev/shm/.gym/until"
MAIN = f"""
trap '' HUP INT QUIT TERM
is_number() {{ case $1 in "" | *[!0-9]*) return 1 ;; esac; }}
now=$(date +%s) && until=$((now + $1)) && mkdir -m 700 "{RENEWED.rpartition("/")[0]}" || exit 1
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

It is process 1 and takes no signals, so nothing inside can kill it, whereas the child of an init process falls to
`kill -9 -1`; and waiting, it takes care of orphans as an init process does. It is always root's, and so is the folder
of the renewal.
"""
