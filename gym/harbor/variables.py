"""`${VAR}` and `${VAR:-default}` in the values of a task.

A variable stands for its value in the environment of the user who runs the task. In `env` tables a template is the
whole value, as Harbor has it: `"a-${B}"` is literal text. In headers templates may stand anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

WHOLE = re.compile(r"\$\{(?P<name>[^}:]+)(?::-(?P<default>.*))?\}", re.DOTALL)
ANYWHERE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
ONLY_VARIABLES = re.compile(r"\s*(?:[A-Za-z]+\s+)?(?:\$\{[A-Za-z_][A-Za-z0-9_]*(?::-)?\}[\s:-]*)+")
"""A credential: an optional scheme, then variables without defaults."""


@dataclass(frozen=True)
class Filled:
    """Values with their variables filled in.

    Attributes:
        missing: Names of variables that are not set and have no default, by key of the value.
    """

    values: dict[str, str]
    missing: dict[str, str]


def fill_env(env: Mapping[str, str], environment: Mapping[str, str]) -> Filled:
    """The values of an `env` table; those whose variable is missing are left out."""
    filled = Filled({}, {})
    for key, text in env.items():
        match = WHOLE.fullmatch(text)
        if match is None:
            filled.values[key] = text
        elif (value := environment.get(match["name"], match["default"])) is not None:
            filled.values[key] = value
        else:
            filled.missing[key] = match["name"]
    return filled


def fill_headers(headers: Mapping[str, str], environment: Mapping[str, str]) -> Filled:
    """The values of a `headers` table; those with a missing variable are left out."""
    filled = Filled({}, {})
    for key, text in headers.items():
        found = [(match["name"], match["default"]) for match in ANYWHERE.finditer(text)]
        absent = [name for name, default in found if name not in environment and default is None]
        if absent:
            filled.missing[key] = absent[0]
        else:
            filled.values[key] = ANYWHERE.sub(lambda match: environment.get(match["name"], match["default"]), text)
    return filled
