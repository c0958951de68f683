"""Command-line overrides: parsed by Hydra, checked by us, handed on to Hydra.

A group choice (`agent=codex`) is checked against the group's options. A value (`a.b=1`) is handed to Hydra as a forced
one: whether the key exists is decided by the schema after inheritance, where a template's keys are known, and where an
unknown key is refused however many `+` it had.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from gym.composition import groups
from gym.composition.redact import is_secret_name
from gym.errors import Problem, closest, edit_distance

WHERE = "command line"
CHOICES = (*groups.GROUPS, "experiment", groups.ENV_GROUP)


@dataclass(frozen=True)
class Overrides:
    """Parsed overrides.

    Attributes:
        choices: Option of each group that is chosen.
        values: The other overrides, in order.
        deleted: Groups removed by `~group`.
    """

    choices: dict[str, str]
    values: list[Override]
    deleted: list[str]

    def key_paths(self) -> list[tuple[Override, tuple[str, ...]]]:
        """Each value override with its key as path."""
        return [(item, tuple(item.key_or_group.split("."))) for item in self.values]

    def for_hydra(self, chosen: frozenset[str]) -> list[str]:
        """The overrides as Hydra takes them. `chosen`: groups that the files or the primary config choose."""
        lines = [f"{'' if group in chosen else '+'}{group}={_quoted(name)}" for group, name in self.choices.items()]
        lines += [f"~{group}" for group in self.deleted]
        return lines + [_forced(item) for item in self.values]


def as_typed(item: Override) -> str:
    """An override as a message names it: as it was typed, without the value of a secret."""
    line = item.input_line or ""
    key = line.partition("=")[0]
    name = key.rpartition(".")[2].lstrip("+~")
    return f"{WHERE}: {key}=***" if is_secret_name(name) or _resembles_secret(name) else f"{WHERE}: {line}"


def _resembles_secret(name: str) -> bool:
    """True for a mistyped name of a secret, such as `api_kye`, whose value must not be shown either."""
    last = re.split(r"[_-]", name.lower())[-1]
    if last == "tokens":  # a count, as in `max_policy_tokens`
        return False
    return any(edit_distance(last, word) == 1 for word in ("key", "token", "secret", "password", "authorization"))


def _quoted(name: str) -> str:
    return (
        name if all(letter.isalnum() or letter in "_-./" for letter in name) else "'" + name.replace("'", "\\'") + "'"
    )


def _forced(item: Override) -> str:
    line = item.input_line or ""
    return line if line.startswith(("+", "~", "hydra")) else f"++{line}"


def parse(arguments: Sequence[str]) -> tuple[Overrides, list[Problem]]:
    """Parses and checks the overrides of one run.

    Returns:
        The good overrides, and what is wrong with the others: no override at all, an unknown option, a list where one
        choice is wanted, several values without a sweep.
    """
    problems: list[Problem] = []
    parsed = Overrides({}, [], [])
    for index, argument in enumerate(arguments):
        try:
            item = OverridesParser.create().parse_override(argument)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            problems.append(_problem(f"cannot read `{argument}`: {reason}", "write key=value", index))
            continue
        if not item.key_or_group:
            problems.append(_problem(f"cannot read `{argument}`: no key", "write key=value", index))
        elif item.key_or_group not in CHOICES:
            _add_value(parsed, item, problems, index)
        elif item.is_delete():
            parsed.deleted.append(item.key_or_group)
        elif (problem := check_choice(item.key_or_group, item.value(), item.is_sweep_override(), index)) is not None:
            problems.append(problem)
        else:
            parsed.choices[item.key_or_group] = str(item.value())
    return parsed, problems


def _add_value(parsed: Overrides, item: Override, problems: list[Problem], index: int) -> None:
    if item.is_sweep_override():
        problems.append(
            _problem(
                f"`{item.input_line}` gives several values",
                f"add -m to sweep over them, or write {item.key_or_group}=[...] for a list",
                index,
                item.key_or_group,
            )
        )
    elif item.package is not None:
        problems.append(_problem(f"no config group `{item.key_or_group}`", _kinds(item.key_or_group), index))
    else:
        parsed.values.append(item)


def _kinds(given: str) -> str:
    near = closest(given, CHOICES[:-1])
    return f"closest: `{near}`" if near else "groups: " + ", ".join(CHOICES[:-1])


def check_choice(group: str, value: Any, several: bool, index: int) -> Problem | None:
    """What is wrong with a group choice, or None."""
    if several:
        return _problem(f"`{group}` is given several options", "add -m to sweep over them", index, group)
    if isinstance(value, list):
        names = ",".join(map(str, value))
        return _problem(f"one {group} per run", f"for a sweep write {group}={names} with -m", index, group)
    if not isinstance(value, str | int):
        return _problem(f"wants the name of an option, got `{value}`", "", index, group)
    name = str(value)
    if groups.option(group, name) is not None:
        return None
    return unknown_option(group, name, index)


def unknown_option(group: str, name: str, index: int = 0) -> Problem:
    """The problem of an option that does not exist: the closest name, and the list."""
    available = list(groups.options(group))
    near = closest(name, available)
    listed = f"available: {', '.join(available)}" if available else f"there is no {group} yet"
    if near is not None:
        fix = f"closest: `{near}`; {listed}"
    else:
        place = f"experiments/{name}/run.yaml" if group == "experiment" else f"conf/{group}/{name}.yaml"
        fix = f"{listed}; to add one, write {place} in your project"
    data: dict[str, object] = {
        "kind": group, "given": name, "suggestions": [near] if near else [], "available": available,
    }  # fmt: skip
    return _problem(f"no {group} `{name}`", fix, index, group, data)


def _problem(what: str, fix: str, index: int, key: str = "", data: dict[str, object] | None = None) -> Problem:
    return Problem(what, fix, WHERE, key, (500_000, index), data or {})
