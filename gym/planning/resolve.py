"""A composed configuration becomes typed: settings, instances with their classes, sandbox providers.

Only what is used is resolved and validated; interpolations of unused templates stay text. All problems are collected,
each with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from gym.composition import schema
from gym.composition.compose import Composed, flat
from gym.composition.groups import GROUPS
from gym.composition.origins import MISSING
from gym.composition.redact import Redactor
from gym.errors import Problem, UserError, closest
from gym.planning import instances as blocks_of
from gym.planning.classes import component_class, server_class
from gym.planning.instances import TARGET, Block, Blocks
from gym.planning.settings import RunSettings
from gym.sandbox.config import SandboxProviderConfig
from gym.servers.base import Server, ServerConfig
from gym.servers.contract import ServerType

KeyPath = tuple[str, ...]
ServerClass = type[Server[Any]]
ENV = re.compile(r"\$\{oc\.env:\s*([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True)
class Instance:
    """A server that will start."""

    name: str
    type: ServerType
    implementation: str
    server_class: ServerClass
    config: ServerConfig

    @property
    def key(self) -> KeyPath:
        """Key path of its settings."""
        return (self.name, self.type, self.implementation)


@dataclass(frozen=True)
class Component:
    """A sandbox provider of a top-level block."""

    name: str
    component_class: type[Any]
    config: SandboxProviderConfig


@dataclass
class Resolved:
    """A configuration that can be planned.

    Attributes:
        values: What is used, as plain resolved data: settings, instances that start, components.
        raw: The same before interpolation.
        idle: Names of instances that do not start.
    """

    composed: Composed
    settings: RunSettings = field(default_factory=RunSettings)
    instances: dict[str, Instance] = field(default_factory=dict)
    components: dict[str, Component] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def model_at(self, key: KeyPath) -> tuple[type[BaseModel], KeyPath] | None:
        """The schema that a key path of `values` belongs to, and the path within it."""
        if key[0] in RunSettings.model_fields:
            return RunSettings, key
        if (instance := self.instances.get(key[0])) is not None and len(key) > 3:
            return instance.server_class.config_type, key[3:]
        if (component := self.components.get(key[0])) is not None and len(key) > 1 and key[1] != TARGET:
            return component.config.__class__, key[1:]
        return None

    def is_operational(self, key: KeyPath) -> bool:
        """True for a setting that may change when a run continues."""
        found = self.model_at(key)
        return found is not None and schema.is_operational(*found)

    def is_secret(self, key: KeyPath) -> bool:
        """True for a setting that its schema calls secret."""
        found = self.model_at(key)
        return found is not None and schema.is_secret(*found)

    @cached_property
    def redactor(self) -> Redactor:
        """Takes this configuration's secrets out of what is shown or stored."""
        return Redactor.of(self.raw, self.values, self.is_secret)

    def problem(self, key: KeyPath, what: str, fix: str = "", data: dict[str, object] | None = None) -> None:
        """Adds a problem at a key, with its place."""
        origins = self.composed.origins
        problem = Problem(what, fix, origins.where(key), ".".join(key), origins.order(key), data or {})
        if problem not in self.problems:
            self.problems.append(problem)

    def raise_problems(self) -> None:
        """Raises what was found, if anything."""
        if self.problems:
            raise UserError(self.problems)


def resolve(composed: Composed) -> Resolved:
    """Sorts, resolves and validates a configuration. Problems are kept in the result, not raised."""
    result = Resolved(composed, problems=list(composed.problems))
    blocks = blocks_of.sort(composed.values)
    for key, problem in blocks.problems:
        result.problem(key, problem.what, problem.fix)
    config = OmegaConf.create(composed.values)
    assert isinstance(config, DictConfig)
    _settings(result, blocks, config)
    started = blocks_of.starting(blocks, composed.template_of, result.settings.environment_server_routes.values())
    result.idle = [name for name in blocks.instances if name not in {block.name for block in started}]
    for block in started:
        _start(result, block, config)
    for name in blocks.components:
        _component(result, name, config)
    _refuse_dead_overrides(result, blocks)
    _refuse_misspelled_settings(result, blocks)
    return result


