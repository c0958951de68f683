"""What a settings class allows at a key path, and how to say it.

Everything is read from the JSON Schema that pydantic makes of the class, so that messages, documentation and editors
cannot disagree. A key path names list items by their index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import core_schema

Schema = Mapping[str, Any]
MOST_NAMES = 12
"""Longer lists of names are cut."""

_FORMATS = {
    "path": "a path",
    "file-path": "the path of a file",
    "directory-path": "the path of a folder",
    "uri": "a URL",
    "date": "a date",
    "date-time": "a date and time",
    "duration": "a duration",
}
_PLURALS = {
    "an integer": "integers",
    "a number": "numbers",
    "a mapping": "mappings",
    "a list": "lists",
    "a path": "paths",
    "a URL": "URLs",
    "text": "texts",
    "one of": "any of",
}


@dataclass(frozen=True)
class Spot:
    """One alternative of what a place may hold.

    Attributes:
        schema: Without references and alternatives; empty where anything fits.
        operational: The place, or one that it is part of, is marked so.
        secret: The place, or one that it is part of, is marked so or holds a `SecretStr`.
        names: What pydantic may call this alternative in an error's location.
    """

    schema: Schema
    description: str = ""
    operational: bool = False
    secret: bool = False
    names: frozenset[str] = frozenset()


_ANYTHING = Spot({})


class _Generator(GenerateJsonSchema):
    """JSON Schema with the defaults that factories make; what JSON cannot express is left open."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        factory: Any = schema.get("default_factory")
        if factory is None or schema.get("default_factory_takes_data"):
            return super().get_default_value(schema)
        return factory()

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> dict[str, Any]:  # noqa: ARG002
        return {}


@lru_cache(maxsize=256)
def schema_of(model: type[BaseModel], by_alias: bool = True) -> dict[str, Any]:
    """JSON Schema of a class. Not to be changed."""
    return model.model_json_schema(by_alias=by_alias, schema_generator=_Generator)


def alternatives(schema: Schema, root: Schema, outer: Spot = _ANYTHING) -> Iterator[Spot]:
    """The alternatives of a schema, references followed, null left out."""
    spot = Spot(
        schema,
        outer.description or schema.get("description", ""),
        outer.operational or schema.get("operational") is True,
        outer.secret or schema.get("secret") is True or schema.get("format") == "password",
        outer.names | {schema.get("title", "")},
    )
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        yield from alternatives(root["$defs"][name], root, replace(spot, names=spot.names | {name}))
        return
    choices = next((schema[word] for word in ("anyOf", "oneOf", "allOf") if word in schema), None)
    if choices is None:
        if schema.get("type") != "null":
            yield spot
        return
    tags = {reference: tag for tag, reference in schema.get("discriminator", {}).get("mapping", {}).items()}
    for choice in choices:
        tag = tags.get(choice.get("$ref"), "")
        yield from alternatives(choice, root, replace(spot, names=spot.names | {tag}))


def step(spots: Iterable[Spot], part: str, root: Schema) -> list[Spot]:
    """The alternatives one step down; none where no alternative has such a key."""
    found: list[Spot] = []
    for spot in spots:
        child = _child(spot.schema, part)
        if child is not None:
            outer = Spot({}, operational=spot.operational, secret=spot.secret)
            found += alternatives(child, root, outer)
    return found


def _child(schema: Schema, part: str) -> Schema | None:
    child: Any = None
    if part in schema.get("properties", {}):
        child = schema["properties"][part]
    elif schema.get("type") == "array":
        first = schema.get("prefixItems", [])
        index = int(part) if part.isdecimal() else len(first)
        child = first[index] if index < len(first) else schema.get("items", {})
    elif schema.get("type", "object") == "object":
        child = schema.get("additionalProperties", True)
    return {} if child is True else child or None


def spots_at(model: type[BaseModel], key_path: Sequence[str]) -> list[Spot]:
    """The alternatives at a key path, by aliases or by names; none for unknown keys."""
    for by_alias in (True, False):
        root = schema_of(model, by_alias)
        spots = list(alternatives(root, root))
        for part in key_path:
            spots = step(spots, part, root)
        if spots:
            return spots
    return []


def phrase(spots: Iterable[Spot], root: Schema) -> str:
    """What fits, in words: `an integer of at least 1`, `text or a list of texts`, `one of train, validation`."""
    choices: list[str] = []
    kinds: dict[str, None] = {}
    for spot in spots:
        if found := options(spot.schema):
            choices += found
        else:
            kinds.setdefault(_kind(spot, root))
    return " or ".join([*kinds, *([one_of(choices)] if choices else [])]) or "nothing (null)"


def options(schema: Schema) -> list[str]:
    """The values of a closed set, as YAML writes them; empty for other schemas."""
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in values]


def one_of(choices: Iterable[str]) -> str:
    """`one of a, b`, cut where it gets long."""
    names = list(dict.fromkeys(choices))
    return f"one of {listed(names)}" if len(names) > 1 else f"`{names[0]}`"


def listed(names: Sequence[str]) -> str:
    """The names, cut where there are many."""
    return ", ".join([*names[:MOST_NAMES], *(["..."] if len(names) > MOST_NAMES else [])])


def _kind(spot: Spot, root: Schema) -> str:
    schema = spot.schema
    match schema.get("type"):
        case "boolean":
            return "true or false"
        case "integer":
            return "an integer" + _bounds(schema, whole=True)
        case "number":
            return "a number" + _bounds(schema, whole=False)
        case "string":
            return _FORMATS.get(schema.get("format", ""), "text" + _length(schema))
        case "object":
            return "a mapping"
        case "array":
            return _list(spot, root)
        case _:
            return "any value"


def _bounds(schema: Schema, whole: bool) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if whole:
        low, above = (low, None) if above is None else (int(above) + 1, None)
        high, below = (high, None) if below is None else (int(below) - 1, None)
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    parts = [
        text.format(_number(bound))
        for text, bound in (
            ("of at least {}", low), ("greater than {}", above), ("of at most {}", high), ("less than {}", below),
        )
        if bound is not None
    ]  # fmt: skip
    if "multipleOf" in schema:
        parts.append(f"a multiple of {_number(schema['multipleOf'])}")
    return " " + " and ".join(parts) if parts else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _length(schema: Schema) -> str:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if "pattern" in schema:
        return f" that matches `{schema['pattern']}`"
    if high is not None:
        return f" of {low} to {high} characters" if low else f" of at most {high} characters"
    return " that is not empty" if low == 1 else f" of at least {low} characters" if low else ""


def _list(spot: Spot, root: Schema) -> str:
    schema = spot.schema
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])} items"
    items = phrase(step([spot], "0", root), root)
    text = "a list" if items == "any value" else f"a list of {_plural(items)}"
    return f"{text}, at least {schema['minItems']}" if schema.get("minItems") else text


def _plural(text: str) -> str:
    return " or ".join(
        next((many + part[len(one) :] for one, many in _PLURALS.items() if part.startswith(one)), part)
        for part in text.split(" or ")
    )
