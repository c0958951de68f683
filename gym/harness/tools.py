"""The MCP servers of a session: those of the configuration, and those that the task grants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from gym.harness.adapter import ToolServer
from gym.harness.config import McpServerConfig
from gym.sandbox.interface import Sandbox
from gym.servers.base import ServerError
from gym.servers.contract import Grant, McpGrant


def tool_servers(
    static: Mapping[str, McpServerConfig], grants: Iterable[Grant], name_of: Callable[[str], str]
) -> list[ToolServer]:
    """All servers, the static ones first.

    Args:
        name_of: The name of a server as the harness writes it.

    Raises:
        ServerError: 422: two of them have one name in the harness.
    """
    found = [*_static(static), *_granted(grants)]
    taken: dict[str, str] = {}
    for server in found:
        name = name_of(server.name)
        if name in taken:
            what = f"the MCP servers `{taken[name]}` and `{server.name}` are both `{name}` in the harness"
            raise ServerError(422, f"{what}; rename the one in `mcp_servers`")
        taken[name] = server.name
    return found


def _static(servers: Mapping[str, McpServerConfig]) -> Iterator[ToolServer]:
    return (ToolServer(name, it.url, it.headers, it.required) for name, it in servers.items())


def _granted(grants: Iterable[Grant]) -> Iterator[ToolServer]:
    for grant in grants:
        if isinstance(grant, McpGrant):
            yield ToolServer(grant.name, grant.connection.url, grant.connection.headers, grant.required)


async def as_reached_from(sandbox: Sandbox, servers: Iterable[ToolServer], static: Iterable[str]) -> list[ToolServer]:
    """The servers at the addresses that a sandbox has for them; a static one is where its configuration says.

    Raises:
        UserError: One cannot be reached from there.
    """
    given = frozenset(static)
    return [
        server
        if server.name in given
        else ToolServer(server.name, await sandbox.gym_url(server.url), server.headers, server.required)
        for server in servers
    ]
