"""Virtual environments of their own, for implementations whose requirements this process's environment does not meet.

An environment is made once, by `gym env prefetch` or on first use, in `$GYM_CACHE/environments` (by default
`~/.cache/gym/environments`), and shared by all implementations of equal requirements. It has this package; the packages
that this package needs are taken from here where the requirements go with them, else it has its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gym
from gym.composition.roots import PACKAGE
from gym.errors import Problem, UserError
from gym.launch.requirements import lines_of, options_of
from gym.launch.slices import INSTALLED

FORMAT = 1
"""Part of every environment's identity: raise it when building changes what is in one."""
INSTALL_SECONDS = 1800.0
COMPLETE = "complete.json"

Tell = Callable[[str], None]


class InstallError(Exception):
    """The installer could not do it; the text is its own, in one line."""


@dataclass(frozen=True)
class Wanted:
    """An environment that some implementation needs.

    Attributes:
        requirements: Lines for the installer, in order.
        unmet: Those of them that this process's environment does not meet.
        options: Lines that tell an installer where to look.
        here: Versions of the packages here that are to be taken from here: `name==version`.
        folder: What relative paths in the lines are relative to.
    """

    requirements: tuple[str, ...]
    unmet: tuple[str, ...]
    options: tuple[str, ...]
    here: tuple[str, ...]
    folder: Path

    @classmethod
    def by(cls, file: Path) -> Wanted:
        """What a requirements file asks for."""
        lines = lines_of(file)
        here = {*needed_here(own_requirements()), *needed_here(line.text for line in lines if line.met)}
        return cls(
            tuple(line.text for line in lines),
            tuple(line.text for line in lines if not line.met),
            tuple(options_of(file)),
            tuple(sorted(here)),
            file.parent.resolve(),
        )

    @property
    def key(self) -> str:
        """Name of the environment: the same content gives the same name."""
        lines = [*self.requirements, *self.options]
        is_placed = any(line.startswith("-e ") or "/" in line for line in lines)
        bounds = [Path(line[3:]).read_text(encoding="utf-8") for line in self.options if line.startswith("-c ")]
        python = [platform.python_implementation(), platform.python_version(), platform.machine(), sys.base_prefix]
        said = [FORMAT, gym.__version__, str(PACKAGE), python, lines, bounds, self.here]
        text = json.dumps([*said, str(self.folder) if is_placed else ""])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache() -> Path:
    """The folder of all environments."""
    base = os.environ.get("GYM_CACHE")
    return (Path(base) if base else Path("~/.cache/gym").expanduser()) / "environments"


def installed(file: Path) -> Path | None:
    """The interpreter of the environment for a requirements file, if it is here."""
    place = cache() / Wanted.by(file).key
    return place / "bin" / "python" if (place / COMPLETE).exists() else None


def prepare(file: Path, tell: Tell = lambda _: None) -> Path:
    """The interpreter of the environment for a requirements file, which is built now if it is not here.

    Blocks; may be called from many processes at once: one builds, the others wait.

    Args:
        tell: Is told what takes time.

    Raises:
        UserError: It cannot be built, with the installer's own words.
    """
    wanted = Wanted.by(file)
    place = cache() / wanted.key
    python = place / "bin" / "python"
    try:
        if (place / COMPLETE).exists():
            return python
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.with_suffix(".lock"), tell):
            if not (place / COMPLETE).exists():
                tell(f"building a virtual environment for {file}, once")
                _build(place, wanted, tell)
        return python
    except (OSError, InstallError, subprocess.TimeoutExpired) as error:
        fix = "put the requirements right, or install them into this environment"
        raise UserError(Problem(f"no virtual environment for {file}: {error}", fix, str(file))) from error


@contextlib.contextmanager
def _alone(path: Path, tell: Tell) -> Iterator[None]:
    """Holds a lock; the kernel lets go of it when its holder dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process is building its virtual environment")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(place: Path, wanted: Wanted, tell: Tell) -> None:
    """Builds at its final place, since an environment cannot be moved; the last file says that it is complete."""
    begun = time.monotonic()
    try:
        _fill(place, wanted, wanted.unmet, wanted.here)
        from_here = [path for path in sys.path if Path(path).name in INSTALLED]
    except InstallError as first:
        tell(f"its requirements do not go with the packages that are here ({first}); it gets all of its own")
        try:
            _fill(place, wanted, [*wanted.requirements, *own_requirements()], [])
        except InstallError as second:
            raise InstallError(f"{first}; with all packages of its own: {second}") from second
        from_here = []
    _make_importable(place, from_here)
    seconds = round(time.monotonic() - begun, 1)
    said = {"requirements": wanted.requirements, "packages_from": from_here, "seconds": seconds}
    (place / COMPLETE).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    tell(f"its virtual environment is ready after {seconds:g} s: {place}")


def _fill(place: Path, wanted: Wanted, lines: Sequence[str], bounds: Sequence[str]) -> None:
    """Makes an environment with what the lines ask for, of no other versions than the bounds allow.

    Raises:
        InstallError: The installer could not.
    """
    shutil.rmtree(place, ignore_errors=True)
    python = str(place / "bin" / "python")
    uv = shutil.which("uv")
    with tempfile.TemporaryDirectory(prefix="gym-install-") as folder:
        listed, bounded = Path(folder) / "requirements.txt", Path(folder) / "constraints.txt"
        listed.write_text("\n".join([*wanted.options, *lines]) + "\n", encoding="utf-8")
        bounded.write_text("\n".join(bounds) + "\n", encoding="utf-8")
        arguments = ["-r", str(listed), "-c", str(bounded)]
        if uv:
            _run([uv, "venv", "--quiet", "--python", sys.executable, str(place)], wanted.folder)
            _run([uv, "pip", "install", "--quiet", "--python", python, *arguments], wanted.folder)
        else:
            has_pip = importlib.util.find_spec("pip") is not None  # copying it into the environment takes seconds
            _run([sys.executable, "-m", "venv", *(["--without-pip"] if has_pip else []), str(place)], wanted.folder)
            pip = [sys.executable, "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
            _run([*pip, "install", "--quiet", "--disable-pip-version-check", "--no-input", *arguments], wanted.folder)


def _run(argv: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        timeout=INSTALL_SECONDS, env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise InstallError(" / ".join(lines[-3:])[:500] or f"`{argv[0]}` ended with exit code {done.returncode}")


def _make_importable(place: Path, places: Sequence[str]) -> None:
    """Lets an environment find this package, and after its own packages those in `places`."""
    link = place / "this-package" / PACKAGE.name
    link.parent.mkdir()
    link.symlink_to(PACKAGE)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "gym.pth").write_text("\n".join([str(link.parent), *places]) + "\n", encoding="utf-8")


def own_requirements() -> list[str]:
    """What this package needs: from its metadata, or from the checkout that it is run from."""
    from importlib.metadata import PackageNotFoundError, distribution

    with contextlib.suppress(PackageNotFoundError):
        return [text for text in distribution("hydra-gym").requires or [] if "extra ==" not in text]
    with (PACKAGE.parent / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["project"]["dependencies"])


def needed_here(requirements: Iterable[str]) -> Iterator[str]:
    """`name==version` of every package that these need, directly or not, as it is here."""
    from importlib.metadata import PackageNotFoundError, distribution

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    left, seen = [Requirement(text) for text in requirements], set[str]()
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        with contextlib.suppress(PackageNotFoundError):
            found = distribution(name)
            left += [Requirement(text) for text in found.requires or []]
            yield f"{found.name}=={found.version}"
