"""Which options each config group has, and which files they are.

One table says where options come from, so that a new harness or benchmark is one folder and nothing else:

- `conf/<group>/NAME.yaml`
- `experiments/NAME/<group>.yaml`; an experiment itself is `experiments/NAME/run.yaml`
- `agent`: a harness folder `responses_api_agents/NAME[_agent]/configs/<folder>.yaml` (`NAME/PROFILE` for another
  file of its `configs/`)
- `benchmark`: `benchmarks/NAME/benchmark.yaml` (`NAME/PROFILE` for another file of the folder)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym.composition.files import load
from gym.composition.roots import roots
from gym.errors import UserError

GROUPS = ("model-provider", "sandbox", "benchmark", "agent", "environment")
"""The groups that a run chooses from, in the order in which they merge."""

ENV_GROUP = "env-file"
"""A hidden group with the one option `env`: the user's `env.yaml`."""

AGENTS = "responses_api_agents"


@dataclass(frozen=True)
class Option:
    """One option of a group.

    Attributes:
        template: For a harness folder: the template that the instance `agent` inherits from; else None.
    """

    group: str
    name: str
    path: Path
    template: str | None = None


def options(group: str) -> dict[str, Option]:
    """All options of a group by name; the first root that has a name wins."""
    found: dict[str, Option] = {}
    for root in roots():
        for option in _options_in(root, group):
            found.setdefault(option.name, option)
    return dict(sorted(found.items()))


def option(group: str, name: str) -> Option | None:
    """An option by name, or None."""
    return next((item for root in roots() for item in _options_in(root, group, name)), None)


def _options_in(root: Path, group: str, name: str | None = None) -> Iterator[Option]:
    if group == ENV_GROUP:
        if name in (None, "env") and root == roots()[0] and (root / "env.yaml").is_file():
            yield Option(group, "env", root / "env.yaml")
        return
    own = "run" if group == "experiment" else group
    for path in _files(root / "conf" / group, f"{name}.yaml" if name else "**/*.yaml"):
        yield Option(group, str(path.relative_to(root / "conf" / group).with_suffix("")), path)
    for path in _files(root / "experiments", f"{name}/{own}.yaml" if name else f"*/{own}.yaml"):
        yield Option(group, path.parent.name, path)
    if group == "agent":
        yield from _harnesses(root, name)
    elif group == "benchmark":
        yield from _benchmarks(root, name)


def _files(folder: Path, pattern: str) -> list[Path]:
    if "*" in pattern:
        return sorted(path for path in folder.glob(pattern) if path.is_file())
    path = folder / pattern
    return [path] if path.is_file() else []


def _harnesses(root: Path, name: str | None) -> Iterator[Option]:
    folder_name, _, profile = (name or "*").partition("/")
    candidates = (folder_name, f"{folder_name}_agent") if name else ("*",)
    for candidate in candidates:
        for path in _files_of(root / AGENTS, candidate, "configs", profile):
            folder = path.parent.parent.name
            if not name and path.stem != folder:
                continue
            if (template := _template_of(path)) is not None:
                yield Option("agent", name or folder.removesuffix("_agent"), path, template)


def _files_of(base: Path, folder: str, inner: str, profile: str) -> list[Path]:
    if folder == "*":
        return sorted(path for path in base.glob(f"*/{inner}/*.yaml") if path.is_file())
    path = base / folder / inner / f"{profile or folder}.yaml"
    return [path] if path.is_file() else []


def _template_of(path: Path) -> str | None:
    """The first block of a file that is an agent. A file that cannot be read is told when it is chosen, not before."""
    try:
        blocks = load(path).data
    except UserError:
        return path.stem
    return next((key for key, block in blocks.items() if isinstance(block, dict) and AGENTS in block), None)


def _benchmarks(root: Path, name: str | None) -> Iterator[Option]:
    if name is None:
        for path in _files(root / "benchmarks", "*/benchmark.yaml"):
            yield Option("benchmark", path.parent.name, path)
        return
    folder, _, profile = name.partition("/")
    for path in _files(root / "benchmarks" / folder, f"{profile or 'benchmark'}.yaml"):
        yield Option("benchmark", name, path)


def profiles(group: str, name: str) -> list[str]:
    """The further files of a harness or benchmark folder, as `NAME/PROFILE`."""
    chosen = option(group, name)
    if chosen is None:
        return []
    siblings = sorted(chosen.path.parent.glob("*.yaml"))
    return (
        [f"{name}/{path.stem}" for path in siblings if path != chosen.path] if group in ("agent", "benchmark") else []
    )


def as_choice(path: Path) -> tuple[str, str] | None:
    """The (group, option) that a file stands for, where importing it is a choice of that group."""
    for root in roots():
        if not path.is_relative_to(root):
            continue
        parts = path.relative_to(root).with_suffix("").parts
        if len(parts) == 3 and parts[0] == "experiments" and parts[2] in GROUPS:
            return parts[2], parts[1]
        if len(parts) >= 3 and parts[0] == "conf" and parts[1] in GROUPS:
            return parts[1], "/".join(parts[2:])
    return None


def content(item: Option) -> dict[str, Any]:
    """What an option contributes: its file, or for a harness folder the instance `agent` made from its template."""
    if item.template is None:
        return load(item.path).data
    return {"config_paths": [str(item.path)], "agent": {"_inherit_from": item.template}}