def _settings(result: Resolved, blocks: Blocks, config: DictConfig) -> None:
    values = {name: _resolved(result, config, (name,)) for name in blocks.settings}
    model = _checked(result, RunSettings, {key: value for key, value in values.items() if value is not UNRESOLVED}, ())
    if isinstance(model, RunSettings):
        result.settings = model
    _keep(result, blocks.settings, values)


def _start(result: Resolved, block: Block, config: DictConfig) -> None:
    values = _resolved(result, config, block.key)
    if values is UNRESOLVED:
        return
    values = dict(values or {})
    target = values.pop(TARGET, None)
    found = server_class(block, target)
    if isinstance(found, Problem):
        result.problem((*block.key, TARGET) if target else block.key, found.what, found.fix)
        return
    model = _checked(result, found.config_type, values, block.key)
    if isinstance(model, ServerConfig):
        result.instances[block.name] = Instance(block.name, block.type, block.implementation, found, model)
    nested = {block.type: {block.implementation: {TARGET: target, **values}}}
    _keep(result, {block.name: {block.type: {block.implementation: block.settings}}}, {block.name: nested})


def _component(result: Resolved, name: str, config: DictConfig) -> None:
    values = _resolved(result, config, (name,))
    if values is UNRESOLVED:
        return
    target = values.pop(TARGET)
    found = component_class(target)
    if isinstance(found, Problem):
        result.problem((name, TARGET), found.what, found.fix)
        return
    model = _checked(result, found.config_type, values, (name,))
    if isinstance(model, SandboxProviderConfig):
        result.components[name] = Component(name, found, model)
    _keep(result, {name: result.composed.values[name]}, {name: {TARGET: target, **values}})


