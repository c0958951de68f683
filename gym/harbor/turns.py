"""The agent of an episode: a session for each step of the task, in the task's sandbox."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gym.apis.responses import ResponsesRequest, ResponsesResponse, Usage
from gym.failures import EpisodeFailure
from gym.harbor.config import McpServer
from gym.harbor.rows import HarborTaskData
from gym.harbor.variables import fill_headers
from gym.servers.asking import persistently
from gym.servers.base import ServerContext
from gym.servers.contract import (
    ACTIVATION_SECONDS,
    ROLLOUT_HEADER,
    AgentCloseRequest,
    AgentCloseResponse,
    AgentSessionRequest,
    AgentSessionResponse,
    EpisodeId,
    McpConnection,
    McpGrant,
    SandboxAccess,
    ServerRef,
    StdioConnection,
)
from gym.servers.environment import Cleanup, Episode
from gym.servers.rollout_path import with_rollout

TASK_DATA, TASK_STEP = "harbor_task", "harbor_step"
"""Metadata of a request that say which task and step it is of (`gym.harbor.rows`), for agents that check tasks."""

UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass
class Told:
    """What the agent did in all steps so far.

    Attributes:
        observations: Of the harness, those of all steps together.
    """

    response: ResponsesResponse | None = None
    observations: dict[str, Any] | None = None

    def add(self, response: ResponsesResponse, observed: dict[str, Any] | None) -> None:
        """Takes up what was done in one more step."""
        if self.response is not None:
            both = [usage for usage in (self.response.usage, response.usage) if usage is not None]
            output = [*self.response.output, *response.output]
            response = response.model_copy(update={"output": output, "usage": _sum(both)})
        self.response = response
        if observed is not None:
            known = self.observations or {}
            lists = {name: [*known.get(name, []), *observed.get(name, [])] for name in ("records", "gaps")}
            self.observations = {**observed, **lists}


@dataclass
class Turns:
    """The agent's sessions in one episode.

    Attributes:
        told: What came of those that have ended.
    """

    context: ServerContext
    server: ServerRef
    episode: Episode
    told: Told = field(default_factory=Told)
    _name: str = field(init=False)

    def __post_init__(self) -> None:
        """The sessions of all steps share a name."""
        self._name = self.episode.tries.session_name(self.episode.request.episode_id)

    async def take(
        self, number: int, request: ResponsesRequest, access: SandboxAccess, servers: list[McpGrant]
    ) -> Told:
        """One step: opens a session, activates it once, and closes it. Returns what was done in it.

        Raises:
            EpisodeFailure: The agent failed; `termination_unconfirmed` where some of it may still run.
            ServerError: As the agent server refuses it.
        """
        episode, rollout = self.episode, self.episode.request.episode_id
        headers = episode.headers
        closing = AgentCloseRequest(agent_session_id=_session(self._name, number), episode_id=rollout)
        closed: list[AgentCloseResponse] = []
        cookies: dict[str, str] = {}

        async def close() -> None:
            closed.append(await self._close(closing, cookies, headers))
            episode.observations = closed[-1].agent_observations

        entry = episode.cleanup(f"close {self.server.name}", close)
        async with episode.step("seed", "seed_agent"):
            opening = AgentSessionRequest(
                agent_session_id=closing.agent_session_id,
                episode_id=rollout,
                task_id=episode.request.task.task_id,
                tool_accesses=list(servers),
                sandbox_access=access,
            )
            answer = await persistently(
                lambda: self.context.client.post(
                    self.server, "/v1/agent_sessions", opening, AgentSessionResponse, headers=headers
                )
            )
            cookies.update(answer.cookies)
        async with episode.step("agent"):
            path = with_rollout("/v1/responses", rollout.key)
            activation = await persistently(
                lambda: self.context.client.post(
                    self.server, path, request, ResponsesResponse, cookies=cookies, headers=headers
                )
            )
            episode.partial_response = activation.body
        async with episode.step("cleanup", "close_agent"):
            await episode.clean(entry)
        if closed[-1].cleanup_confirmed is False:
            message = f"{self.server.name} could not confirm that all its processes have ended"
            raise EpisodeFailure("termination_unconfirmed", message, stage="agent")
        self.told.add(activation.body, closed[-1].agent_observations)
        return Told(activation.body, closed[-1].agent_observations)

    async def close_lost(self, lost: EpisodeId, steps: int) -> None:
        """Closes what an earlier try may have left open, whose end nobody has seen."""
        for number in range(steps):
            await self.episode.clean_or_note(self._closing_lost(lost, number))

    def _closing_lost(self, lost: EpisodeId, number: int) -> Cleanup:
        name = _session(self.episode.tries.session_name(lost), number)
        closing = AgentCloseRequest(agent_session_id=name, episode_id=lost)

        async def close() -> None:
            await self._close(closing, {}, {ROLLOUT_HEADER: lost.key})

        return Cleanup(f"close {self.server.name} of the lost try {lost.attempt}", close)

    async def _close(
        self, closing: AgentCloseRequest, cookies: dict[str, str], headers: dict[str, str]
    ) -> AgentCloseResponse:
        path = "/v1/agent_sessions/close"
        answer = await persistently(
            lambda: self.context.client.post(
                self.server, path, closing, AgentCloseResponse, cookies=cookies, headers=headers
            )
        )
        return answer.body


def _session(name: str, number: int) -> str:
    return f"agent-session-{name}-{number + 1}"


def request_of(
    base: ResponsesRequest, instruction: str, timeout_seconds: float | None, data: HarborTaskData, step: int
) -> ResponsesRequest:
    """What the agent is asked in a step."""
    bound = {} if timeout_seconds is None else {ACTIVATION_SECONDS: f"{timeout_seconds:g}"}
    metadata = {**(base.metadata or {}), **bound, TASK_DATA: data.model_dump_json(), TASK_STEP: str(step)}
    return base.model_copy(update={"input": instruction, "metadata": metadata})


def grants(servers: tuple[McpServer, ...], environment: Mapping[str, str]) -> list[McpGrant]:
    """The task's MCP servers, as the agent is granted them."""
    named = ((UNFIT.sub("-", server.name).strip("-.") or "task", server) for server in servers)
    return [McpGrant(name=name, connection=_connection(server, environment)) for name, server in named]


def _connection(server: McpServer, environment: Mapping[str, str]) -> McpConnection | StdioConnection:
    if server.url is None:
        return StdioConnection(command=server.command or "", args=list(server.args))
    headers = fill_headers(server.headers, environment).values
    return McpConnection(url=server.url, headers={name: value.strip() for name, value in headers.items()})


def _sum(usages: list[Usage]) -> Usage | None:
    total = usages[0] if usages else None
    for usage in usages[1:]:
        total = usage.plus(total)
    return total
