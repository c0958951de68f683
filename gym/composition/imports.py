"""What a composition would load, found by walking files before Hydra merges them.

Hydra is given a defaults list without cycles, with each group chosen once and each file imported once. The walk finds
out which import of a file is the first, in the order of merging, and names file and line of what cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gym.composition import groups
from gym.composition.files import ConfigFile, load
from gym.composition.groups import Option
from gym.composition.roots import shown
from gym.composition.source import COMMAND_LINE, importer_of, imports_of
from gym.errors import Problem, UserError


@dataclass
class Walk:
    """The groups that the walked files choose and where, and who imports each file first.

    Attributes:
        replaced: Options that the command line chooses, which take the place of the files' own.
        chosen: Option and place of each group that a file chooses.
        owners: The importer that keeps its import of each file or group choice; later ones are left out.
    """

    replaced: Mapping[str, str]
    chosen: dict[str, tuple[str, str]] = field(default_factory=dict)
    owners: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _done: set[Path] = field(default_factory=set)
    _chain: list[Path] = field(default_factory=list)

    def file(self, path: Path, where: str) -> None:
        """Walks a file and what it imports."""
        if path in self._chain:
            chain = " -> ".join(map(shown, [*self._chain[self._chain.index(path) :], path]))
            self.problems.append(Problem(f"imports itself: {chain}", "remove one of the imports", where))
            return
        if path in self._done:
            return
        self._done.add(path)
        self._chain.append(path)
        try:
            file = load(path)
            self.imports(imports_of(file.data.get("config_paths"), file), file)
        except UserError as error:
            self.problems += error.problems
        self._chain.pop()

    def imports(self, paths: Iterable[Path], file: ConfigFile | None) -> None:
        """Walks imported files; those that stand for a group option are choices."""
        for index, path in enumerate(paths):
            where = file.where(("config_paths", str(index))) if file else COMMAND_LINE
            self.owners.setdefault(path, str(file.path) if file else COMMAND_LINE)
            choice = groups.as_choice(path)
            if choice is None:
                self.file(path, where)
            else:
                self._choose(*choice, where)

    def _choose(self, group: str, name: str, where: str) -> None:
        known = self.chosen.setdefault(group, (name, where))
        if known[0] != name:
            what = f"chooses {group} `{name}`, but {known[1]} chose `{known[0]}`"
            self.problems.append(Problem(what, f"import one file of the group {group}", where))
        self.option(groups.option(group, self.replaced.get(group, name)), where)

    def option(self, option: Option | None, where: str = COMMAND_LINE) -> None:
        """Walks the file of a group option; one that does not exist is somebody else's to tell."""
        if option is not None:
            if option.template is not None:
                self.owners.setdefault(option.path, importer_of(option, None))
            self.file(option.path, where)


def walk(files: list[Path], replaced: Mapping[str, str], defaults: Mapping[str, str]) -> Walk:
    """Walks everything that a composition would load.

    Args:
        files: Files given by `--config`, in order.
        replaced: Group choices of the command line.
        defaults: Group choices of the primary config, which give way to both.
    """
    first = Walk(replaced)
    first.imports(files, None)
    for group, name in replaced.items():
        first.option(groups.option(group, name))
    return first if first.problems else _in_order(files, replaced, defaults, first.chosen)


def _in_order(
    files: list[Path], replaced: Mapping[str, str], defaults: Mapping[str, str], chosen: Mapping[str, tuple[str, str]]
) -> Walk:
    """The walk again, now in the order of merging, which depends on the groups that the files choose themselves."""
    ordered = Walk(replaced)
    for group, name in defaults.items():
        if group not in chosen:
            ordered.option(groups.option(group, replaced.get(group, name)))
    ordered.imports(files, None)
    for group, name in replaced.items():
        if group not in defaults and group not in chosen:
            ordered.option(groups.option(group, name))
    return ordered