def _keep(result: Resolved, raw: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    result.raw |= raw
    result.values |= {key: value for key, value in values.items() if value is not UNRESOLVED}


def _checked(result: Resolved, model: type[BaseModel], values: Mapping[str, Any], prefix: KeyPath) -> BaseModel | None:
    typed, findings = schema.check(model, values)
    for finding in findings:
        key = (*prefix, *finding.key)
        what = finding.what.replace(f"`{finding.key[-1]}`", f"`{'.'.join(key)}`", 1) if finding.key else finding.what
        result.problem(key, what, _with_place(result, prefix, finding.fix, finding.data, finding.key), finding.data)
    return typed


def _with_place(result: Resolved, prefix: KeyPath, fix: str, data: Mapping[str, object], key: KeyPath) -> str:
    """Adds to a suggestion where the suggested key is set, and its value now."""
    suggestions = data.get("suggestions")
    if not isinstance(suggestions, list) or not suggestions:
        return fix
    near = (*prefix, *key[:-1], str(suggestions[0]))
    setting = result.composed.origins.last(near)
    if setting is None or not result.composed.origins.settings(near):
        return f"did you mean `{'.'.join(near)}`?"
    return f"did you mean `{'.'.join(near)}` ({setting.where}, now {setting.value})?"


class _Unresolved:
    pass


UNRESOLVED = _Unresolved()


def _resolved(result: Resolved, config: DictConfig, key: KeyPath) -> Any:
    """The resolved value at a key, or UNRESOLVED after adding the problems of its leaves."""
    node: Any = config
    try:
        for part in key[:-1]:
            node = node._get_node(part)
        child = node._get_node(key[-1])
        if not OmegaConf.is_config(child):
            return _leaf(node, key[-1])
        if child is None or child._is_none():
            return None
        return OmegaConf.to_container(child, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException:
        for leaf, error in _broken_leaves(node._get_node(key[-1]), node, key):
            _explain(result, leaf, error)
        return UNRESOLVED


def _leaf(parent: Any, key: str) -> Any:
    if OmegaConf.is_missing(parent, key):
        raise OmegaConfBaseException("Missing mandatory value")
    value = parent[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _broken_leaves(node: Any, parent: Any, key: KeyPath) -> Iterator[tuple[KeyPath, Exception]]:
    if OmegaConf.is_config(node) and not node._is_interpolation() and not node._is_missing():
        names = range(len(node)) if OmegaConf.is_list(node) else list(node.keys())
        for name in names:
            yield from _broken_leaves(node._get_node(name), node, (*key, str(name)))
        return
    try:
        name = int(key[-1]) if OmegaConf.is_list(parent) else key[-1]
        if OmegaConf.is_missing(parent, name):
            raise OmegaConfBaseException("Missing mandatory value")
        value = parent[name]
        if OmegaConf.is_config(value):
            OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        yield key, error


def _explain(result: Resolved, key: KeyPath, error: Exception) -> None:
    """An interpolation that cannot be resolved, told at the key that holds it."""
    text = str(error).splitlines()[0]
    if "Missing mandatory value" in text:
        result.problem(key, "is required, and `???` stands for it", f"give it a value: {'.'.join(key)}=...")
        return
    variable = re.search(r"Environment variable '([^']+)' not found", text)
    if variable is None:
        missing = re.search(r"Interpolation key '([^']+)' not found", text)
        near = closest(missing.group(1), result.composed.values) if missing else None
        what = f"`${{{missing.group(1)}}}` names a key that does not exist" if missing else text
        result.problem(key, what, f"did you mean `${{{near}}}`?" if near else "set that key, or write the value here")
        return
    name = variable.group(1)
    holders = [
        path
        for path, value in flat(result.composed.values).items()
        if isinstance(value, str) and name in ENV.findall(value) and (len(path) == 1 or path == key)
    ]
    result.problem(holders[0] if holders else key, f"the environment variable {name} is not set", f"export {name}=...")


def _refuse_dead_overrides(result: Resolved, blocks: Blocks) -> None:
    """An override that nothing would read is a typo."""
    heirs = {source.partition(".")[0] for source in result.composed.template_of.values()}
    for item, key in result.composed.overrides.key_paths():
        top = key[0]
        if item.is_delete() or top == "hydra" or top in blocks.settings or top in blocks.components or top in heirs:
            continue
        if top in blocks.instances:
            if top in result.idle:
                result.problem(key, f"`{top}` does not start in this run", "override an instance that does")
            continue
        added = item.is_add() or item.is_force_add()
        if not _is_read(result, key[:1] if added else key) and not _has_problem(result, top):
            _refuse_unknown(result, blocks, key)


def _is_read(result: Resolved, key: KeyPath) -> bool:
    """True for a free variable that a file defines or an interpolation names."""
    from_files = (layer for layer in result.composed.origins.layers if layer.file is not None)
    if any(layer.value(key) is not MISSING for layer in from_files):
        return True
    return _is_named(result, key[0])


def _is_named(result: Resolved, name: str) -> bool:
    """Whether an interpolation uses a top-level key."""
    named = re.compile(rf"\$\{{\s*(oc\.select:\s*)?{re.escape(name)}\b")
    return any(isinstance(value, str) and named.search(value) for value in flat(result.composed.values).values())


def _refuse_misspelled_settings(result: Resolved, blocks: Blocks) -> None:
    """A variable that nothing uses and that is spelled almost like a setting was meant to be it."""
    for name in blocks.variables:
        near = closest(name, RunSettings.model_fields)
        if near and not _has_problem(result, name) and not _is_named(result, name):
            what, fix = f"no setting `{name}`, and no value uses it as a variable", f"did you mean `{near}`?"
            result.problem((name,), what, fix, {"kind": "unknown_key", "given": name, "suggestions": [near]})


def _has_problem(result: Resolved, top: str) -> bool:
    return any(problem.key.split(".")[0] == top for problem in result.problems)


def _refuse_unknown(result: Resolved, blocks: Blocks, key: KeyPath) -> None:
    known = [name for name in blocks.names() if name != key[0] or len(key) > 1]
    near = closest(key[0], [*known, *GROUPS, "experiment"])
    if len(key) > 1 and key[0] in blocks.variables and isinstance(blocks.variables[key[0]], Mapping):
        inner = closest(key[-1], (path[-1] for path in flat(blocks.variables[key[0]])))
        near = f"{'.'.join(key[:-1])}.{inner}" if inner else near
    what = f"no component kind or setting `{key[0]}`" if len(key) == 1 else f"unknown key `{'.'.join(key)}`"
    fix = f"closest: `{near}`" if near else "docs/configuration.md names the settings; `gym list` the components"
    data: dict[str, object] = {"kind": "unknown_key", "given": key[0], "suggestions": [near] if near else []}
    result.problem(key, what, fix, data)
