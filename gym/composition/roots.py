"""Where files are looked for: the working directory first, then the installed project.

Both have the same top-level folders (`conf/`, `experiments/`, `resources_servers/`, ...), so a user's own project
overlays ours. Framework folders (`environment_servers/`, `responses_api_models/`, `sandbox/`) are also found under
`gym/`; `nemo_gym/` is an alias of `gym/`, so that recipes written for NeMo Gym compose unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from gym.errors import Problem, UserError

PACKAGE = Path(__file__).resolve().parent.parent


@cache
def installed_root() -> Path:
    """The folder with our own `conf/`, `experiments/`, ...: the checkout, or what a wheel carries."""
    checkout = PACKAGE.parent
    return checkout if (checkout / "conf" / "config.yaml").is_file() else PACKAGE / "_project"


def roots() -> list[Path]:
    """The search roots in order: working directory, installed project."""
    here = Path.cwd()
    return [here] if here == installed_root() else [here, installed_root()]


def bases() -> list[Path]:
    """The folders that a relative path is tried under, in order."""
    here, *installed = roots()
    return [here, here / "gym", *installed, PACKAGE] if (here / "gym").is_dir() else [here, *installed, PACKAGE]


def _spellings(path: str) -> Iterator[str]:
    plain = path.removeprefix("./")
    if plain.startswith("nemo_gym/"):
        plain = "gym/" + plain.removeprefix("nemo_gym/")
    yield plain
    if plain.startswith("gym/"):
        yield plain.removeprefix("gym/")


def lookup(path: str) -> Path | None:
    """The existing file that a path of a configuration means, or None. Absolute paths are taken as they are."""
    if Path(path).is_absolute():
        return Path(path) if Path(path).is_file() else None
    for base in bases():
        for spelling in _spellings(path):
            if (found := base / spelling).is_file():
                return found
    return None


def find(path: str) -> Path:
    """As `lookup`.

    Raises:
        UserError: Nothing is there; lists the places searched.
    """
    found = lookup(path)
    if found is None:
        places = "" if Path(path).is_absolute() else "looked under " + ", ".join(map(str, roots()))
        raise UserError(Problem(f"no such file: {path}", places))
    return found


def shown(path: Path) -> str:
    """A path as messages print it: relative to a root where it lies under one."""
    for root in roots():
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return f"gym/{path.relative_to(PACKAGE)}" if path.is_relative_to(PACKAGE) else str(path)


def make_importable() -> None:
    """Puts the roots on `sys.path`, so that implementations (`resources_servers.x.app`) can be imported.

    Their top-level folders are namespace packages: a user's folder and ours are seen as one.
    """
    for position, root in enumerate(map(str, roots())):
        if root not in sys.path:
            sys.path.insert(position, root)
