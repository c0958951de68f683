"""The files and commands on a page of the documentation, taken out of it and run as they stand.

A fenced block after a line that is nothing but a path in backticks is that file. A `sh` block is a command. A `text`
block that comes next is what the command prints: a line of `...` stands for any lines, `...` in a line for any text,
dates and durations for any others, and spaces for any number of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"(?:^`(?P<path>[\w./-]+)`\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "..."
VARYING = re.compile(r"\.\.\.|\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d|[\d.]+ s\b|(?<=^sandbox: ).*")
"""What need not be the same in a line: what is left out, dates, durations, what isolates on this machine."""


@dataclass
class Command:
    """A command of a page, and the output that the page shows for it."""

    text: str
    output: list[str] = field(default_factory=list)


@dataclass
class Page:
    """What a page tells its reader to write and to run."""

    files: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)


def read(path: Path, section: str = "") -> Page:
    """The files and commands of a page, or of one of its `## ` sections."""
    text = path.read_text(encoding="utf-8")
    if section:
        text = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    page, before = Page(), ""
    for block in FENCE.finditer(text):
        if block["path"]:
            page.files[block["path"]] = block["text"]
        elif block["language"] == "sh":
            page.commands.append(Command(block["text"]))
        elif block["language"] == "text" and before == "sh":
            page.commands[-1].output = block["text"].splitlines()
        before = block["language"]
    return page


def write(page: Page, folder: Path) -> None:
    """Writes the files of a page into a project."""
    for name, text in page.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would who has this environment active. Both streams become one output."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    for name, arguments in {"python": "", "python3": "", "gym": "-m gym.cli.main "}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n', encoding="utf-8")
        program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("POLICY_", "GYM_"))}
    environment |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def missing_from(output: str, shown: list[str]) -> list[str]:
    """The lines of a page that the output does not have in this order, and without others where no `...` is between."""
    lines = [_spaced(line) for line in output.splitlines()]
    position, free, missing = 0, True, []
    for line in shown:
        if line.strip() == LEFT_OUT:
            free = True
            continue
        ahead = range(position, len(lines) if free else min(position + 1, len(lines)))
        pattern = _pattern(_spaced(line))
        found = next((index for index in ahead if pattern.fullmatch(lines[index])), None)
        if found is None:
            missing.append(line)
        else:
            position, free = found + 1, False
    return missing


def _spaced(line: str) -> str:
    return " ".join(line.split())


def _pattern(shown: str) -> re.Pattern[str]:
    parts, position = [], 0
    for match in VARYING.finditer(shown):
        meant = re.sub(r"[\d.]+", r"[\\d.]+", match[0]) if match[0][0].isdigit() else ".*"
        parts += [re.escape(shown[position : match.start()]), meant]
        position = match.end()
    return re.compile("".join([*parts, re.escape(shown[position:])]))
