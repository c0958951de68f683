"""A live sandbox, as its owner and its borrowers see it. Only the standard library is imported here.

Paths are the sandbox's own: absolute, or relative to its work directory, and never with `..`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.spec import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    JSON,
    Change,
    ExecResult,
    Network,
    OnOutput,
)


class Sandbox(ABC):
    """A live sandbox.

    Every method but `descriptor` and `stop` raises `EpisodeFailure("sandbox_lost")` when the sandbox is stopped, has
    outlived its ttl, or is gone. A cancelled call ends what it started before it passes the cancellation on.

    Attributes:
        keeps_background: What a command leaves running outlives that command, as `Capabilities.background` says.
    """

    keeps_background: ClassVar[bool] = False

    @property
    @abstractmethod
    def id(self) -> str:
        """Unique name, fit for file names and labels."""

    @property
    @abstractmethod
    def workdir(self) -> str:
        """Where commands start: the absolute path as the sandbox's own processes see it."""

    @abstractmethod
    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run a command and wait for its end.

        A command that fails, is not found or runs out of time is a result, not an exception.

        Args:
            command: A string is run by `sh -c`; a sequence is argv.
            stdin: Bytes to read; None is an empty input.
            env: Variables on top of the sandbox's own.
            cwd: Where to start; a relative path starts at `workdir`. A missing directory is exit code 126.
            user: Another user, where `Capabilities.users` says so.
            timeout_seconds: After this time all processes of the command are killed.
            max_output_bytes: How much of each stream the result keeps. The rest is read, counted and dropped.
            on_output: Called in the event loop with every chunk, each stream in its own order and never truncated.
                What it raises ends the command and is raised here.

        Raises:
            UserError: the provider cannot run commands as `user`, or the image has no such user.
            ValueError: `env` holds a name or value that no environment can hold, or this provider not carry.
            EpisodeFailure: `sandbox_lost`, also when the processes could not be started or confirmed to be gone.
        """

    @abstractmethod
    async def upload(self, source: Path | bytes, target: str, *, mode: int | None = None) -> None:
        """Copy a file, a folder or bytes from the host into the sandbox.

        Missing parents are created. A file replaces a file or link; a folder is merged into a folder, keeping the
        modes and links that it has.

        Args:
            source: Host path, or the content of a file.
            target: Path of the file or folder itself, not of its parent.
            mode: Permissions of a file; by default those of the source, and 0644 for bytes.

        Raises:
            ValueError: the path contains what no path can, such as a NUL character.
            PermissionError: the path leaves the sandbox, through `..` or a link, or leads to its read-only part.
            OSError: as for local files (`FileNotFoundError`, `IsADirectoryError`, `NotADirectoryError`, disk full).
            EpisodeFailure: `sandbox_lost`.
        """

    @abstractmethod
    async def download(self, source: str, target: Path, *, max_bytes: int | None = None) -> list[str]:
        """Copy a file or a folder from the sandbox to the host.

        The content is untrusted: nothing outside the sandbox is read, no set-user-id bit survives, and links in a
        folder are kept only if they lead further down in it.

        Args:
            source: Path in the sandbox.
            target: Host path of the file or folder itself; parents are created.
            max_bytes: Bound for all content together.

        Returns:
            What a folder holds but was left out (links that lead elsewhere, sockets, pipes, more than 200 levels),
            relative to it.

        Raises:
            ValueError: the path contains what no path can, such as a NUL character.
            FileNotFoundError: there is no such file.
            PermissionError: the path leaves the sandbox, or is neither a file nor a folder.
            OSError: `EFBIG` when there is more than `max_bytes`, and as for local files.
            EpisodeFailure: `sandbox_lost`.
        """

    @abstractmethod
    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """The content of one file.

        Raises:
            ValueError: the path contains what no path can, such as a NUL character.
            FileNotFoundError: there is no such file.
            PermissionError: the path leaves the sandbox, or is no regular file.
            OSError: `EFBIG` when it is longer than `max_bytes`; it is never cut silently.
            EpisodeFailure: `sandbox_lost`.
        """

    @property
    def image_digest(self) -> str | None:
        """Digest of the image that it started from; None where there is none or it is not known."""
        return None

    async def alive(self) -> bool:
        """Whether it can still be used. Raises nothing."""
        try:
            return (await self.exec("true", timeout_seconds=30)).exit_code == 0
        except EpisodeFailure:
            return False

    async def gym_url(self, url: str) -> str:
        """The URL of a Gym server as the code inside reaches it.

        With the network `gym_only`, this also lets commands that start afterwards reach that server.

        Args:
            url: `http://host:port/path` as this process reaches it.

        Raises:
            UserError: the server cannot be reached from inside; the message says what would help.
            EpisodeFailure: `sandbox_lost`.
        """
        return url

    async def changed_files(self) -> Mapping[str, Change] | None:
        """Paths that are not as in the image, told by the provider without asking a program inside; None: it cannot.

        Raises:
            EpisodeFailure: `sandbox_lost`.
        """
        return None

    async def restore(self, paths: Iterable[str], *, machine_only: bool = False) -> list[str]:  # noqa: ARG002
        """Put files and links back as they are in the image, where `changed_files` can tell; new ones become empty.

        Args:
            paths: Absolute. One that is a folder in the image is left alone.
            machine_only: So is one that is no machine program there, but a script or a link.

        Returns:
            Those that were put back.

        Raises:
            UserError: the provider cannot do that, or the sandbox is borrowed.
            EpisodeFailure: `sandbox_lost`.
        """
        raise UserError(f"the files of sandbox {self.id} cannot be restored: {sorted(paths)[:3]}")

    async def change_network(self, network: Network) -> None:
        """Give it another network; what runs inside goes on, and its connections end.

        Raises:
            UserError: the provider cannot do that, or the sandbox is borrowed.
            EpisodeFailure: `sandbox_lost`; `sandbox_start` when there is no room for such a network.
        """
        raise UserError(f"the network of sandbox {self.id} cannot be changed to {network}")

    async def forward(self, port: int) -> tuple[str, int]:
        """Host and port where this machine reaches a server that listens on `port` on all addresses in the sandbox.

        Raises:
            UserError: this machine cannot reach into the sandbox's network.
            EpisodeFailure: `sandbox_lost`.
        """
        raise UserError(f"this machine cannot reach port {port} of sandbox {self.id}")

    async def renew(self, ttl_seconds: float) -> None:
        """Let it live for `ttl_seconds` from now, in place of the ttl that it has.

        Raises:
            UserError: the provider cannot change the ttl, or the sandbox is borrowed.
            EpisodeFailure: `sandbox_lost`.
        """
        raise UserError(f"the ttl of sandbox {self.id} cannot be changed to {ttl_seconds:g} s")

    @abstractmethod
    def descriptor(self) -> dict[str, JSON]:
        """What a borrower gives to `SandboxProvider.connect`, perhaps in another process. Holds no secrets."""

    async def fence(self, *, keep_running: bool = False) -> None:  # noqa: ARG002
        """Take back what was lent: descriptors handed out so far stop working, and what runs inside is killed.

        The commands of this object itself must have ended. Afterwards only the owner acts on the sandbox.

        Args:
            keep_running: Kill nothing, for tasks whose outcome is something that runs, such as a server.

        Raises:
            UserError: the provider cannot take a sandbox back, or it is borrowed.
            EpisodeFailure: `sandbox_lost`, also when something could not be killed.
        """
        raise UserError(f"sandbox {self.id} cannot be taken back from its borrowers; stop it instead")

    @abstractmethod
    async def stop(self) -> None:
        """End all processes and free everything; idempotent.

        On a borrowed sandbox it ends the borrower's own commands and leaves the rest to the owner.

        Raises:
            EpisodeFailure: `cleanup_failed` when something could not be freed. A second call tries again.
        """
