"""The Hydra ConfigSource through which every YAML of a project is read.

It gives Hydra three things that Hydra does not know by itself: search roots that overlay each other, `config_paths`
as imports, and experiments as options. All merging stays Hydra's.

How `config_paths` become a defaults list: each entry turns into `/path@_global_`, or into a choice `/group: option`
where the file stands for one; then come the file's own `defaults`, then `_self_`. Hydra refuses a file that stands
twice in a defaults list, so a file that was imported before is left out (it keeps its first position).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.plugin import Plugin
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gym.composition import groups
from gym.composition.files import ConfigFile, load
from gym.composition.groups import Option
from gym.composition.roots import bases, lookup, roots, shown
from gym.errors import Problem, UserError, closest

SCHEME = "gym"
COMMAND_LINE = "command line"
RUN_PRIMARY = "config"
"""The primary config of `gym.run`: conf/config.yaml."""
CLI_PRIMARY = "config-files"
"""The primary config of the `gym` command: run settings, then the files given by `--config`."""


@dataclass
class Request:
    """What a composition starts from.

    Attributes:
        files: Files given by `--config`, in order.
        chosen_groups: Groups that the experiment or a file chooses itself; the primary's own default of such a group
            is left out, so that the choice stands where the file has it.
        owners: Importer of each file that keeps its import; others leave it out.
    """

    files: Sequence[str] = ()
    chosen_groups: frozenset[str] = frozenset()
    owners: Mapping[Path, str] = field(default_factory=dict)


class ProjectSource(ConfigSource):
    """Reads the project's files for Hydra. `request` is what the current composition starts from."""

    request: ClassVar[Request] = Request()

    @staticmethod
    def scheme() -> str:
        """The scheme of this source's search path entry."""
        return SCHEME

    def available(self) -> bool:
        """Always: the roots are searched at each look-up."""
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        """A file, group option or primary config, with its imports turned into a defaults list."""
        name = config_path.removesuffix(".yaml")
        if name in (RUN_PRIMARY, CLI_PRIMARY):
            return self._result(self._primary(name), None)
        option = option_at(name)
        path = option.path if option else file_at(name)
        if path is None:
            raise UserError(f"no such file: {name}")
        file = load(path)
        content = groups.content(option) if option else file.data
        return self._result(self._with_imports(content, file, option), file)

    def _primary(self, name: str) -> dict[str, Any]:
        file = load(primary_file())
        content = dict(file.data)
        defaults = content.pop("defaults", [])
        if name == CLI_PRIMARY:
            own = {"config_paths": list(self.request.files)}
            imports = self._with_imports(own, None, None)["defaults"]
            return {"defaults": ["_self_", *imports[:-1]], **content}
        kept = [
            entry for entry in defaults if not (isinstance(entry, dict) and set(entry) & self.request.chosen_groups)
        ]
        return {"defaults": kept, **content}

    def _with_imports(self, content: dict[str, Any], file: ConfigFile | None, option: Option | None) -> dict[str, Any]:
        content = dict(content)
        mine = importer_of(option, file)
        imports = imports_of(content.pop("config_paths", None), None if option and option.template else file)
        defaults = list(content.pop("defaults", []))
        entries = [entry_of(path) for path in imports if self.request.owners.get(path, mine) == mine]
        own = defaults if "_self_" in defaults else [*defaults, "_self_"]
        return {"defaults": entries + own, **content}

    def _result(self, content: dict[str, Any], file: ConfigFile | None) -> ConfigResult:
        header: dict[str, str | None] = {"package": "_global_"}
        if file is not None and file.package:
            header["package"] = file.package
        elif file is not None and (group := _conf_group(file.path)) is not None:
            header["package"] = group
        try:
            config = OmegaConf.create(content)
        except OmegaConfBaseException as error:
            raise _unreadable(error, file) from error
        return ConfigResult(provider=self.provider, path=f"{SCHEME}://", config=config, header=header)

    def is_group(self, config_path: str) -> bool:
        """True for the groups of a run, `experiment`, and folders below them."""
        group = config_path.strip("/")
        if group in (*groups.GROUPS, "experiment", "") or (group == groups.ENV_GROUP):
            return True
        return any((root / "conf" / group).is_dir() for root in roots())

    def is_config(self, config_path: str) -> bool:
        """True for a primary config, a group option, or a file."""
        name = config_path.strip("/").removesuffix(".yaml")
        return name in (RUN_PRIMARY, CLI_PRIMARY) or option_at(name) is not None or file_at(name) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Groups and options below a path."""
        group = config_path.strip("/")
        if group == "":
            return [] if results_filter == ObjectType.CONFIG else sorted([*groups.GROUPS, "experiment"])
        if results_filter == ObjectType.GROUP or group == groups.ENV_GROUP:
            return []
        return list(groups.options(group))


def importer_of(option: Option | None, file: ConfigFile | None) -> str:
    """A name for who imports: a file, a harness option that has no file of its own, or the command line."""
    if option is not None and option.template is not None:
        return f"{option.group}={option.name}"
    return str(file.path) if file else COMMAND_LINE


def entry_of(path: Path) -> str | dict[str, str]:
    """An imported file as an entry of a defaults list."""
    choice = groups.as_choice(path)
    return {f"/{choice[0]}": choice[1]} if choice else f"/{name_of(path)}@_global_"


def primary_file() -> Path:
    """conf/config.yaml of the first root that has one."""
    return next(path for root in roots() if (path := root / "conf" / "config.yaml").is_file())


def option_at(name: str) -> Option | None:
    """The group option that a config path means, such as `agent/simple`."""
    group, _, option = name.partition("/")
    return (
        groups.option(group, option) if option and group in (*groups.GROUPS, "experiment", groups.ENV_GROUP) else None
    )


def name_of(path: Path) -> str:
    """A file as a path in Hydra's config space: readable, and free of characters that Hydra's grammar uses."""
    text = quote(shown(path).removesuffix(".yaml"), safe="/-_.,~ ()+")
    return f"_abs_{text}" if Path(shown(path)).is_absolute() else text


def file_at(name: str) -> Path | None:
    """The file of a config path made by `name_of`, or written in a `defaults` list."""
    text = unquote(name.removeprefix("_abs_"))
    return next((found for ending in ("", ".yaml") if (found := lookup(text + ending)) and found.suffix), None)


def imports_of(config_paths: Any, file: ConfigFile | None) -> list[Path]:
    """The existing files of a `config_paths` list, without repeats.

    Raises:
        UserError: The value is no list of paths, or files are missing; all of them, with file and line.
    """
    if config_paths is None:
        return []
    if not isinstance(config_paths, list) or not all(isinstance(entry, str) for entry in config_paths):
        place = file.where(("config_paths",)) if file else ""
        raise UserError(Problem("must be a list of files", "write one path a line", place, "config_paths"))
    found: dict[Path, None] = {}
    problems = []
    for index, entry in enumerate(config_paths):
        path = lookup(entry)
        if path is None:
            where = file.where(("config_paths", str(index))) if file else COMMAND_LINE
            problems.append(_missing(entry, where, (0, index)))
        else:
            found.setdefault(path.resolve())
    if problems:
        raise UserError(problems)
    return list(found)


def _missing(entry: str, where: str, order: tuple[int, int]) -> Problem:
    folder, name = Path(entry).parent, Path(entry).name
    siblings = [path.name for base in bases() for path in (base / folder).glob("*.yaml")]
    near = closest(name, siblings)
    searched = "paths are relative to the project root; looked under " + ", ".join(map(str, roots()))
    fix = f"did you mean `{folder / near}`?" if near else searched
    return Problem(f"no such file: {entry}", fix, where, "config_paths", order)


def _conf_group(path: Path) -> str | None:
    for root in roots():
        if path.is_relative_to(root / "conf"):
            return ".".join(path.relative_to(root / "conf").parent.parts) or None
    return None


def _unreadable(error: OmegaConfBaseException, file: ConfigFile | None) -> UserError:
    key = tuple(str(error.full_key or "").replace("[", ".").replace("]", "").split("."))
    place = file.where(key) if file else ""
    return UserError(Problem(str(error).splitlines()[0], "check the `${...}` expression", place, ".".join(key)))


class ProjectSearchPath(SearchPathPlugin):
    """Puts the project first on Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Prepends the project's source."""
        search_path.prepend(provider="gym", path=f"{SCHEME}://project")


def register() -> None:
    """Makes Hydra know the source; call it before composing. Calling it again does nothing."""
    plugins = Plugins.instance()
    wanted: tuple[type[Plugin], ...] = (ProjectSource, ProjectSearchPath)
    for plugin in wanted:
        if plugin not in plugins.class_name_to_class.values():
            plugins.register(plugin)
