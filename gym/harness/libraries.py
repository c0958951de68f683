"""The shared libraries that a program needs beside the C library, so that it also runs where an image lacks them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

OF_THE_SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|nsl|crypt)\.so).*")
"""Libraries that belong to the C library: a copy of another release would not fit."""

# The image's own C++ library is taken where there is one: it fits its C library. What was found through the variable is
# loaded by the time that the second script runs; what the harness starts must not find it.
START_NODE = """\
#!/bin/sh
home=$(dirname "$(dirname "$(readlink -f "$0")")")
for folder in /lib/*-linux-gnu /usr/lib/*-linux-gnu /lib64 /usr/lib64 /usr/lib; do
    [ -e "$folder/libstdc++.so.6" ] && exec "$home/node" "$@"
done
export GYM_OUTER_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"
export LD_LIBRARY_PATH="$home/libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$home/node" --import "$home/libraries/restore.mjs" "$@"
"""
RESTORE = """\
const outer = process.env.GYM_OUTER_LIBRARY_PATH;
delete process.env.GYM_OUTER_LIBRARY_PATH;
if (outer) process.env.LD_LIBRARY_PATH = outer;
else delete process.env.LD_LIBRARY_PATH;
"""


def copy_needed(objects: Sequence[Path], target: Path, beside: Path | None = None) -> None:
    """Copies what programs and libraries are linked to into a new folder, but for the C library.

    Args:
        objects: The programs and libraries.
        target: The folder.
        beside: Where they find libraries of their own.
    """
    target.mkdir()
    env = os.environ if beside is None else {**os.environ, "LD_LIBRARY_PATH": str(beside)}
    listed = subprocess.run(["ldd", *map(str, objects)], env=env, capture_output=True, text=True, check=False).stdout
    for name, path in sorted(set(re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE))):
        if not OF_THE_SYSTEM.fullmatch(name):
            shutil.copy2(path, target / name)


def own_node(folder: Path) -> None:
    """Makes `bin/node` of a bundle, if there is a Node among its packages: it also runs in images without C++."""
    found = sorted((folder / "node_modules").glob("node-linux-*/bin/node"))
    if not found:
        return
    (folder / "node").hardlink_to(found[0])
    copy_needed([folder / "node"], folder / "libraries")
    (folder / "libraries" / "restore.mjs").write_text(RESTORE, encoding="utf-8")
    start = folder / "bin" / "node"
    start.parent.mkdir(exist_ok=True)
    start.write_text(START_NODE, encoding="utf-8")
    start.chmod(0o755)
    found[0].unlink()
