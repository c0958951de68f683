"""A Python interpreter that runs wherever its folder is put, made from the one that runs Gym."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from gym.harness import libraries

NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip")
STATIC = ("config-*", "*.a", "__pycache__")

# A library that was found through LD_LIBRARY_PATH is loaded by then; what the harness starts must not find it.
SITECUSTOMIZE = """\
import os

_outer = os.environ.pop("GYM_OUTER_LIBRARY_PATH", None)
if _outer is not None:
    os.environ.pop("LD_LIBRARY_PATH", None)
    if _outer:
        os.environ["LD_LIBRARY_PATH"] = _outer
"""

START = f"""\
#!/bin/sh
home=$(dirname "$(dirname "$(readlink -f "$0")")")/python
export GYM_OUTER_LIBRARY_PATH="${{LD_LIBRARY_PATH:-}}"
export LD_LIBRARY_PATH="$home/libraries${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$home/bin/{NAME}" "$@"
"""


def executable() -> str:
    """The interpreter that installs: the running one, with its pip."""
    return sys.executable


def identity() -> str:
    """What tells one interpreter from another: its release, and where it comes from."""
    return f"{sys.version}|{sys.base_prefix}"


def copy(bundle: Path) -> Path:
    """Copies interpreter, standard library and the shared libraries they need into `bundle/python`.

    Returns:
        The folder for packages.
    """
    home = bundle / "python"
    program = Path(sys.base_prefix, "bin", NAME)
    (home / "bin").mkdir(parents=True)
    shutil.copy2(program.resolve(), home / "bin" / NAME)
    library = home / "lib" / NAME
    shutil.copytree(
        sysconfig.get_path("stdlib"), library, symlinks=False, ignore=shutil.ignore_patterns(*LEFT_OUT, *STATIC)
    )
    packages = library / "site-packages"
    packages.mkdir()
    (packages / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    extensions = sorted((library / "lib-dynload").glob("*.so"))
    libraries.copy_needed([home / "bin" / NAME, *extensions], home / "libraries", Path(sys.base_prefix, "lib"))
    start = bundle / "bin" / "python"
    start.parent.mkdir(exist_ok=True)
    start.write_text(START, encoding="utf-8")
    start.chmod(0o755)
    return packages


def version_of(packages: Path, name: str) -> str:
    """The version of an installed package, or `nothing`."""
    found = [
        item.version
        for item in importlib.metadata.distributions(path=[str(packages)])
        if re.sub(r"[-_.]+", "-", item.name).lower() == re.sub(r"[-_.]+", "-", name).lower()
    ]
    return found[0] if found else "nothing"
