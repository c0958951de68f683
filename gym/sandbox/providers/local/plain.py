"""No isolation: commands are ordinary processes in a folder of their own."""

from __future__ import annotations

import os
import pwd
from asyncio.subprocess import Process
from pathlib import Path

from gym.failures import EpisodeFailure
from gym.sandbox import processes
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.local.command import Launch, Verdict
from gym.sandbox.providers.local.isolation import Place, Prepared, Reach
from gym.sandbox.providers.local.tree import Tree


class Plain:
    """Ordinary processes of this user, with a clean environment and their own HOME and TMPDIR."""

    name = "none"
    isolated = False
    own_namespace = False
    mounts = False
    reserved: frozenset[str] = frozenset()

    def describe(self) -> str:
        """One line for the log."""
        return "plain temporary directory, NO isolation"

    @property
    def users(self) -> frozenset[str]:
        """Ways to name the one user that commands run as."""
        uid = os.geteuid()
        try:
            return frozenset({str(uid), pwd.getpwuid(uid).pw_name})
        except KeyError:
            return frozenset({str(uid)})

    def prepare(self, directory: Path, spec: SandboxSpec) -> Prepared:
        """Make the folders of a sandbox."""
        files = directory / "files"
        work = files / spec.workdir.lstrip("/")
        for path in (files / "tmp", files / "home", work):
            path.mkdir(parents=True, exist_ok=True)
        return Prepared(
            str(work),
            {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(files / "home"),
                "TMPDIR": str(files / "tmp"),
                "LANG": "C.UTF-8",
            },
        )

    def files(self, place: Place) -> Tree:
        """The files of a sandbox, for access from the host."""
        directory = place.directory / "files"
        return Tree(directory, str(directory), place.record.workdir)

    def launch(self, place: Place, argv: list[str], env: dict[str, str], reach: Reach) -> Launch:  # noqa: ARG002
        """How to start one command; `env` is complete. Everything can be reached anyway."""
        return Launch(argv, env, MarkedProcesses(env[processes.MARK]), place.directory)


class MarkedProcesses:
    """The processes that carry a mark in their environment, or are in the session of the first one."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._process: Process | None = None

    def started(self, process: Process | None) -> None:
        """Remember the first process."""
        self._process = process

    async def entered(self) -> None:
        """Nothing is held back."""

    async def end(self) -> None:
        """Kill them all and wait until they are gone."""

        def find() -> list[int]:
            session = processes.in_session(self._process.pid) if self._process else []
            return sorted({*processes.marked((self._mark,)), *session})

        left = await processes.end_all(find)
        if left:
            raise EpisodeFailure("sandbox_lost", f"processes {left} of a command could not be ended")
        if self._process:
            await self._process.wait()

    def verdict(self, returncode: int) -> Verdict:
        """The first process is the command: its own code and signal."""
        return Verdict(128 - returncode, -returncode) if returncode < 0 else Verdict(returncode)
