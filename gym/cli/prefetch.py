"""`gym env prefetch`: what the implementations and sandboxes of a configuration need, and whether it is here.

It installs nothing: it says what is missing, and the command that installs it.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.composition.compose import compose
from gym.composition.roots import shown
from gym.errors import EXIT_OK, EXIT_SOME_FAILED, UserError
from gym.planning.instances import TARGET, Block, sort, starting
from gym.planning.resolve import Resolved, resolve

FILE = "requirements.txt"
LATER = (
    "It installs nothing by itself: environments of their own for implementations, and harness runtimes, are not built."
)


@dataclass(frozen=True)
class Need:
    """Something that a part of the configuration needs.

    Attributes:
        state: `ok`, `missing`, or `unchecked` for lines that only an installer understands.
        detail: The version that is here, or what is wrong.
    """

    part: str
    need: str
    state: str
    detail: str
    install: str = ""


def run(arguments: Arguments) -> int:
    """Prints what is needed. Returns 1 where something is missing."""
    composed = compose(arguments.overrides(), arguments.files)
    resolved = resolve(composed)
    if composed.problems:
        raise UserError(composed.problems)
    needs = [*_packages(resolved), *_sandboxes(resolved)]
    missing = [need for need in needs if need.state == "missing"]
    commands = list(dict.fromkeys(need.install for need in missing if need.install))
    if arguments.json:
        print_json({"needs": [need.__dict__ for need in needs], "install": commands})
    else:
        _print(needs, commands)
    return EXIT_SOME_FAILED if missing else EXIT_OK


def _print(needs: list[Need], commands: list[str]) -> None:
    if needs:
        print_table(["part", "needs", "state", "detail"], [[n.part, n.need, n.state, n.detail] for n in needs])
        print()
    if not any(need.need != "sandbox" for need in needs):
        print(f"No implementation of this configuration has a {FILE}; there is nothing to install.")
    for command in commands:
        print(f"install with: {command}")
    print(LATER, file=sys.stderr)


def _packages(resolved: Resolved) -> Iterator[Need]:
    blocks = sort(resolved.composed.values)
    routes = resolved.settings.environment_server_routes.values()
    for block in starting(blocks, resolved.composed.template_of, routes):
        folder = _folder(block)
        if folder is not None and (folder / FILE).is_file():
            yield from _of_file(block.name, folder / FILE)


def _folder(block: Block) -> Path | None:
    """The folder of an implementation, found without importing it: what it needs may be missing."""
    module = str(block.settings.get(TARGET, "")).rpartition(".")[0]
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _of_file(part: str, file: Path) -> Iterator[Need]:
    from packaging.requirements import InvalidRequirement, Requirement

    install = f"{shlex.quote(sys.executable)} -m pip install -r {shlex.quote(str(file))}"
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.partition(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield Need(part, text, "unchecked", f"a line for the installer, in {shown(file)}")
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            wrong, detail = _checked(requirement.name, str(requirement.specifier))
            yield Need(part, text, "missing" if wrong else "ok", detail, install if wrong else "")


def _checked(name: str, specifier: str) -> tuple[bool, str]:
    from packaging.specifiers import SpecifierSet

    try:
        version = distribution(name).version
    except PackageNotFoundError:
        return True, "not installed"
    return not SpecifierSet(specifier).contains(version, prereleases=True), f"{version} is installed"


def _sandboxes(resolved: Resolved) -> Iterator[Need]:
    for name, component in resolved.components.items():
        try:
            yield Need(name, "sandbox", "ok", component.component_class(component.config).describe())
        except UserError as error:
            yield Need(name, "sandbox", "missing", str(error.problems[0]))
