"""Who set a key: every file and override that had a say, in order of merging, and which one won."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gym.composition.compose import flat
from gym.composition.groups import GROUPS, option
from gym.composition.origins import MISSING, Setting
from gym.composition.roots import shown
from gym.errors import Problem, UserError, closest
from gym.planning.resolve import Resolved
from gym.planning.settings import RunSettings

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Explained:
    """One key, its effective value, and who set it; the last one won.

    Attributes:
        note: What there is to say where nobody set it.
    """

    key: str
    value: Any
    settings: tuple[Setting, ...]
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{self.key} = {_text(self.value)}" + (f"   ({self.note})" if self.note else "")]
        width = max((len(item.where) for item in self.settings), default=0)
        for item in self.settings:
            mark, note = "*" if item is self.settings[-1] else " ", f"   ({item.note})" if item.note else ""
            lines.append(f"{mark} {item.where:{width}}  {_text(item.value)}{note}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON."""
        set_by = [
            {"where": item.where, "value": item.value, "note": item.note, "wins": item is self.settings[-1]}
            for item in self.settings
        ]
        return {"key": self.key, "value": self.value, "note": self.note, "set_by": set_by}


def explain(resolved: Resolved, key: KeyPath) -> list[Explained]:
    """Explains a key; for one with keys below it, each of them.

    Raises:
        UserError: No such key; with the closest one.
    """
    if len(key) == 1 and key[0] in (*GROUPS, "experiment") and key[0] not in resolved.composed.values:
        return [_group(resolved, key[0])]
    value = _at(resolved.composed.values, key)
    if value is MISSING:
        return [_default(resolved, key)]
    if isinstance(value, Mapping) and value:
        return [_leaf(resolved, (*key, *rest)) for rest in flat(value)]
    return [_leaf(resolved, key)]


def _leaf(resolved: Resolved, key: KeyPath) -> Explained:
    settings = tuple(
        Setting(item.where, _redacted(resolved, key, item.value), item.order, item.note)
        for item in resolved.composed.origins.settings(key)
    )
    value = _at(resolved.values, key)
    if value is MISSING:  # of a template or a free variable, which stay as they were written
        value = _at(resolved.composed.values, key)
    return Explained(".".join(key), _redacted(resolved, key, value), settings)


def _redacted(resolved: Resolved, key: KeyPath, value: Any) -> Any:
    """The value as it may be shown at its place. A template's place is that of an instance of its implementation."""
    place = _schema_key(resolved, key)
    for part in reversed(place):
        value = {part: value}
    return _at(resolved.redactor.mapping(value), place)


def _schema_key(resolved: Resolved, key: KeyPath) -> KeyPath:
    if key[0] in resolved.instances or len(key) < 4:
        return key
    same = (item for item in resolved.instances.values() if item.key[1:] == key[1:3])
    heir = next(same, None)
    return (heir.name, *key[1:]) if heir else key


def _group(resolved: Resolved, group: str) -> Explained:
    name = resolved.composed.choices.get(group)
    chosen = option(group, name) if name and name != "None" else None
    if chosen is None:
        return Explained(group, None, (), "nothing is chosen in this config group")
    return Explained(group, name, (), f"config group; this choice is {shown(chosen.path)}")


def _default(resolved: Resolved, key: KeyPath) -> Explained:
    """A setting that nobody set: the default of its schema."""
    found, rest = _typed(resolved, key)
    value = _at(found, rest) if found is not None else MISSING
    if value is MISSING or (not rest and len(key) == 1):
        raise UserError(_unknown(resolved, key))
    return Explained(".".join(key), _redacted(resolved, key, value), (), "the default; nobody set it")


def _typed(resolved: Resolved, key: KeyPath) -> tuple[Any, KeyPath]:
    """The settings that a key belongs to, with their defaults, and the path within them."""
    if key[0] in RunSettings.model_fields:
        return resolved.settings.model_dump(mode="json"), key
    if (instance := resolved.instances.get(key[0])) is not None and key[:3] == instance.key:
        return instance.config.model_dump(mode="json"), key[3:]
    if (component := resolved.components.get(key[0])) is not None:
        return component.config.model_dump(mode="json"), key[1:]
    return None, key


def _at(value: Any, key: KeyPath) -> Any:
    for part in key:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def _unknown(resolved: Resolved, key: KeyPath) -> Problem:
    given = ".".join(key)
    near = _elsewhere(resolved, key) or _nearest(resolved, key)
    fix = f"did you mean `{near}`?" if near else "`gym env resolve` prints the keys"
    data: dict[str, object] = {"kind": "unknown_key", "given": given, "suggestions": [near] if near else []}
    return Problem(f"no key `{given}`", fix, "command line", given, data=data)


def _elsewhere(resolved: Resolved, key: KeyPath) -> str | None:
    """The full path of a key that was given without its beginning, as `max_steps`; of what starts, if it is there."""
    everything = [*flat(resolved.composed.values), *_defaults(resolved)]
    everything.sort(key=lambda path: path[0] not in resolved.instances and path[0] not in resolved.components)
    ending = next((path for path in everything if path[-len(key) :] == key), None)
    return ".".join(ending) if ending else None


def _defaults(resolved: Resolved) -> Iterator[KeyPath]:
    for item in resolved.instances.values():
        yield from ((*item.key, name) for name in type(item.config).model_fields)


def _nearest(resolved: Resolved, key: KeyPath) -> str | None:
    """The key with its first unknown part replaced by the closest one of that place."""
    known = {path[: length + 1] for path in flat(resolved.composed.values) for length in range(len(path))}
    known |= {(name,) for name in (*RunSettings.model_fields, *GROUPS)} | set(_defaults(resolved))
    length = next(length for length in range(1, len(key) + 1) if key[:length] not in known)
    parent = key[: length - 1]
    names = [path[length - 1] for path in known if len(path) == length and path[: length - 1] == parent]
    near = closest(key[length - 1], names)
    if near is None and length == len(key) == 1:
        ending = closest(key[0], {path[-1] for path in known})
        return _elsewhere(resolved, (ending,)) if ending else None
    if near is None:
        return None
    whole = (*parent, near, *key[length:])
    return ".".join(whole if whole in known else (*parent, near))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
