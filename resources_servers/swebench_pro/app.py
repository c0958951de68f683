"""SWE-bench Pro: its settings, so that experiments can be composed; the verifier is not here yet."""

from __future__ import annotations

from pydantic import Field

from gym.sandbox.spec_config import SandboxConfig
from gym.servers.contract import VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData


class SwebenchProConfig(ResourcesServerConfig):
    """Settings of the SWE-bench Pro server."""

    sandbox_provider: str = Field("sandbox", description="Top-level block of the sandbox provider.")
    sandbox_config: SandboxConfig = Field(default=SandboxConfig(), description="The sandbox of a task.")


class SwebenchPro(ResourcesServer[SwebenchProConfig, TaskData]):
    """Refused at planning: no episode can be verified yet."""

    config_type = SwebenchProConfig
    unavailable = "its verifier is not written yet"

    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        """Never called: planning refuses the server."""
        raise NotImplementedError(self.unavailable)
