"""OpenSandbox: its settings, so that experiments can be composed; the provider is not here yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from gym.sandbox.config import SandboxProviderConfig
from gym.sandbox.interface import JSON, Capabilities, Sandbox, SandboxProvider, SandboxSpec


class OpenSandboxConfig(SandboxProviderConfig):
    """How the deployment is reached."""

    domain: str = Field(description="Host and port of the deployment.", json_schema_extra={"operational": True})
    api_key: str | None = Field(
        None, description="Key of the deployment.", json_schema_extra={"operational": True, "secret": True}
    )


class OpenSandboxProvider(SandboxProvider):
    """Refused at planning: no sandbox can be made yet."""

    name: ClassVar[str] = "opensandbox"
    config_type: ClassVar[type[SandboxProviderConfig]] = OpenSandboxConfig
    unavailable: ClassVar[str] = "its provider is not written yet"

    def __init__(self, config: OpenSandboxConfig) -> None:
        self.config = config

    @property
    def isolated(self) -> bool:
        """Containers of another machine."""
        return True

    @property
    def capabilities(self) -> Capabilities:
        """What the deployment's sandboxes can do."""
        return Capabilities(root=True, users=True, networks=frozenset({"open"}), images=True)

    def describe(self) -> str:
        """One line for the log."""
        return f"OpenSandbox at {self.config.domain}"

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Never called: planning refuses the provider."""
        raise NotImplementedError(self.unavailable)

    async def connect(self, descriptor: Mapping[str, JSON]) -> Sandbox:
        """Never called: planning refuses the provider."""
        raise NotImplementedError(self.unavailable)

    async def aclose(self) -> None:
        """Nothing was made."""
