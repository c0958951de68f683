"""The skills of the sandbox's user, for a harness that knows none: a list that tells the model where to read each one.

Runs in the sandbox, with the harness's own Python.
"""

from __future__ import annotations

import importlib
from pathlib import Path

FOLDER = ".agents/skills"
HEAD_CHARACTERS = 16384
LIST = """

## Skills

These are instructions for some kinds of work. Where one fits the task, read its file before you begin.
"""


def described() -> str:
    """The list, as it follows a system prompt; empty where there are no skills."""
    told = [line for path in sorted((Path.home() / FOLDER).rglob("SKILL.md")) if (line := _told(path))]
    return "\n".join([LIST, *told]) if told else ""


def _told(path: Path) -> str:
    """Name, description and path; nothing for a file that has not the head of a skill."""
    yaml = importlib.import_module("yaml")
    try:
        with path.open(encoding="utf-8") as file:
            opening, head, *_ = file.read(HEAD_CHARACTERS).split("---\n", 2)
        fields = yaml.safe_load(head)
        name, description = fields["name"], " ".join(fields["description"].split())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return ""
    return "" if opening.strip() else f"- {name}: {description} ({path})"
