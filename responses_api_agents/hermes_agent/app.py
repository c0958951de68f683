"""Hermes: its settings, so that experiments can be composed; the adapter is not here yet."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession


class HermesAgentConfig(AgentServerConfig):
    """Settings of the Hermes harness."""

    enabled_toolsets: list[str] | None = Field(None, description="Hermes toolsets to offer; null: its default.")
    disabled_toolsets: list[str] = Field(default_factory=list, description="Hermes toolsets to withhold.")
    max_turns: int = Field(90, ge=1, description="Model turns of one activation.")
    sandbox_provider: str | None = Field(None, description="Provider block for a sandbox of the agent's own.")
    sandbox_config: dict[str, Any] = Field(default_factory=dict, description="Image and limits of that sandbox.")


class HermesAgent(AgentServer[HermesAgentConfig]):
    """Refused at planning: the harness cannot be started yet."""

    config_type = HermesAgentConfig
    transports = frozenset({"mcp"})
    needs_sandbox = True
    unavailable = "its adapter is not written yet"

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        """Never called: planning refuses the server."""
        raise NotImplementedError(self.unavailable)
