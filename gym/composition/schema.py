"""What a settings class accepts, in our words: errors, expectations, tables of fields, JSON Schema.

Where a schema has alternatives, an error is told once: for the alternative that was meant, or for all together. Values
of secret settings are never quoted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.config import JsonDict
from pydantic_core import core_schema

from gym.composition.credentials import MASK, is_secret_name, short, shown
from gym.composition.places import (
    Schema,
    Spot,
    alternatives,
    listed,
    one_of,
    options,
    phrase,
    schema_of,
    spots_at,
    step,
)
from gym.errors import closest, did_you_mean

KeyPath = tuple[str, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)

SECRET: JsonDict = {"secret": True}
"""Marks a setting whose value is never shown: `Field(..., json_schema_extra=SECRET)`."""
_STANDARD = frozenset(get_args(core_schema.ErrorType)) - {"value_error", "assertion_error"}


@dataclass(frozen=True)
class Finding:
    """One value that does not fit.

    Attributes:
        key: Path of the setting, from the model's root.
        what: What is wrong, in one line.
        fix: What to do about it; may be empty.
        data: The same facts for machines: `kind`, and `given`, `suggestions`, `available` or `expected`.
    """

    key: KeyPath
    what: str
    fix: str = ""
    data: dict[str, object] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Setting:
    """One row of a settings class's table.

    Attributes:
        name: Dotted; `[]` stands for each item of a list, `<key>` for each key of a mapping.
        type: What fits, such as `an integer of at least 1 or null`.
        default: As JSON data; None as well where `required`.
        operational: May change when a run continues.
        secret: Marked so, or text that is named so.
    """

    name: str
    type: str
    default: Any
    required: bool
    description: str
    operational: bool
    secret: bool


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema of a settings class, for editors; marks are its keywords `operational` and `secret`."""
    return copy.deepcopy(schema_of(model))


def is_operational(model: type[BaseModel], key_path: Sequence[str]) -> bool:
    """Whether a setting, or one that it is part of, may change when a run continues. False for unknown keys."""
    spots = spots_at(model, key_path)
    return bool(spots) and all(spot.operational for spot in spots)


def is_secret(model: type[BaseModel], key_path: Sequence[str]) -> bool:
    """Whether a setting, or one that it is part of, is marked as secret, is a `SecretStr`, or is text named so."""
    return _is_secret(key_path, spots_at(model, key_path))


def expectation(model: type[BaseModel], key_path: Sequence[str]) -> str:
    """What fits a setting, such as `an integer of at least 1`; empty for unknown keys."""
    spots = spots_at(model, key_path)
    return phrase(spots, schema_of(model)) if spots else ""


def check(model: type[ModelT], values: Mapping[str, Any]) -> tuple[ModelT | None, list[Finding]]:
    """The settings, or everything that is wrong with them: one finding a key."""
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        root = schema_of(model)
        errors = [_Error(e["type"], e["loc"], e["msg"], e["input"], e.get("ctx", {})) for e in error.errors()]
        spots = list(alternatives(root, root))
        faults = _settle(errors, 0, _Place((), values, spots, spots), root)
        return None, [_finding(error, place, root) for error, place in faults]


def fields(model: type[BaseModel]) -> list[Setting]:
    """The settings of a class in order, nested ones after the one that they are part of."""
    root = schema_of(model)
    return list(_settings(list(alternatives(root, root)), (), root, ()))


def _settings(spots: Sequence[Spot], path: KeyPath, root: Schema, seen: tuple[Schema, ...]) -> Iterator[Setting]:
    """The keys of the mappings among `spots`, and what is below them. `seen` ends the tour of recursive classes."""
    spots = [spot for spot in spots if not any(spot.schema is schema for schema in seen)]
    seen = (*seen, *(spot.schema for spot in spots))
    for key in dict.fromkeys(key for spot in spots for key in spot.schema.get("properties", {})):
        having = [spot for spot in spots if key in spot.schema.get("properties", {})]
        below = step(having, key, root)
        yield _setting((*path, key), key, having, below, root)
        yield from _settings(below, (*path, key), root, seen)
    for spot in spots:
        if isinstance(spot.schema.get("items"), Mapping):
            yield from _settings(step([spot], "0", root), (*path[:-1], f"{path[-1]}[]"), root, seen)
        elif isinstance(spot.schema.get("additionalProperties"), Mapping):
            yield from _settings(step([spot], "<key>", root), (*path, "<key>"), root, seen)


def _setting(path: KeyPath, key: str, having: Sequence[Spot], below: Sequence[Spot], root: Schema) -> Setting:
    declared = [spot.schema["properties"][key] for spot in having]
    nullable = any(choice.get("type") == "null" for schema in declared for choice in schema.get("anyOf", ()))
    return Setting(
        ".".join(path),
        phrase(below, root) + (" or null" if nullable and below else ""),
        declared[0].get("default"),
        all(key in spot.schema.get("required", ()) for spot in having),
        next((spot.description for spot in below if spot.description), ""),
        all(spot.operational for spot in below),
        _is_secret((key,), below),
    )


def _is_secret(key_path: Sequence[str], spots: Sequence[Spot]) -> bool:
    """Marks decide; so do names, except for numbers and switches."""
    text = not spots or any(spot.schema.get("type") not in ("integer", "number", "boolean") for spot in spots)
    return any(spot.secret for spot in spots) or (text and any(map(is_secret_name, key_path)))


