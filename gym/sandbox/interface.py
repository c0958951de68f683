"""What a sandbox is, and what a provider of sandboxes implements.

A sandbox is a place with files of its own where commands run. Its owner creates and stops it; a borrower reaches it
through its descriptor. Only the standard library is imported here, so that code inside a sandbox may import it too.

Paths are the sandbox's own: absolute, or relative to its work directory, and never with `..`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.sandbox.spec import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    JSON,
    Capabilities,
    Common,
    ExecResult,
    Found,
    ImageBuild,
    ImageFacts,
    ImageProgress,
    Mount,
    Network,
    OnImageProgress,
    OnOutput,
    Resources,
    SandboxSpec,
    StreamName,
)

if TYPE_CHECKING:
    from gym.sandbox.config import SandboxProviderConfig

__all__ = [
    "DEFAULT_OUTPUT_BYTES",
    "DEFAULT_TIMEOUT_SECONDS",
    "JSON",
    "Capabilities",
    "Common",
    "ExecResult",
    "Found",
    "ImageBuild",
    "ImageFacts",
    "ImageProgress",
    "Mount",
    "Network",
    "OnImageProgress",
    "OnOutput",
    "Resources",
    "Sandbox",
    "SandboxProvider",
    "SandboxSpec",
    "StreamName",
]


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

    async def change_network(self, network: Network) -> None:
        """Give it another network; what runs inside goes on, and its connections end.

        Raises:
            UserError: the provider cannot do that, or the sandbox is borrowed.
            EpisodeFailure: `sandbox_lost`.
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

    async def fence(self) -> None:
        """Take back what was lent: descriptors handed out so far stop working, and what runs inside is killed.

        The commands of this object itself must have ended. Afterwards only the owner acts on the sandbox.

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


class SandboxProvider(ABC):
    """Makes sandboxes from one configuration: `provider(config_type.model_validate({...}))`.

    Construction is cheap and reaches nothing outside; what needs checking is checked on first use.

    Attributes:
        name: Name of the provider, as in `conf/sandbox/NAME.yaml`.
        config_type: Its settings, with `extra="forbid"`.
        unavailable: Why it cannot run yet; empty for one that can. Planning refuses it with this reason.
        common: What all its sandboxes have; `create` adds it to the spec.
    """

    unavailable: ClassVar[str] = ""
    name: ClassVar[str]
    common: Common = Common()
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

    async def prepare(self, images: Sequence[str | None], on_progress: OnImageProgress | None = None) -> dict[str, str]:
        """Have images ready before the first sandbox needs them, several at a time.

        Args:
            images: Images as specs name them; None stands for the provider's default.
            on_progress: Called in the event loop with each step.

        Returns:
            The digest of each image; nothing where the provider has no images.

        Raises:
            UserError: images that cannot be had; all of them together, each with `image` in the problem's data.
        """
        del on_progress
        if not self.capabilities.images and (named := sorted({image for image in images if image is not None})):
            raise UserError([no_image(self.name, image) for image in named])
        return {}

    async def image(self, name: str, on_progress: OnImageProgress | None = None) -> ImageFacts:
        """What is known of an image, which is fetched where it has to be.

        Raises:
            UserError: the provider knows nothing of images, or this one cannot be had.
        """
        del on_progress
        raise UserError(no_image(self.name, name))

    async def build(self, order: ImageBuild, on_progress: OnImageProgress | None = None) -> ImageFacts:
        """Have an image built, unless it is there; work for the same tag is shared.

        Raises:
            UserError: the provider builds none, or it cannot be built; then with the last lines of the build.
        """
        del on_progress
        what = f"the {self.name} provider cannot build an image from {order.context}"
        raise UserError(Problem(what, "use sandbox=docker, or tasks with prebuilt images", data={"image": order.tag}))

    async def found(self) -> list[Found]:
        """The sandboxes that are there, of all processes.

        Raises:
            UserError: the place where they would be cannot be reached.
        """
        return []

    async def sweep(self) -> int:
        """Remove the sandboxes that ended processes left behind, and whatever else these made.

        Returns:
            The number of sandboxes removed.

        Raises:
            UserError: the place where they would be cannot be reached.
        """
        return 0

    @abstractmethod
    def describe(self) -> str:
        """One line for log and manifest: what isolates, in which version. Raises the same as `isolated`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop what this provider created and leave what it borrowed; idempotent. Raises the same as `Sandbox.stop`."""


def no_image(provider: str, image: str) -> Problem:
    """A provider without images is asked for one."""
    what = f"a {provider} sandbox cannot start from the image `{image}`"
    return Problem(what, "use sandbox=docker or sandbox=opensandbox", key="image", data={"image": image})
