"""Isolation by bubblewrap: one `bwrap` a command, over the same files of the sandbox.

The sandbox's own folder is its writable root. Everything that belongs to the system is mounted over it read-only, and
only on direct children of the root: a mount point cannot be moved or replaced from inside, whereas a folder above one
could be, which would let the code inside steer the next mount.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gym.sandbox.interface import SandboxSpec
from gym.sandbox.processes import MARK
from gym.sandbox.providers.local import system
from gym.sandbox.providers.local.command import Launch
from gym.sandbox.providers.local.isolation import Place, Prepared, Reach
from gym.sandbox.providers.local.namespace import Namespace
from gym.sandbox.providers.local.tree import Tree

HOME = "/home/gym"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--uid", "0", "--gid", "0", "--hostname", "sandbox"),
)
# Read-only, because a process of root's is still root to /proc/sys, whatever its capabilities.
DEVICES = ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev")
PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Installed:
    """A bubblewrap that works on this machine.

    Attributes:
        executable: Its absolute path.
        version: As it says itself, for example `0.8.0`.
        namespaces: The options for namespaces and privileges that it accepts here.
    """

    executable: str
    version: str
    namespaces: tuple[str, ...]


@functools.cache
def probe() -> Installed | str:
    """The bubblewrap of this machine, tried once in a process; or why there is none, in one line."""
    executable = shutil.which("bwrap")
    if executable is None:
        return "the program `bwrap` is not installed"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"the kernel has no pidfd_open (Linux 5.3 or newer is needed): {error.strerror}"
    reason = ""
    # Releases before 0.8, and setuid installations, cannot forbid further user namespaces.
    for namespaces in ((*NAMESPACES, "--disable-userns"), NAMESPACES):
        argv = [executable, *namespaces, *_mounts(system.folders()), *DEVICES, "--chdir", "/", "/usr/bin/true"]
        tried = _output(argv)
        if tried.returncode == 0:
            version = _output([executable, "--version"]).stdout.split()
            return Installed(executable, version[-1] if version else "?", namespaces)
        reason = reason or tried.stderr.strip() or f"exit code {tried.returncode}"
    return f"`bwrap` does not work here: {reason.splitlines()[-1][:300]}"


def _output(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))


def _mounts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [word for source, target in pairs for word in ("--ro-bind", source, target)]


def _top(target: str) -> str:
    """The top-level folder of a mount's path, which belongs to mounts alone."""
    return PurePosixPath(target).parts[1]


def _tops(spec: SandboxSpec) -> list[str]:
    return [_top(mount.target) for mount in spec.mounts]


def _mounted(mounts: Sequence[tuple[str, str]]) -> list[str]:
    """Options for the mounts of a spec; those deeper down lie in a fresh folder, which nothing inside can prepare."""
    deeper = sorted({f"/{_top(target)}" for _, target in mounts if PurePosixPath(target).parent != PurePosixPath("/")})
    return [
        *(word for top in deeper for word in ("--tmpfs", top)),
        *_mounts(mounts),
        *(word for top in deeper for word in ("--remount-ro", top)),
    ]


class Bubblewrap:
    """Commands in namespaces of their own, with no more of this machine than its system files, read-only."""

    name = "bubblewrap"
    isolated = True
    own_namespace = True
    mounts = True
    users = frozenset({"0", "root"})

    def __init__(self, installed: Installed) -> None:
        self._installed = installed

    def describe(self) -> str:
        """One line for the log."""
        return f"bubblewrap {self._installed.version}"

    @property
    def reserved(self) -> frozenset[str]:
        """Top-level names that belong to the system."""
        return system.names()

    def prepare(self, directory: Path, spec: SandboxSpec) -> Prepared:
        """Make the root of a sandbox."""
        files = directory / "files"
        for name in sorted(self.reserved):
            (files / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp", "run", "opt", HOME[1:], spec.workdir.lstrip("/"), *_tops(spec)):
            (files / name).mkdir(parents=True, exist_ok=True)
        for name in ("tmp", "var/tmp"):
            (files / name).chmod(0o1777)
        (directory / "system").mkdir()
        system.write_etc(directory / "system", HOME, with_network=spec.network == "open")
        return Prepared(spec.workdir, _environment())

    def files(self, place: Place) -> Tree:
        """The files of a sandbox, for access from the host."""
        mounted = {_top(target) for _, target in place.record.mounts}
        return Tree(place.directory / "files", "/", place.record.workdir, self.reserved | mounted)

    def launch(self, place: Place, argv: list[str], env: dict[str, str], reach: Reach) -> Launch:
        """How to start one command; `env` is complete."""
        directory = place.directory
        options = [
            *self._installed.namespaces,
            *(["--share-net"] if place.record.network == "open" else []),
            *("--bind", str(directory / "files"), "/"),
            *_mounts(system.folders()),
            *_mounts(system.etc(directory / "system")),
            *system.private_masks(directory.parent),
            *system.python_options(directory / "system"),
            *_mounted(place.record.mounts),
            *DEVICES,
            *("--chdir", "/", "--clearenv"),
            *(word for name, value in env.items() for word in ("--setenv", name, value)),
        ]
        namespace = Namespace(reach)
        words = namespace.words(options)
        # The first process inside keeps the environment and command line that bwrap was started with, and the code
        # inside can read both: so the one holds only the mark, and the options travel through a file.
        return Launch(
            [self._installed.executable, *words, "--", *argv],
            {MARK: env[MARK]},
            namespace,
            Path("/"),
            namespace.child_fds,
        )


def _environment() -> dict[str, str]:
    return {
        "PATH": f"{PATH}:{system.PYTHON}/bin" if system.python() else PATH,
        "HOME": HOME,
        "USER": "root",
        "LANG": "C.UTF-8",
        # There is one user only, so that tar, as root, could not give files to others.
        "TAR_OPTIONS": "--no-same-owner",
    }
