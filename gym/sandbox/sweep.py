"""Which sandboxes there are, and the removal of what ended processes left behind, at every provider that is reached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gym.errors import UserError
from gym.sandbox.interface import Found, SandboxProvider
from gym.sandbox.scratch import sweep_scratch


@dataclass(frozen=True)
class Swept:
    """What a sweep found and did at one provider.

    Attributes:
        provider: Its name.
        removed: Sandboxes removed.
        images: Images of tasks removed.
        problem: Why it could not be swept; empty where it was.
        found: The sandboxes that were there before.
    """

    provider: str
    removed: int = 0
    images: int = 0
    problem: str = ""
    found: list[Found] = field(default_factory=list)


async def sweep_all(providers: Iterable[SandboxProvider] | None = None, *, images: bool = False) -> list[Swept]:
    """Sweep providers, and close them; and remove the copies that ended processes left in the temporary directory.

    Args:
        providers: Those of a configuration; default: `local` and `docker` with their default settings.
        images: Remove the images that were built for tasks, too.
    """
    sweep_scratch()
    chosen = _defaults() if providers is None else providers
    return [await _asked(provider, sweep=True, images=images) for provider in chosen]


async def found_all(providers: Iterable[SandboxProvider] | None = None) -> list[Swept]:
    """The same without removing anything."""
    return [await _asked(provider, sweep=False) for provider in (_defaults() if providers is None else providers)]


def _defaults() -> list[SandboxProvider]:
    from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
    from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

    return [LocalProvider(LocalProviderConfig()), DockerProvider(DockerProviderConfig())]


async def _asked(provider: SandboxProvider, *, sweep: bool, images: bool = False) -> Swept:
    try:
        found = await provider.found()
        removed = await provider.sweep() if sweep else 0
        return Swept(provider.name, removed, await provider.sweep_images() if images else 0, found=found)
    except UserError as error:
        return Swept(provider.name, problem=str(error.problems[0]))
    finally:
        await provider.aclose()
