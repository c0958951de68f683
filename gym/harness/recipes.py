"""What a harness consists of: pinned packages, and how its program is started from the folder they are put in.

Only the registries' ordinary clients are used (`npm`, `pip`). Install scripts of packages are not run: what they would
download is pinned here instead.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from gym.harness import interpreter, libraries

FORMAT = 1
"""Part of every bundle's identity: raise it when installing changes what a bundle holds."""

INSTALL_SECONDS = 1800.0
PATIENCE = ("--fetch-retries=1", "--fetch-retry-mintimeout=2000", "--fetch-timeout=60000")
"""Of npm, which otherwise waits for minutes for a registry that is not there."""

_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


class InstallError(Exception):
    """A runtime could not be installed; the text says why in one line."""


@dataclass(frozen=True)
class Npm:
    """Packages of the npm registry, each `name@version` with an exact version.

    `{arch}` stands for `x64` or `arm64`. Node itself is the package `node-linux-{arch}`, started as `bin/node`.
    """

    packages: tuple[str, ...]

    def install(self, folder: Path, arch: str) -> dict[str, str]:
        """Installs into `folder/node_modules`; returns the version of each package, as it is there afterwards.

        Raises:
            InstallError: npm failed, or took another version than the pinned one, as it does without a word.
        """
        wanted = [package.format(arch=arch) for package in self.packages]
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", *PATIENCE)
        # npm resolves `.bin` and hidden lock files itself; a package.json keeps it from looking further up.
        (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
        run_client(["npm", "install", "--prefix", str(folder), *options, *wanted], folder)
        found = {}
        for package in wanted:
            name, _, version = package.rpartition("@")
            found[name] = _npm_version(folder / "node_modules" / name)
            if found[name] != version:
                raise InstallError(f"npm installed {name} {found[name]} instead of the pinned {version}")
        libraries.own_node(folder)
        return found


@dataclass(frozen=True)
class Pip:
    """Packages of the Python index, with an interpreter of their own: a copy of the one that runs Gym.

    `bin/python` of the bundle starts it. Requirements are exact: `name==version`.

    Attributes:
        dependencies: Also install what the packages ask for, in versions that nobody pinned.
    """

    requirements: tuple[str, ...]
    dependencies: bool = True

    def install(self, folder: Path, arch: str) -> dict[str, str]:  # noqa: ARG002
        """Installs interpreter and packages into `folder/python`; returns the version of each requirement.

        Raises:
            InstallError: The interpreter cannot be copied, or pip failed.
        """
        try:
            packages = interpreter.copy(folder)
        except OSError as error:
            raise InstallError(f"the Python interpreter cannot be copied: {error}") from error
        options = ["--quiet", "--no-compile", "--no-warn-script-location", "--disable-pip-version-check"]
        options += [] if self.dependencies else ["--no-deps"]
        pip = (interpreter.executable(), "-m", "pip", "install", "--target", str(packages), *options)
        run_client([*pip, *self.requirements], folder)
        # Bundles are read-only where they run: without this, every start would compile everything again.
        compiling = ("-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash")
        run_client([interpreter.executable(), *compiling, str(packages.parent)], folder)
        names = [requirement.partition("==")[0].partition("[")[0] for requirement in self.requirements]
        return {name: interpreter.version_of(packages, name) for name in names}


@dataclass(frozen=True)
class Files:
    """Packages of the Python index of which only the files are wanted: no interpreter, nothing that they require.

    Requirements are exact: `name==version`.
    """

    requirements: tuple[str, ...]

    def install(self, folder: Path, arch: str) -> dict[str, str]:  # noqa: ARG002
        """Unpacks into `folder/files`; returns the version of each requirement.

        Raises:
            InstallError: pip failed.
        """
        target = folder / "files"
        options = ("--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check")
        pip = (interpreter.executable(), "-m", "pip", "install", "--target", str(target), *options)
        run_client([*pip, *self.requirements], folder)
        names = [requirement.partition("==")[0] for requirement in self.requirements]
        return {name: interpreter.version_of(target, name) for name in names}


@dataclass(frozen=True)
class Recipe:
    """A runtime to install.

    Attributes:
        name: Name of the harness.
        version: What the program must say of itself when it is asked with `version_arguments`.
        parts: What to install, in order.
        command: The program and its first arguments; a part that exists in the bundle becomes its path there.
        links: Links to make in the bundle: path, and where it leads; a `*` in the latter matches one entry.
        leave_out: Paths in the bundle that are not needed, as globs.
        needs_glibc: The program does not run where only musl is.
    """

    name: str
    version: str
    parts: tuple[Npm | Pip | Files, ...]
    command: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    leave_out: tuple[str, ...] = ()
    version_arguments: tuple[str, ...] = ("--version",)
    needs_glibc: bool = True

    @property
    def key(self) -> str:
        """Name of its folder: the same recipe gives the same key."""
        parts = [[type(part).__name__, asdict(part)] for part in self.parts]
        python = interpreter.identity() if any(isinstance(part, Pip) for part in self.parts) else ""
        said = json.dumps([FORMAT, asdict(self), parts, architecture(), python], sort_keys=True)
        return f"{self.name}-{sha256(said.encode()).hexdigest()[:12]}"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def architecture() -> str:
    """This machine's processor, as npm packages name it.

    Raises:
        InstallError: No harness is published for it.
    """
    machine = platform.machine().lower()
    if machine not in _ARCHITECTURES:
        raise InstallError(f"no harness runtime is published for the processor {machine}")
    return _ARCHITECTURES[machine]


def run_client(argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> str:
    """Runs a program to its end and returns its output.

    Raises:
        InstallError: It is missing, failed, or took longer than `INSTALL_SECONDS`.
    """
    try:
        done = subprocess.run(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=INSTALL_SECONDS, errors="replace",
        )  # fmt: skip
    except FileNotFoundError as error:
        raise InstallError(f"the program `{argv[0]}` is not installed") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"`{argv[0]}`: {error}") from error
    if done.returncode != 0:
        raise InstallError(f"`{' '.join(argv[:3])}` failed: {_reason(done)}")
    return done.stdout + done.stderr


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """The lines that tell, of what a failed client wrote: npm ends with the path of a log."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    telling = [line for line in lines if "complete log of this run" not in line and not line.endswith(".log")]
    # npm begins with what is wrong and goes on with advice; others end with it.
    shown = telling[:4] if telling[:1] and telling[0].startswith("npm error") else telling[-3:]
    return " / ".join(shown)[:500] or f"exit code {done.returncode}"


def _npm_version(package: Path) -> str:
    try:
        return str(json.loads((package / "package.json").read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError):
        return "nothing"
