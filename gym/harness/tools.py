"""The MCP servers of a session: those of the configuration, and those that the task grants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gym.errors import Problem, UserError
from gym.harness.adapter import ToolServer
from gym.harness.config import McpServerConfig
from gym.harness.placing import SETUP_SECONDS
from gym.sandbox.interface import Sandbox
from gym.servers.base import ServerError
from gym.servers.contract import Grant, McpConnection, McpGrant, StdioConnection


def tool_servers(
    static: Mapping[str, McpServerConfig], grants: Iterable[Grant], name_of: Callable[[str], str]
) -> list[ToolServer]:
    """All servers, the static ones first.

    Args:
        name_of: The name of a server as the harness writes it.

    Raises:
        ServerError: 422: two of them have one name in the harness.
    """
    mine, theirs = list(_static(static)), list(_granted(grants))
    named = [(server.name, "of `mcp_servers`") for server in mine]
    named += [(server.name, "of the task") for server in theirs]
    if (clash := _clash(named, name_of)) is not None:
        raise ServerError(422, clash)
    return [*mine, *theirs]


def refuse_clashes(agent: str, static: Mapping[str, McpServerConfig], name_of: Callable[[str], str]) -> None:
    """Refuses servers of a configuration that have one name in the harness.

    Raises:
        UserError: Two of them have.
    """
    if (clash := _clash([(name, "of `mcp_servers`") for name in static], name_of)) is not None:
        raise UserError(Problem(f"{agent}: {clash}", key=f"{agent}.mcp_servers"))


def _clash(named: Iterable[tuple[str, str]], name_of: Callable[[str], str]) -> str | None:
    """Which two servers, by name and whose they are, have one name in the harness; None: none have."""
    taken: dict[str, str] = {}
    for server, whose in named:
        name, told = name_of(server), f"`{server}` {whose}"
        if name in taken:
            what = f"the MCP servers {taken[name]} and {told} are both `{name}` in the harness"
            return f"{what}; rename {'one of them' if whose in taken[name] else 'the one in `mcp_servers`'}"
        taken[name] = told
    return None


def _static(servers: Mapping[str, McpServerConfig]) -> Iterator[ToolServer]:
    return (ToolServer(name, it.url, it.headers, it.required) for name, it in servers.items())


def _granted(grants: Iterable[Grant]) -> Iterator[ToolServer]:
    for grant in grants:
        if not isinstance(grant, McpGrant):
            continue
        match grant.connection:
            case McpConnection(url=url, headers=headers):
                yield ToolServer(grant.name, url, headers, grant.required)
            case StdioConnection(command=command, args=args):
                yield ToolServer(grant.name, "", required=grant.required, command=(command, *args))


OF_A_SHELL = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})


async def with_environment(sandbox: Sandbox, servers: Sequence[ToolServer], user: str | None) -> list[ToolServer]:
    """The servers, those that are commands with the variables that a program of the sandbox has.

    Args:
        user: Whom they run as; None for the sandbox's own.

    Raises:
        UserError: The sandbox has no such user.
        EpisodeFailure: `sandbox_lost`.
    """
    if not any(server.command for server in servers):
        return list(servers)
    told = await sandbox.exec(["env", "-0"], cwd="/", user=user, timeout_seconds=SETUP_SECONDS)
    pairs = (line.partition("=")[::2] for line in told.stdout_text.split("\0") if "=" in line)
    env = {name: value for name, value in pairs if name not in OF_A_SHELL}
    return [replace(server, env=env) if server.command else server for server in servers]


async def as_reached_from(sandbox: Sandbox, servers: Iterable[ToolServer], given: Iterable[str]) -> list[ToolServer]:
    """The servers at the addresses that a sandbox has for them.

    Args:
        given: Names of those whose URL is already as the sandbox reaches it: of the configuration, or of the task.

    Raises:
        UserError: One cannot be reached from there.
    """
    given = frozenset(given)
    return [
        server
        if server.name in given
        else ToolServer(server.name, await sandbox.gym_url(server.url), server.headers, server.required)
        for server in servers
    ]
