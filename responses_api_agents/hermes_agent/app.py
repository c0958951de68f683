"""Hermes: its settings, so that experiments can be composed; the adapter is not here yet."""

from __future__ import annotations

from pydantic import Field

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.servers.agent import AgentServer, AgentSession
from gym.servers.sandbox_access import SandboxedAgentConfig


class HermesAgentConfig(SandboxedAgentConfig):
    """Settings of the Hermes harness."""

    enabled_toolsets: list[str] | None = Field(None, description="Hermes toolsets to offer; null: its default.")
    disabled_toolsets: list[str] = Field(default_factory=list, description="Hermes toolsets to withhold.")
    max_turns: int = Field(90, ge=1, description="Model turns of one activation.")


class HermesAgent(AgentServer[HermesAgentConfig]):
    """Refused at planning: the harness cannot be started yet."""

    config_type = HermesAgentConfig
    transports = frozenset({"mcp"})
    needs_sandbox = True
    unavailable = "its adapter is not written yet"

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        """Never called: planning refuses the server."""
        raise NotImplementedError(self.unavailable)
