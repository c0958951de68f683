"""Removes what ended processes left behind, at every provider that can be reached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gym.errors import UserError
from gym.sandbox.interface import SandboxProvider


@dataclass(frozen=True)
class Swept:
    """What a sweep did at one provider.

    Attributes:
        provider: Its name.
        removed: Sandboxes removed.
        problem: Why it could not be swept; empty where it was.
    """

    provider: str
    removed: int = 0
    problem: str = ""


async def sweep_all(providers: Iterable[SandboxProvider] | None = None) -> list[Swept]:
    """Sweep providers, and close them.

    Args:
        providers: Those of a configuration; default: `local` and `docker` with their default settings.
    """
    return [await _sweep(provider) for provider in (_defaults() if providers is None else providers)]


def _defaults() -> list[SandboxProvider]:
    from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
    from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

    return [LocalProvider(LocalProviderConfig()), DockerProvider(DockerProviderConfig())]


async def _sweep(provider: SandboxProvider) -> Swept:
    try:
        return Swept(provider.name, await provider.sweep())
    except UserError as error:
        return Swept(provider.name, problem=str(error.problems[0]))
    finally:
        await provider.aclose()
