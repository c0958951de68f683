"""What a sandbox is, and what a provider of sandboxes implements.

A sandbox is a place with files of its own where commands run. Its owner creates and stops it; a borrower reaches it
through its descriptor. Only the standard library is imported here, so that code inside a sandbox may import it too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from gym.errors import Problem, UserError
from gym.sandbox.checks import unfit_spec
from gym.sandbox.sandbox import Sandbox
from gym.sandbox.spec import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    JSON,
    Capabilities,
    Change,
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
    "Change",
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

    def check(self, spec: SandboxSpec) -> list[Problem]:
        """What `create` would refuse in a spec, as far as that can be told without asking a daemon or deployment.

        Returns:
            Each with its key in `sandbox_config`, such as `resources.cpu`. Raises the same as `isolated`.
        """
        return list(unfit_spec(spec, self.name, self.capabilities.networks))

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox, owned by the caller, who must `stop` it.

        Raises:
            UserError: what `check` tells, all at once; or the image or its user is not there.
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

    async def sweep_images(self) -> int:
        """Remove the images that were built for tasks, are not new, and have no sandbox; they are built when needed.

        Returns:
            The number of images removed.

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
