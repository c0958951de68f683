"""Does nothing: a task that rewards it is broken. It asks no model."""

from __future__ import annotations

from typing import ClassVar

from gym.apis.responses import ResponsesRequest, ResponsesResponse, message
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession, Role


class NopAgent(AgentServer[AgentServerConfig]):
    """Says that it did nothing."""

    transports = frozenset({"direct_http", "mcp"})
    task_users = True
    stdio_tools = True
    role: ClassVar[Role] = "nop"

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:  # noqa: ARG002
        """Says so."""
        return ResponsesResponse(output=[message("assistant", "Nothing was done.")])
