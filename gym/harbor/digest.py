"""Content digests of task folders and datasets, exactly as Harbor computes them.

A task's digest is the SHA-256 of one line `path NUL sha256-of-the-file` for each of its files, in the order of their
paths. Which files count: task.toml, instruction.md, README.md, trajectory.json, and what is in environment/, tests/,
solution/ and steps/, without what `.gitignore` of the folder (or, where there is none, a short list) and the
`.harborignore` files of tests/ and solution/ leave out.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from gym.errors import Problem, UserError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec, PathSpec

PREFIX = "sha256:"
SINGLE_FILES = ("task.toml", "instruction.md", "README.md", "trajectory.json")
FOLDERS = ("environment", "tests", "solution", "steps")
GITIGNORE, HARBORIGNORE = ".gitignore", ".harborignore"
IGNORED_NAMES = ("*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")
"""Files and folders that never count where the folder has no .gitignore; beside folders named `__pycache__`."""


def task_digest(folder: Path) -> str:
    """`sha256:` and 64 hex digits.

    Raises:
        UserError: A file cannot be read.
    """
    return digest_of(folder, task_files(folder))


def digest_of(folder: Path, names: Iterable[str]) -> str:
    """The same, of files that are listed already."""
    outer = hashlib.sha256()
    try:
        for name in names:
            with (folder / name).open("rb") as file:
                outer.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    except OSError as error:
        raise UserError(Problem(f"cannot read it: {error.strerror}", where=str(error.filename))) from error
    return PREFIX + outer.hexdigest()


def dataset_digest(tasks: Iterable[str], files: Mapping[str, str] | None = None) -> str:
    """Digest of a dataset.

    Args:
        tasks: Digests of its tasks.
        files: Digests of the files beside dataset.toml that it lists, by name.
    """
    text = ",".join(sorted(digest.removeprefix(PREFIX) for digest in tasks))
    if files:
        text += ";" + ",".join(sorted(f"{name}:{digest.removeprefix(PREFIX)}" for name, digest in files.items()))
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Digest of one file."""
    with path.open("rb") as file:
        return PREFIX + hashlib.file_digest(file, "sha256").hexdigest()


def task_files(folder: Path) -> list[str]:
    """The files of a task that count, relative, with slashes, sorted."""
    root = folder.resolve()
    found = [name for name in SINGLE_FILES if (root / name).exists()]
    for name in FOLDERS:
        if (root / name).is_dir():
            found += _below(root, root / name)
    gitignore = root / GITIGNORE
    if gitignore.exists():
        rules = _gitignore(gitignore)
        found = [name for name in found if not rules.match_file(name)]
    else:
        found = [name for name in found if not _is_clutter(name)]
    return sorted(found)


def left_out(folder: Path) -> list[str]:
    """The files that a .harborignore leaves out of a task, relative, sorted."""
    root = folder.resolve()
    ignores = [path for name in FOLDERS for path in (root / name).rglob(HARBORIGNORE) if path.is_file()]
    found = {path for ignore in ignores for path in ignore.parent.rglob("*") if path.is_file()}
    return sorted(
        path.relative_to(root).as_posix() for path in found if path.name != HARBORIGNORE and _under_rules(root, path)
    )


def _under_rules(root: Path, path: Path) -> bool:
    parts = path.relative_to(root).parts
    return any(_left_out(root, root.joinpath(*parts[:length])) for length in range(1, len(parts) + 1))


def _below(root: Path, folder: Path) -> Iterator[str]:
    """Files under a folder. Links to folders are not followed, those to files are what they lead to."""
    if _left_out(root, folder):
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _below(root, path)
        elif path.is_file() and not _left_out(root, path):
            yield path.relative_to(root).as_posix()


def _left_out(root: Path, path: Path) -> bool:
    """Whether a .harborignore names a path, or what it leads to."""
    target = path.resolve()
    return _is_named(root, path) or (target != path and target.is_relative_to(root) and _is_named(root, target))


def _is_named(root: Path, path: Path) -> bool:
    parts = path.relative_to(root).parts
    if path.name == HARBORIGNORE:
        return True
    start = _scope(parts)
    if not start:
        return False
    for length in range(start + 1, len(parts) + 1):
        slash = "/" if length < len(parts) or path.is_dir() else ""
        named = False
        for depth in range(start, length):
            ignore = root.joinpath(*parts[:depth], HARBORIGNORE)
            if ignore.is_file():
                relative = PurePosixPath(*parts[depth:length]).as_posix() + slash
                said = _harborignore(ignore, ignore.stat().st_mtime_ns).check_file(relative).include
                named = named if said is None else said
        if named:
            return True
    return False


def _scope(parts: tuple[str, ...]) -> int:
    """How many leading parts name the tests/ or solution/ folder that a path is in; 0: it is in none."""
    for depth in (1, 3):
        inside = parts[:1] == ("steps",) if depth == 3 else True
        if inside and len(parts) >= depth and parts[depth - 1] in ("tests", "solution"):
            return depth
    return 0


def _is_clutter(name: str) -> bool:
    *folders, last = name.split("/")
    return "__pycache__" in folders or any(
        fnmatch.fnmatchcase(part, pattern) for part in (*folders, last) for pattern in IGNORED_NAMES
    )


def _gitignore(path: Path) -> PathSpec[Any]:
    """Rules of a .gitignore as Harbor reads them: the last one that matches a file counts, whatever its folder."""
    from pathspec import PathSpec

    return PathSpec.from_lines("gitignore", path.read_text(encoding="utf-8").splitlines())


@lru_cache(maxsize=256)
def _harborignore(path: Path, _changed: int) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(path.read_text(encoding="utf-8").splitlines())
