"""The files of a task folder: what must be there, what is there, and what must not."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from gym.harbor.config import TaskTable
from gym.harbor.digest import left_out

COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
TEST_SCRIPT, SOLVE_SCRIPT = "test.sh", "solve.sh"


@dataclass(frozen=True)
class StepFiles:
    """What the folder of a step holds; for a task without steps, the task's own folder."""

    instruction: str
    tests: tuple[Path, ...]
    solution: Path | None
    workdir: Path | None
    setup: Path | None
    trajectory: Path | None


@dataclass
class Found:
    """What a task folder holds.

    Attributes:
        problems: File, what is wrong, and what to do.
    """

    folder: Path
    steps: list[StepFiles] = field(default_factory=list)
    problems: list[tuple[str, str, str]] = field(default_factory=list)


def look(folder: Path, table: TaskTable) -> Found:
    """Looks at the files that task.toml implies."""
    found = Found(folder)
    _links(found)
    if not found.problems:
        for name in left_out(folder):
            what = "a .harborignore leaves it out, which only counts for the digest here"
            found.problems.append((name, what, "take the file out of the task folder"))
    _environment(found, table)
    names = [step.name for step in table.steps]
    if names:
        _solution_script(found, folder / "solution")
    found.steps = [_step(found, table, index, name) for index, name in enumerate(names)] or [_step(found, table)]
    return found


@dataclass(frozen=True)
class Bundle:
    """A verifier's image that has its tests in it: given, or built from `folder`."""

    folder: Path
    docker_image: str | None


def bundle_of(folder: Path, table: TaskTable, index: int = 0) -> Bundle | None:
    """The image of a verifier of its own, where it is not the one of the task: the step's, else the task's."""
    candidates = [(table.verifier.environment, folder / "tests")]
    if table.steps:
        step = table.steps[index]
        candidates.insert(0, (step.verifier.environment, folder / "steps" / step.name / "tests"))
    for environment, tests in candidates:
        if environment is not None and environment.docker_image:
            return Bundle(tests, environment.docker_image)
        if (tests / "Dockerfile").is_file():
            return Bundle(tests, None)
    return None


def is_separate(table: TaskTable, index: int = 0) -> bool:
    """Whether the verifier of a step has a container of its own."""
    own = table.steps[index].verifier.mode if table.steps else None
    return (own or table.verifier.mode) == "separate"


def strip_canary(text: str) -> str:
    """The text without leading canary lines: marks against training on the data, which are not for agents."""
    lines = text.split("\n")
    marks = next((index for index, line in enumerate(lines) if not CANARY.fullmatch(line.strip())), len(lines))
    first = next((index for index in range(marks, len(lines)) if lines[index].strip()), len(lines))
    return "\n".join(lines[first:])


def _links(found: Found) -> None:
    """What is uploaded or built must not come from elsewhere on this machine."""
    root = found.folder.resolve()
    for place, folders, names in os.walk(found.folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            if path.is_symlink() and not _leads_inside(path, root):
                relative = str(path.relative_to(found.folder))
                found.problems.append(
                    (relative, "is a link that leads out of the task folder, or nowhere", "put the file itself there")
                )


def _leads_inside(link: Path, root: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # it leads nowhere, or in a circle
        return False


def _environment(found: Found, table: TaskTable) -> None:
    folder = found.folder / "environment"
    compose = _compose(found, "environment")
    _compose(found, "tests")
    for step in table.steps:
        _compose(found, f"steps/{step.name}/tests")
    if table.environment.docker_image is None and not compose and not (folder / "Dockerfile").is_file():
        fix = "write it, or set [environment].docker_image"
        found.problems.append(("environment/Dockerfile", "is missing: the task has no image", fix))


def _compose(found: Found, folder: str) -> bool:
    names = [name for name in COMPOSE_FILES if (found.folder / folder / name).exists()]
    for name in names:
        what = "tasks of several containers (docker-compose) are not supported"
        found.problems.append((f"{folder}/{name}", what, "this task cannot run here"))
    return bool(names)


def _step(found: Found, table: TaskTable, index: int = 0, name: str = "") -> StepFiles:
    folder = found.folder / "steps" / name if name else found.folder
    short = f"steps/{name}/" if name else ""
    tests = tuple(dict.fromkeys(place for place in (found.folder / "tests", folder / "tests") if place.is_dir()))
    bundled = is_separate(table, index) and bundle_of(found.folder, table, index) is not None
    if name and not folder.is_dir():
        found.problems.append((short, f"the step `{name}` has no folder", "make it, with instruction.md and tests/"))
    else:
        if not bundled and not any((place / TEST_SCRIPT).is_file() for place in tests):
            where = f"{short}tests/{TEST_SCRIPT}"
            found.problems.append(
                (where, "is missing: the task has no verifier", "it writes /logs/verifier/reward.txt")
            )
        _solution_script(found, folder / "solution")
    return StepFiles(
        _instruction(found, folder, short),
        () if bundled else tests,
        next((place / "solution" for place in (folder, found.folder) if (place / "solution").is_dir()), None),
        folder / "workdir" if name and (folder / "workdir").is_dir() else None,
        folder / "workdir" / "setup.sh" if name and (folder / "workdir" / "setup.sh").is_file() else None,
        folder / "trajectory.json" if (folder / "trajectory.json").is_file() else None,
    )


def _solution_script(found: Found, folder: Path) -> None:
    if folder.is_dir() and not (folder / SOLVE_SCRIPT).is_file():
        where = str((folder / SOLVE_SCRIPT).relative_to(found.folder))
        found.problems.append(
            (where, "is missing, though there is a solution/ folder", "write it, or remove the folder")
        )


def _instruction(found: Found, folder: Path, short: str) -> str:
    where = f"{short}instruction.md"
    if short and not folder.is_dir():
        return ""
    try:
        text = strip_canary((folder / "instruction.md").read_text(encoding="utf-8"))
    except FileNotFoundError:
        found.problems.append((where, "is missing", "it says what the agent is to do"))
        return ""
    except (OSError, UnicodeDecodeError) as error:
        found.problems.append((where, f"cannot be read: {error}", ""))
        return ""
    if not text.strip():
        found.problems.append((where, "is empty", "it says what the agent is to do"))
    return text
