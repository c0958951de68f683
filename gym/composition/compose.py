"""Files and overrides become one configuration.

Both doors (`gym.run`, the `gym` command) come through `compose`. Hydra merges; before it, the files are walked and the
overrides checked, so that what Hydra would refuse in its own words is told in ours, all at once; after it,
`_inherit_from` is resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gym.composition import groups, overrides, source
from gym.composition.files import load
from gym.composition.imports import walk
from gym.composition.inherit import Inheritance
from gym.composition.origins import Layer, Origins
from gym.composition.roots import find, make_importable, roots
from gym.errors import Problem, UserError
from gym.servers.contract import SERVER_TYPES

if TYPE_CHECKING:
    from gym.composition.overrides import Overrides


@dataclass(frozen=True)
class Composed:
    """A merged configuration with inheritance resolved; interpolations are still text.

    Attributes:
        values: The configuration as plain data.
        overrides: The parsed overrides.
        choices: Option of each group, as given on the command line or by a file.
        files: The files given by `--config`.
        problems: Bad overrides; the configuration was composed without them, so that the rest can be checked too.
    """

    values: dict[str, Any]
    overrides: Overrides
    choices: dict[str, str]
    files: list[Path]
    template_of: dict[str, str]
    problems: list[Problem]
    _trace: Trace = field(repr=False)

    @cached_property
    def origins(self) -> Origins:
        """Where each value comes from; computed when asked for."""
        return Origins(self._trace.layers(self.overrides), self.template_of)


@dataclass(frozen=True)
class Trace:
    """How to ask Hydra again which files it merged, in order."""

    loader: ConfigLoaderImpl
    primary: str
    lines: list[str]
    request: source.Request

    def layers(self, given: Overrides) -> list[Layer]:
        """The merged files in order, then the overrides."""
        source.ProjectSource.request = self.request
        defaults = self.loader.compute_defaults_list(self.primary, self.lines, RunMode.RUN).defaults
        found = [layer for item in defaults if (layer := _layer(item, self.primary)) is not None]
        return found + [_override_layer(item) for item in given.values if not item.is_delete()]


def _layer(item: ResultDefault, primary: str) -> Layer | None:
    name = item.config_path or ""
    if name.startswith("hydra/"):
        return None
    if name == primary:
        file = load(source.primary_file())
        return Layer(file.data, file)
    option = source.option_at(name)
    path = option.path if option else source.file_at(name)
    if path is None:
        return None
    if option is not None and option.template is not None:
        return Layer(groups.content(option), None, (), f"{option.group}={option.name}")
    file = load(path)
    package = item.package or ""
    return Layer(file.data, file, tuple(package.split(".")) if package not in ("", "_global_") else ())


def _override_layer(item: Override) -> Layer:
    value: Any = item.value()
    for part in reversed(item.key_or_group.split(".")):
        value = {part: value}
    return Layer(value, label=overrides.as_typed(item))


@dataclass(frozen=True)
class Prepared:
    """A composition that Hydra can do: files walked, overrides checked, the primary config chosen."""

    primary: str
    request: source.Request
    lines: list[str]
    overrides: Overrides
    problems: list[Problem]
    choices: dict[str, str]
    files: list[Path]


def prepare(arguments: Sequence[str], files: Sequence[str] | None) -> Prepared:
    """Walks the files and checks the overrides; see `compose`.

    Raises:
        UserError: Files are missing, no YAML, or import themselves; a group is chosen twice.
    """
    make_importable()
    source.register()
    given, problems = overrides.parse(arguments)
    paths = [find(name).resolve() for name in files or []]
    primary = source.RUN_PRIMARY if files is None else source.CLI_PRIMARY
    defaults = _primary_defaults(primary)
    walked = walk(paths, given.choices, defaults)
    if walked.problems:
        raise UserError(walked.problems + problems)
    request = source.Request([str(path) for path in paths], frozenset(walked.chosen), walked.owners)
    source.ProjectSource.request = request
    lines = given.for_hydra(frozenset(walked.chosen) | frozenset(defaults))
    if (roots()[0] / "env.yaml").is_file():
        lines = _before_values(lines, f"+{groups.ENV_GROUP}=env")
    choices = defaults | {group: name for group, (name, _) in walked.chosen.items()} | given.choices
    return Prepared(primary, request, lines, given, problems, choices, paths)


def compose(arguments: Sequence[str], files: Sequence[str] | None = None) -> Composed:
    """Composes a configuration.

    Args:
        arguments: Overrides as typed: group choices, `key=value`, `+`, `++`, `~`.
        files: Files of `--config`; None composes onto conf/config.yaml with its group defaults (`gym.run`).

    Raises:
        UserError: Everything that is wrong with files and overrides, with file and line.
    """
    ready = prepare(arguments, files)
    given = ready.overrides
    trace = Trace(config_loader(), ready.primary, ready.lines, ready.request)
    values = _merged(trace, given)
    inheritance = Inheritance(values, SERVER_TYPES, lambda key: Origins(trace.layers(given)).where(key))
    resolved = inheritance.resolve()
    return Composed(resolved, given, ready.choices, ready.files, inheritance.template_of, ready.problems, trace)


def _primary_defaults(primary: str) -> dict[str, str]:
    if primary == source.CLI_PRIMARY:
        return {}
    defaults = load(source.primary_file()).data.get("defaults", [])
    return {group: str(name) for entry in defaults if isinstance(entry, dict) for group, name in entry.items()}


def _before_values(lines: list[str], line: str) -> list[str]:
    first = next((index for index, text in enumerate(lines) if text.startswith("++")), len(lines))
    return [*lines[:first], line, *lines[first:]]


def config_loader() -> ConfigLoaderImpl:
    """Hydra's loader on the project's search path."""
    search_path = ConfigSearchPathImpl()
    search_path.append("hydra", "pkg://hydra.conf")
    search_path.prepend("gym", f"{source.SCHEME}://project")
    search_path.append("schema", "structured://")
    return ConfigLoaderImpl(search_path)


def _merged(trace: Trace, given: Overrides) -> dict[str, Any]:
    source.ProjectSource.request = trace.request
    try:
        config = trace.loader.load_configuration(trace.primary, trace.lines, RunMode.RUN)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_in_our_words(error, given, trace)) from error
    return plain(config)


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain data, without Hydra's own node; interpolations stay text."""
    values = OmegaConf.to_container(config, resolve=False)
    assert isinstance(values, dict)
    values.pop("hydra", None)
    return {str(key): value for key, value in values.items()}


