"""What a configuration may not take out of Gym's hands: arguments and settings that Gym gives a harness itself.

Given twice, most of them would silently win over Gym's: a task would lose its tools, or a run its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

TOOLS_OF_TASKS = "mcp__"
"""Begins the names of the tools of tasks, which only the task may withhold."""


def owned(ours: str, **settings: str) -> dict[str, str]:
    """Arguments by name, each with the setting to use instead; empty for one that Gym decides by itself.

    Args:
        ours: Names, apart by spaces, that there is no setting for.
        settings: The same by setting.
    """
    named = {"": f"--help -h --version -- {ours}", **settings}
    return {name: setting for setting, names in named.items() for name in names.split()}


def refused_arguments(given: Iterable[str], own: Mapping[str, str]) -> Iterator[str]:
    """Why arguments cannot be given, one line each. A value may follow an argument of one letter at once (`-cx=1`)."""
    for argument in given if own else ():
        name = argument.partition("=")[0]
        letter = argument[:2] if argument[:1] == "-" and argument[1:2] != "-" else name
        if (found := next((it for it in (name, letter) if it in own), None)) is not None:
            yield f"extra_args: `{found}` is not for you to set; {_instead(own[found])}"
        elif TOOLS_OF_TASKS in argument:
            yield f"extra_args: `{argument}` names tools of the task; these are the task's to give"


def refused_settings(field: str, given: Mapping[str, Any], own: Mapping[str, str]) -> Iterator[str]:
    """Why settings cannot be given, one line each.

    Args:
        field: Where they are given.
        own: Keys with dots for levels, and the setting to use instead.
    """
    for key, setting in own.items():
        *levels, last = key.split(".")
        block: Any = given
        for level in levels:
            block = block.get(level) if isinstance(block, Mapping) else None
        if isinstance(block, Mapping) and last in block:
            yield f"{field}: `{key}` is not for you to set; {_instead(setting)}"


def no_mappings(field: str, given: Mapping[str, Any], mappings: Iterable[str]) -> Iterator[str]:
    """Which settings are to be merged into mappings, and are none."""
    for name in mappings:
        if name in given and not isinstance(given[name], Mapping):
            yield f"{field}: `{name}` has to be a mapping"


def _instead(setting: str) -> str:
    return f"use `{setting}` of the agent" if setting else "Gym decides it for each activation"
