"""What an implementation's `requirements.txt` asks for, and whether this process's environment has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gym.errors import Problem, UserError

FILE = "requirements.txt"
OURS = frozenset({"hydra-gym", "nemo-gym"})
"""Distributions that stand for this package; recipes written for NeMo Gym name theirs."""


@dataclass(frozen=True)
class Line:
    """One requirement.

    Attributes:
        text: As it is written.
        met: Whether this environment has it; None where only an installer can tell.
        detail: The version that is here, or what is wrong.
    """

    text: str
    met: bool | None
    detail: str


def lines_of(file: Path) -> list[Line]:
    """The requirements of a file, and of the files that it includes; those for other platforms are left out.

    Raises:
        UserError: The file, or one that it includes, cannot be read.
    """
    return [line for text in texts_of(file) if (line := _checked(text)) is not None]


def unmet(file: Path) -> list[str]:
    """The requirements that this environment does not have, or that only an installer understands."""
    return [line.text for line in lines_of(file) if not line.met]


def texts_of(file: Path) -> Iterator[str]:
    """The lines that ask for packages. Options for the installer and this package itself are no such lines."""
    for line in _joined(file):
        option, _, rest = line.partition(" ")
        if option in ("-r", "--requirement"):
            yield from texts_of(file.parent / rest.strip())
        elif not _is_ours(line) and (not line.startswith("-") or option in ("-e", "--editable")):
            yield line


def options_of(file: Path) -> list[str]:
    """The lines of a file, and of the files that it includes, that tell an installer where to look and how."""
    found: list[str] = []
    for line in _joined(file):
        option, _, rest = line.partition(" ")
        if option in ("-r", "--requirement"):
            found += options_of(file.parent / rest.strip())
        elif option in ("-c", "--constraint"):
            found.append(f"-c {(file.parent / rest.strip()).resolve()}")
        elif line.startswith("-") and option not in ("-e", "--editable"):
            found.append(line)
    return found


def _joined(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(Problem(f"the requirements cannot be read: {error}", where=str(file))) from error
    for line in text.splitlines():
        bare = line.partition(" #")[0].strip()
        if bare and not bare.startswith("#"):
            yield bare


def _is_ours(line: str) -> bool:
    words = line.removeprefix("-e ").removeprefix("--editable ").strip()
    name = words.split("@")[0].split("[")[0].split(";")[0].rstrip(" <>=~!0123456789.*,")
    return name.lower().replace("_", "-") in OURS


def _checked(text: str) -> Line | None:
    from importlib.metadata import PackageNotFoundError, distribution

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return Line(text, None, "a line for the installer")
    if requirement.marker is not None and not requirement.marker.evaluate():
        return None
    try:
        version = distribution(requirement.name).version
    except PackageNotFoundError:
        return Line(text, False, "not installed")
    return Line(text, requirement.specifier.contains(version, prereleases=True), f"{version} is installed")
