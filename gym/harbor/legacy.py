"""Deprecated spellings of task.toml, rewritten into today's: `version`, `memory`, `storage`, `allow_internet`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym.harbor.toml import KeyPath

SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[GMK])\s*", re.IGNORECASE)
MEBIBYTES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
SIZES = ("memory", "storage")


@dataclass
class Modern:
    """A task.toml in today's words.

    Attributes:
        renamed: Key that stands in the file, by the key that it became.
        problems: Key, what is wrong, and what to do.
    """

    data: dict[str, Any]
    renamed: dict[KeyPath, KeyPath] = field(default_factory=dict)
    problems: list[tuple[KeyPath, str, str]] = field(default_factory=list)


def modern(data: Mapping[str, Any]) -> Modern:
    """Rewrites deprecated keys; one that contradicts the key that replaced it is a problem."""
    made = Modern(_copy(data))
    if "version" in made.data:
        _replace(made, made.data, (), "version", "schema_version", made.data["version"])
    for path, table in _environments(made.data):
        for name in SIZES:
            if name in table:
                _replace(made, table, path, name, f"{name}_mb", _mebibytes(made, (*path, name), table[name]))
        if "allow_internet" in table:
            _internet(made, path, table)
    return made


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _environments(data: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    steps = data.get("steps")
    count = len(steps) if isinstance(steps, list) else 0
    many = [("steps", str(index), "verifier", "environment") for index in range(count)]
    for path in (("environment",), ("verifier", "environment"), *many):
        value: Any = data
        for part in path:
            if isinstance(value, list):
                value = value[int(part)]
            else:
                value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict):
            yield path, value


def _replace(made: Modern, table: dict[str, Any], path: KeyPath, old: str, new: str, value: Any) -> None:
    was = table.pop(old)
    if table.setdefault(new, value) != value:
        what = f"`{old} = {was!r}` contradicts `{new} = {table[new]!r}`"
        made.problems.append(((*path, old), what, f"keep `{new}`"))
    else:
        made.renamed[*path, new] = (*path, old)


def _mebibytes(made: Modern, key: KeyPath, value: Any) -> Any:
    match = SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        made.problems.append((key, f"`{value}` is no size", f'write {key[-1]}_mb = 2048 (or, deprecated, "2G")'))
        return None
    return int(float(match["number"]) * MEBIBYTES[match["unit"].upper()])


def _internet(made: Modern, path: KeyPath, table: dict[str, Any]) -> None:
    allowed = table.pop("allow_internet")
    key = (*path, "allow_internet")
    if not isinstance(allowed, bool):
        made.problems.append((key, "wants true or false", 'write network_mode = "public" or "no-network"'))
    elif "network_mode" not in table and "allowed_hosts" not in table:
        table["network_mode"] = "public" if allowed else "no-network"
        made.renamed[*path, "network_mode"] = key
    elif allowed == (table.get("network_mode") == "no-network"):
        what = f"`allow_internet = {str(allowed).lower()}` contradicts `network_mode` and `allowed_hosts`"
        made.problems.append((key, what, "leave it out; network_mode replaced it"))
