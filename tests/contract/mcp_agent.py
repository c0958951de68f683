"""What the MCP tests bind: an agent that knows tools over MCP only, and a server without tools.

The agent plays the calls that the user's text lists, with the official client.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse, function_call, message
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession
from gym.servers.contract import McpConnection, McpGrant, VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData


class McpAgent(AgentServer[AgentServerConfig]):
    """Answers with the calls, what came back, and the names of the tools that it was offered."""

    transports = frozenset({"mcp"})

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        grants = [grant for grant in session.request.tool_accesses if isinstance(grant, McpGrant)]
        if not grants:
            return ResponsesResponse(output=[message("assistant", "no tools")])
        connection = grants[0].connection
        assert isinstance(connection, McpConnection)
        output: list[Item] = []
        async with connected(connection.url, connection.headers) as client:
            offered = [tool.name for tool in (await client.list_tools()).tools]
            for name, arguments in json.loads(request.items()[0]["content"]):
                call = function_call(name, arguments)
                result = await client.call_tool(name, arguments)
                text = result.content[0].text
                output += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": text}]
        return ResponsesResponse(output=[*output, message("assistant", ", ".join(offered))])


class NoTools(ResourcesServer[ResourcesServerConfig, TaskData]):
    """Has a verifier, and no tools."""

    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        return VerifyResponse(reward=1.0)


@asynccontextmanager
async def connected(
    url: str, headers: dict[str, str], *, mode: Literal["legacy", "auto"] = "auto"
) -> AsyncIterator[Any]:
    """The official client, with these headers on every request. `mode`: `legacy` says hello without asking first."""
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield client