def _in_our_words(error: Exception, given: Overrides, trace: Trace) -> Problem:
    """Hydra's refusal of an override or a merge, without its advice to add a plus."""
    cause = error.__cause__ or error
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    for item in given.values:
        line, key = item.input_line or "", item.key_or_group
        if item.is_delete() and f"'{key}'" in text:
            return Problem(f"cannot delete `{key}`: it does not exist", "", overrides.WHERE)
        if item.is_add() and "already at" in text and f"'{key}'" in text:
            return Problem(f"`{key}` exists already", f"to change it, write {line.lstrip('+')}", overrides.WHERE, key)
    for group in given.deleted:
        if f"'{group}'" in text:
            return Problem(f"cannot delete `{group}`: no file and no option chose one", "", overrides.WHERE, group)
    if isinstance(cause, OmegaConfBaseException):
        key = str(cause.full_key or "")
        where = Origins(trace.layers(given)).where(tuple(key.split("."))) if key else ""
        return Problem(str(cause).splitlines()[0], where=where, key=key)
    return Problem(text.partition(" To append to your")[0])


def experiment_of(composed: Composed) -> str:
    """A short name of what is run: the experiment, or the first file given."""
    if "experiment" in composed.choices:
        return composed.choices["experiment"]
    if composed.files:
        path = composed.files[0]
        return path.parent.name if path.stem in ("run", "config", "benchmark") else path.stem
    return composed.choices.get("benchmark", "run")


def flat(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Leaves of nested maps by key path; empty maps and lists count as leaves."""
    result: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, (*prefix, str(key)))
        else:
            result[(*prefix, str(key))] = value
    return result