@dataclass(frozen=True)
class _Error:
    """One of pydantic's errors."""

    type: str
    loc: tuple[int | str, ...]
    msg: str
    input: Any
    ctx: Mapping[str, Any]

    @property
    def has_own_words(self) -> bool:
        """True for errors that a validator of the class raised itself, and for keys of mappings."""
        pydantics = self.type in _STANDARD or self.msg.startswith("Input ")
        return not pydantics or self.loc[-1:] == ("[key]",)


@dataclass(frozen=True)
class _Place:
    """A place in the values: its path, what is there, what may be there, and what the mapping around it may be."""

    path: KeyPath
    value: Any
    spots: list[Spot]
    around: list[Spot]


Faults = Iterator[tuple[_Error, _Place]]
Groups = Mapping[int | str, list[_Error]]


def _settle(errors: Sequence[_Error], depth: int, place: _Place, root: Schema) -> Faults:
    """One error for each key, among errors that share the first `depth` parts of their location."""
    if here := [error for error in errors if len(error.loc) == depth]:
        yield here[0], place
    groups: dict[int | str, list[_Error]] = {}
    for error in errors:
        if len(error.loc) > depth:
            groups.setdefault(error.loc[depth], []).append(error)
    if len(place.spots) > 1 and groups:
        yield from _settle_alternatives(groups, depth, place, root)
        return
    for part, group in groups.items():
        is_absent = len(group[0].loc) == depth + 1 and group[0].type == "missing"
        yield from _settle(group, depth + 1, _below(place, part, root, is_absent), root)


def _settle_alternatives(groups: Groups, depth: int, place: _Place, root: Schema) -> Faults:
    """The errors of the alternative that was meant: the right kind of value, fewest errors. If none: one for all."""

    def fits(group: Sequence[_Error]) -> bool:
        return all(len(error.loc) > depth + 1 or error.has_own_words for error in group)

    meant = {tag: group for tag, group in groups.items() if fits(group)}
    if not meant:
        yield next(iter(groups.values()))[0], place
        return
    tag = min(meant, key=lambda tag: len(meant[tag]))
    kind = "array" if isinstance(place.value, list | tuple) else "object"
    chosen = [spot for spot in place.spots if str(tag) in spot.names]
    chosen = chosen or [spot for spot in place.spots if spot.schema.get("type") == kind]
    yield from _settle(meant[tag], depth + 1, replace(place, spots=chosen[:1]), root)


def _below(place: _Place, part: int | str, root: Schema, is_absent: bool) -> _Place:
    """The place one step down. A part that is no key of the value is pydantic's name for a kind of schema."""
    value = place.value
    if isinstance(value, Mapping):
        found = part in value
    else:
        found = isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
    if not found and not is_absent:
        return place
    spots = step(place.spots, str(part), root)
    return _Place((*place.path, str(part)), value[part] if found else None, spots, place.spots)


def _finding(error: _Error, place: _Place, root: Schema) -> Finding:
    match error.type:
        case "extra_forbidden" | "invalid_key":
            return _unknown_key(place)
        case "missing":
            about = next((spot.description for spot in place.spots if spot.description), "")
            return _missing(place.path, phrase(place.spots, root), about)
        case "union_tag_not_found" | "union_tag_invalid":
            return _wrong_tag(error, place, root)
    if error.has_own_words:
        return Finding(place.path, _own_words(error, place), data={"kind": "wrong_value"})
    choices = [choice for spot in place.spots for choice in options(spot.schema)]
    return _wrong_value(place, phrase(place.spots, root), error.input, choices)


def _unknown_key(place: _Place) -> Finding:
    given = place.path[-1]
    known = list(dict.fromkeys(key for spot in place.around for key in spot.schema.get("properties", {})))
    near = closest(given, known)
    fix = f"did you mean `{near}`?" if near else f"known keys: {listed(known)}" if known else "no key is known here"
    data: dict[str, object] = {"kind": "unknown_key", "given": given, "available": known}
    return Finding(place.path, f"unknown key `{short(given)}`", fix, {**data, "suggestions": [near] if near else []})


def _missing(path: KeyPath, expected: str, about: str) -> Finding:
    what = f"is required: {about}" if about else "is required"
    return Finding(path, what, data={"kind": "missing", "expected": expected})


def _wrong_tag(error: _Error, place: _Place, root: Schema) -> Finding:
    """The key that tells alternatives apart is absent, or names none of them."""
    key = str(error.ctx["discriminator"]).strip("'")
    path = (*place.path, key)
    choices = [choice for spot in step(place.spots, key, root) for choice in options(spot.schema)]
    expected = one_of(choices)
    if error.type == "union_tag_not_found":
        return _missing(path, expected, expected)
    return _wrong_value(replace(place, path=path), expected, error.ctx["tag"], choices)


def _own_words(error: _Error, place: _Place) -> str:
    text = error.msg.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    value = str(error.input)
    return text.replace(value, MASK) if value and _is_secret(place.path, place.spots) else text


def _wrong_value(place: _Place, expected: str, value: Any, choices: Sequence[str]) -> Finding:
    named = isinstance(value, str) and any(map(is_secret_name, place.path))
    hidden = named or any(spot.secret for spot in place.spots)
    fix = did_you_mean(value, choices) if isinstance(value, str) and len(choices) > 1 and not hidden else ""
    data: dict[str, object] = {"kind": "wrong_value", "expected": expected}
    return Finding(place.path, f"wants {expected}, got {shown(value, hidden)}", fix, data)
