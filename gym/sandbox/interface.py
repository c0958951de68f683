"""What a sandbox is, and what a provider of sandboxes implements.

A sandbox is a place with files of its own where commands run. Its owner creates and stops it; a borrower reaches it
through its descriptor. Only the standard library is imported here, so that code inside a sandbox may import it too.

Paths are the sandbox's own: absolute, or relative to its work directory, and never with `..`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from gym.sandbox.config import SandboxProviderConfig

JSON: TypeAlias = "str | int | float | bool | list[JSON] | dict[str, JSON] | None"
Network = Literal["open", "gym_only", "none"]
StreamName = Literal["stdout", "stderr"]
OnOutput = Callable[[StreamName, bytes], None]

DEFAULT_TIMEOUT_SECONDS = 180.0
DEFAULT_OUTPUT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Resources:
    """Upper limits of one sandbox; None leaves a limit to the provider's configuration.

    Attributes:
        cpu: Cores.
        memory_mib: Memory, in MiB.
        pids: Processes and threads at one time.
        disk_mib: Disk space, in MiB.
    """

    cpu: float | None = None
    memory_mib: int | None = None
    pids: int | None = None
    disk_mib: int | None = None


@dataclass(frozen=True)
class SandboxSpec:
    """The sandbox that somebody asks for.

    Attributes:
        image: Image to start from, for providers with images.
        workdir: Absolute directory where commands start; it is created when it is missing.
        env: Variables that every command sees.
        resources: Upper limits.
        network: `open`, `gym_only` (the Gym servers and nothing else) or `none`.
        ttl_seconds: The provider stops the sandbox after this time even if nobody else does; None for no such bound.
        labels: Who it belongs to (rollout, session, agent, ...); for people and for the sweeper.
    """

    image: str | None = None
    workdir: str = "/work"
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    network: Network = "none"
    ttl_seconds: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Capabilities:
    """What the sandboxes of a provider can do; planning compares it with what harness and task need.

    Attributes:
        root: Commands run as user 0 unless told otherwise.
        users: `exec` can run as another user whose files are kept apart.
        networks: The values of `SandboxSpec.network` that `create` accepts.
        background: What a command leaves running in the background outlives that command.
        mounts: Host folders can be mounted read-only.
        snapshots: The state of a sandbox can be saved and started again.
        gpu: GPUs can be used.
        images: Sandboxes start from `SandboxSpec.image`.
    """

    root: bool
    users: bool
    networks: frozenset[Network]
    background: bool = False
    mounts: bool = False
    snapshots: bool = False
    gpu: bool = False
    images: bool = False


@dataclass(frozen=True)
class ExecResult:
    """How a command ended and what it wrote.

    Attributes:
        exit_code: Exit code of the main process; 128+N when signal N ended it; 126 when it could not be started and
            127 when it was not found, as in a shell.
        stdout: Bounded output: beginning and end, with a mark where bytes are left out.
        stderr: The same for the error stream.
        timed_out: The time was up and all its processes were killed.
        signal: The signal that ended it, else None. Providers that see only an exit code derive it from 128+N.
        stdout_truncated: Bytes left out of `stdout`.
        stderr_truncated: Bytes left out of `stderr`.
        duration_seconds: Wall time, start and end of the processes included.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    signal: int | None = None
    stdout_truncated: int = 0
    stderr_truncated: int = 0
    duration_seconds: float = 0.0

    @property
    def stdout_text(self) -> str:
        """`stdout` as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """`stderr` as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr.decode("utf-8", "replace")


class Sandbox(ABC):
    """A live sandbox.

    Every method but `descriptor` and `stop` raises `EpisodeFailure("sandbox_lost")` when the sandbox is stopped, has
    outlived its ttl, or is gone. A cancelled call ends what it started before it passes the cancellation on.
    """

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
            UserError: the provider cannot run commands as `user`.
            ValueError: `env` holds a name that no environment can hold.
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
            FileNotFoundError: there is no such file.
            PermissionError: the path leaves the sandbox, or is neither a file nor a folder.
            OSError: `EFBIG` when there is more than `max_bytes`, and as for local files.
            EpisodeFailure: `sandbox_lost`.
        """

    @abstractmethod
    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """The content of one file.

        Raises:
            FileNotFoundError: there is no such file.
            PermissionError: the path leaves the sandbox, or is no regular file.
            OSError: `EFBIG` when it is longer than `max_bytes`; it is never cut silently.
            EpisodeFailure: `sandbox_lost`.
        """

    @abstractmethod
    def descriptor(self) -> dict[str, JSON]:
        """What a borrower gives to `SandboxProvider.connect`, perhaps in another process. Holds no secrets."""

    @abstractmethod
    async def stop(self) -> None:
        """End all processes and free everything; idempotent.

        On a borrowed sandbox it ends the borrower's own commands and leaves the rest to the owner.

        Raises:
            EpisodeFailure: `cleanup_failed` when something could not be freed. A second call tries again.
        """


class SandboxProvider(ABC):
    """Makes sandboxes from one configuration: `provider(config_type.model_validate({...}))`.

    Construction is cheap and reaches nothing outside; what needs checking is checked on first use.

    Attributes:
        name: Name of the provider, as in `conf/sandbox/NAME.yaml`.
        config_type: Its settings, with `extra="forbid"`.
        unavailable: Why it cannot run yet; empty for one that can. Planning refuses it with this reason.
    """

    unavailable: ClassVar[str] = ""
    name: ClassVar[str]
    config_type: ClassVar[type[SandboxProviderConfig]]

    @property
    @abstractmethod
    def isolated(self) -> bool:
        """Whether untrusted code in a sandbox is kept away from this machine.

        Raises:
            UserError: the isolation that the configuration asks for does not work here.
        """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What its sandboxes can do. Raises the same as `isolated`."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox, owned by the caller, who must `stop` it.

        Raises:
            UserError: the spec asks for something that the capabilities exclude.
            EpisodeFailure: `sandbox_start`.
        """

    @abstractmethod
    async def connect(self, descriptor: Mapping[str, JSON]) -> Sandbox:
        """Borrow the sandbox of somebody else.

        Raises:
            EpisodeFailure: `sandbox_lost` when there is no such sandbox.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line for log and manifest: what isolates, in which version. Raises the same as `isolated`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop what this provider created and leave what it borrowed; idempotent. Raises the same as `Sandbox.stop`."""
