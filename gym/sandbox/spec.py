"""The plain data of the sandbox interface: what is asked for, what a provider can do, how a command ended.

Only the standard library is imported here; see `gym.sandbox.interface`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

JSON: TypeAlias = "str | int | float | bool | list[JSON] | dict[str, JSON] | None"
Network = Literal["open", "gym_only", "none"]
StreamName = Literal["stdout", "stderr"]
Change = Literal["changed", "added", "removed"]
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
class Mount:
    """A host folder that a sandbox sees read-only, such as the runtime of a harness.

    Attributes:
        source: Absolute path of the folder on the host.
        target: Absolute path in the sandbox. Give mounts a top-level folder of their own (`/gym/...`): providers
            without images keep that folder for mounts alone.
    """

    source: Path
    target: str


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
        mounts: Host folders to show read-only, where `Capabilities.mounts` says so.
        gym_address: Host and port where the Gym servers listen, as this process reaches them. It is what `gym_only`
            lets through from the start; `Sandbox.gym_url` opens others later.
    """

    image: str | None = None
    workdir: str = "/work"
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    network: Network = "none"
    ttl_seconds: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    gym_address: tuple[str, int] | None = None


@dataclass(frozen=True)
class Common:
    """What all sandboxes of a provider have, whoever asks for them; set at the start of a run.

    Attributes:
        labels: Such as the run.
        mounts: Such as the runtimes of the run's harnesses, for sandboxes that are lent to them. They are a shortcut:
            a sandbox that cannot have one is made without it.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()

    def added_to(self, spec: SandboxSpec, *, mounts: bool) -> SandboxSpec:
        """The spec with all this; `mounts` says whether the provider has any."""
        taken = {mount.target for mount in spec.mounts}
        top = PurePosixPath(spec.workdir).parts[1:2]
        more = [
            mount
            for mount in (self.mounts if mounts else ())
            if mount.target not in taken and PurePosixPath(mount.target).parts[1:2] != top and mount.source.is_dir()
        ]
        return replace(spec, labels={**spec.labels, **self.labels}, mounts=(*spec.mounts, *more))


@dataclass(frozen=True)
class Found:
    """A sandbox that a provider has, of whatever process.

    Attributes:
        labels: Of its owner: run, rollout, session, ...
        pid: Number of the process that made it; None where it is not known.
        created_at: Unix time.
        left: Its process has certainly ended, so that a sweep removes it.
    """

    id: str
    labels: Mapping[str, str]
    pid: int | None
    created_at: float
    left: bool


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
        builds: Images are built from a folder with a Dockerfile.
        network_changes: A sandbox can be given another network while it runs.
    """

    root: bool
    users: bool
    networks: frozenset[Network]
    background: bool = False
    mounts: bool = False
    snapshots: bool = False
    gpu: bool = False
    images: bool = False
    builds: bool = False
    network_changes: bool = False


@dataclass(frozen=True)
class ImageFacts:
    """An image that is there.

    Attributes:
        digest: Of its registry where it came from one, else its id.
        user: Who commands run as; empty for root.
        workdir: Its own work directory; `/` where it names none.
        entrypoint: What it wants to be started with.
    """

    name: str
    digest: str
    user: str = ""
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()


TASK_LABEL = "gym.task"
"""Label of the images that are built for tasks: the name of the task."""


@dataclass(frozen=True)
class ImageBuild:
    """An image to build.

    Attributes:
        tag: Its name. It says the content: an image of that name is taken as it is.
        context: Folder on the host with the Dockerfile, and what that copies.
        timeout_seconds: Bound of the build.
        labels: Labels of the image.
    """

    tag: str
    context: Path
    timeout_seconds: float
    labels: Mapping[str, str] = field(default_factory=dict)


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
        oom: While it ran, the kernel killed a process of the sandbox for want of memory. Known only where the
            provider limits memory for the sandbox as a whole.
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
    oom: bool = False

    @property
    def stdout_text(self) -> str:
        """`stdout` as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """`stderr` as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True)
class ImageProgress:
    """One step of preparing an image.

    Attributes:
        image: The image as it was asked for.
        state: `here` (it was there), `pulling`, `building`, `ready` (just pulled or built) or `failed`.
        done_bytes: Bytes pulled so far.
        total_bytes: Bytes known so far that have to be pulled.
        message: Why it failed.
    """

    image: str
    state: Literal["here", "pulling", "building", "ready", "failed"]
    done_bytes: int = 0
    total_bytes: int = 0
    message: str = ""


OnImageProgress = Callable[[ImageProgress], None]
