"""A registry client of our own: a program named `npm` that installs a package without any registry."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gym.harness.recipes import Npm, Recipe

CLIENT = f"""#!{sys.executable}
import json, os, pathlib, sys

arguments = sys.argv[1:]
folder = pathlib.Path(arguments[arguments.index("--prefix") + 1])
with open(os.environ["INSTALLS"], "a") as file:
    file.write("installed\\n")
if os.environ.get("INSTALL_FAILS"):
    lines = ("npm error 404 no such package", "npm error A complete log of this run can be found in: x.log")
    print(*lines, sep="\\n", file=sys.stderr)
    (folder / "half").mkdir()
    sys.exit(1)
name, _, version = arguments[-1].rpartition("@")
package = folder / "node_modules" / name
package.mkdir(parents=True)
package.joinpath("package.json").write_text(json.dumps({{"version": os.environ.get("INSTALL_OTHER", version)}}))
package.joinpath("notes.md").write_text("notes")
program = package / "program"
program.write_text("#!/bin/sh\\necho " + os.environ.get("SAYS", "tool 1.2.3") + "\\n")
program.chmod(0o755)
"""

TOOL = Recipe(
    name="tool",
    version="1.2.3",
    parts=(Npm(("@scope/tool@1.2.3",)),),
    command=("bin/tool", "serve"),
    links=(("bin/tool", "node_modules/@scope/*/program"),),
    leave_out=("node_modules/**/*.md",),
)


@pytest.fixture
def installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the client on PATH, with a cache of its own. The file has a line for each time that it ran."""
    folder = tmp_path / "bin"
    folder.mkdir()
    client = folder / "npm"
    client.write_text(CLIENT, encoding="utf-8")
    client.chmod(0o755)
    counted = tmp_path / "installs.txt"
    counted.touch()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("INSTALLS", str(counted))
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))
    return counted
