"""Where our own small scripts find programs in a sandbox: never where whoever works there may put others.

They run as root, and a directory in the image's PATH may be writable. So they look in the system's directories only;
for an image that has its programs elsewhere, the places are settled before anybody else was there.
"""

from __future__ import annotations

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED = (
    *("cat", "chmod", "chown", "date", "find", "grep", "head", "id", "ln", "ls", "mkdir", "mv", "readlink", "rm"),
    *("sh", "sleep", "stat", "tail", "tar", "test"),
)

FIND = rf"""
for name in {" ".join(NEEDED)}; do
    (PATH={SYSTEM_PATH}; command -v "$name" >/dev/null) && continue
    place=$(command -v "$name") || continue
    case $place in /*) echo "${{place%/*}}" ;; esac
done
"""
"""Prints the directories of the programs that the system's directories lack; to be run with the image's own PATH."""


def path_of(said: str) -> str:
    """PATH for our scripts, from what `FIND` printed."""
    return ":".join(dict.fromkeys([SYSTEM_PATH, *said.split("\n")[:-1]]))
