"""Which blocks of a configuration are what: instances, components (sandbox providers), settings, free variables.

Every top-level block whose single key is a server type is an instance. A block that others inherit from is only a
template: it does not start, unless a reference or a route names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym.errors import Problem, closest
from gym.planning.settings import RunSettings
from gym.servers.contract import SERVER_TYPES, ServerType

TARGET = "_target_"


@dataclass(frozen=True)
class Block:
    """An instance's block, not yet validated."""

    name: str
    type: ServerType
    implementation: str
    settings: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, ...]:
        """Key path of the settings."""
        return (self.name, self.type, self.implementation)


@dataclass
class Blocks:
    """A configuration sorted into its parts."""

    settings: dict[str, Any] = field(default_factory=dict)
    instances: dict[str, Block] = field(default_factory=dict)
    components: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[tuple[str, ...], Problem]] = field(default_factory=list)

    def names(self) -> list[str]:
        """All top-level names that mean something."""
        return [*RunSettings.model_fields, *self.instances, *self.components, *self.variables]


def sort(values: Mapping[str, Any]) -> Blocks:
    """Sorts the top-level keys of a configuration."""
    blocks = Blocks()
    for name, value in values.items():
        if name in RunSettings.model_fields:
            blocks.settings[name] = value
        elif isinstance(value, Mapping) and any(key in SERVER_TYPES for key in value):
            _instance(name, value, blocks)
        elif isinstance(value, Mapping) and TARGET in value:
            blocks.components[name] = value
        else:
            _variable(name, value, blocks)
    return blocks


def _instance(name: str, value: Mapping[str, Any], blocks: Blocks) -> None:
    types: list[ServerType] = [key for key in SERVER_TYPES if key in value]
    others = [key for key in value if key not in SERVER_TYPES]
    if len(types) > 1 or others:
        what = f"an instance has one key, its server type; this block has {', '.join(map(str, value))}"
        blocks.problems.append(((name,), Problem(what, "keep one server type", key=name)))
        return
    inner = value[types[0]]
    if not isinstance(inner, Mapping) or len(inner) != 1 or not isinstance(next(iter(inner.values())), Mapping | None):
        held = ", ".join(map(str, inner)) if isinstance(inner, Mapping) else inner
        what = f"a server type holds one implementation and its settings; this one holds {held}"
        blocks.problems.append(((name, types[0]), Problem(what, "keep one", key=f"{name}.{types[0]}")))
        return
    ((implementation, settings),) = inner.items()
    blocks.instances[name] = Block(name, types[0], implementation, settings or {})


def _variable(name: str, value: Any, blocks: Blocks) -> None:
    if isinstance(value, Mapping) and len(value) == 1:
        (inner,) = value
        near = closest(str(inner), SERVER_TYPES)
        if near is not None:
            problem = Problem(f"unknown server type `{inner}`", f"did you mean `{near}`?", key=f"{name}.{inner}")
            blocks.problems.append(((name, str(inner)), problem))
            return
    blocks.variables[name] = value


def starting(blocks: Blocks, template_of: Mapping[str, str], routes: Iterable[str]) -> list[Block]:
    """The instances that start, in the order of the configuration."""
    templates = {template.partition(".")[0] for template in template_of.values()}
    wanted = [name for name in blocks.instances if name not in templates]
    wanted += [name for name in routes if name in blocks.instances]
    started: dict[str, None] = {}
    while wanted:
        name = wanted.pop()
        if name in started:
            continue
        started[name] = None
        wanted += [ref for ref in references(blocks.instances[name].settings) if ref in blocks.instances]
    return [block for name, block in blocks.instances.items() if name in started]


def references(value: Any) -> Iterator[str]:
    """The instance names in `{type, name}` references anywhere below a value."""
    if isinstance(value, Mapping):
        if set(value) == {"type", "name"} and value["type"] in SERVER_TYPES:
            yield str(value["name"])
        else:
            for item in value.values():
                yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)
