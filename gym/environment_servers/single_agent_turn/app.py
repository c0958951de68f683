"""One turn of one agent on one task: seed, activate, close, verify, in the order of the session contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.servers import deadline
from gym.servers.asking import persistently
from gym.servers.base import ServerContext, ServerError
from gym.servers.client import Answer
from gym.servers.contract import (
    ROLLOUT_HEADER,
    AgentCloseRequest,
    AgentCloseResponse,
    AgentSessionRequest,
    AgentSessionResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    DirectHttpGrant,
    EpisodeId,
    Grant,
    McpConnection,
    McpGrant,
    SeedSessionRequest,
    SeedSessionResponse,
    ServerRef,
    Transport,
    VerifyRequest,
    VerifyResponse,
)
from gym.servers.environment import Cleanup, EnvironmentServer, EnvironmentServerConfig, Episode, graded
from gym.servers.keys import Identity
from gym.servers.resources import NoArguments, ToolList
from gym.servers.rollout_path import with_rollout


class SingleAgentTurnConfig(EnvironmentServerConfig):
    """Which resources server and which agent an episode binds."""

    resources_server: ServerRef = Field(description="The tasks' verifier and tools.")
    agent_server: ServerRef = Field(description="The agent that is evaluated.")
    resources_tool_transports: list[Transport] | None = Field(
        None,
        description="How the agent gets the tools of Resources: direct_http, mcp, or none ([]); "
        "null: what both sides support.",
    )


@dataclass
class AgentTurn:
    """The agent session of an episode.

    Attributes:
        cookies: Its session cookie, once it is open.
        closed: What its close answered.
    """

    closing: Cleanup
    cookies: dict[str, str] = field(default_factory=dict)
    closed: AgentCloseResponse | None = None


class SingleAgentTurn(EnvironmentServer[SingleAgentTurnConfig]):
    """Seeds Resources, runs the agent once, closes it, verifies, and closes Resources."""

    config_type = SingleAgentTurnConfig

    def __init__(self, config: SingleAgentTurnConfig, context: ServerContext) -> None:
        self._tools: list[dict[str, Any]] | None = None
        super().__init__(config, context)

    def verifier(self) -> ServerRef:
        """The resources server."""
        return self.config.resources_server

    async def run_episode(self, episode: Episode) -> VerifyResponse:
        """The lifecycle of design section 6."""
        task = episode.request.task
        rollout = episode.request.episode_id.key
        headers = episode.headers
        async with episode.step("seed", "seed_resources"):
            resources = await self._seed_resources(episode, headers)
        async with episode.step("seed", "seed_agent"):
            agent = await self._seed_agent(episode, resources, headers)
        async with episode.step("agent"):
            request = await self._with_tools(task.task_input.responses_create_params)
            activation = await persistently(
                lambda: self.context.client.post(
                    self.config.agent_server,
                    with_rollout("/v1/responses", rollout),
                    request,
                    ResponsesResponse,
                    cookies=agent.cookies,
                    headers=headers,
                )
            )
            episode.partial_response = activation.body
        async with episode.step("cleanup", "close_agent"):
            await episode.clean(agent.closing)
        closed = agent.closed
        assert closed is not None
        if closed.cleanup_confirmed is False:
            message = f"{self.config.agent_server.name} could not confirm that all its processes have ended"
            raise EpisodeFailure("termination_unconfirmed", message, stage="agent")
        async with episode.step("verification"):
            resources.cookies.update(closed.resources_cookies or {})
            verdict = await self._verify(episode, activation.body, resources.cookies, headers)
        if (observed := closed.agent_observations) is not None:
            # The image of a sandbox of the agent's own; Resources has told that of its own.
            image = {name: observed[name] for name in ("image_digest",) if observed.get(name)}
            told = {**image, **(verdict.model_extra or {}), "ng_agent_observations": observed}
            verdict = verdict.model_copy(update=told)
        return verdict

    async def close_lost(self, episode: Episode, lost: EpisodeId) -> None:
        """Closes the agent, then Resources."""
        name = episode.tries.session_name(lost)
        headers = {ROLLOUT_HEADER: lost.key}

        async def close_agent() -> None:
            closing = AgentCloseRequest(agent_session_id=f"agent-session-{name}", episode_id=lost)
            await self._close_agent(closing, {}, headers)

        async def close_resources() -> None:
            closing = CloseSessionRequest(resources_session_id=f"resources-session-{name}", episode_id=lost)
            await self._close_resources(closing, {}, headers)

        what = f"of the lost try {lost.attempt}"
        await episode.clean_or_note(Cleanup(f"close {self.config.agent_server.name} {what}", close_agent))
        await episode.clean_or_note(Cleanup(f"close {self.config.resources_server.name} {what}", close_resources))

    async def _close_agent(
        self, closing: AgentCloseRequest, cookies: dict[str, str], headers: dict[str, str]
    ) -> AgentCloseResponse:
        server = self.config.agent_server
        path = "/v1/agent_sessions/close"
        answer = await persistently(
            lambda: self.context.client.post(
                server, path, closing, AgentCloseResponse, cookies=cookies, headers=headers
            )
        )
        return answer.body

    async def _close_resources(
        self, closing: CloseSessionRequest, cookies: dict[str, str], headers: dict[str, str]
    ) -> None:
        self.context.keys.revoke(closing.resources_session_id)
        server = self.config.resources_server
        await self.context.client.post(
            server, "/close_session", closing, CloseSessionResponse, cookies=cookies, headers=headers
        )

    async def _seed_resources(self, episode: Episode, headers: dict[str, str]) -> Answer[SeedSessionResponse]:
        server = self.config.resources_server
        session_id = f"resources-session-{episode.tries.session_name(episode.request.episode_id)}"
        closing = CloseSessionRequest(resources_session_id=session_id, episode_id=episode.request.episode_id)
        cookies: dict[str, str] = {}

        async def close() -> None:
            await self._close_resources(closing, cookies, headers)

        episode.cleanup(f"close {server.name}", close, tries=2)
        task = episode.request.task
        opening = SeedSessionRequest(
            resources_session_id=session_id,
            episode_id=episode.request.episode_id,
            task_id=task.task_id,
            task_data=task.task_input.task_data,
        )
        answer = await persistently(
            lambda: self.context.client.post(server, "/seed_session", opening, SeedSessionResponse, headers=headers)
        )
        if not answer.cookies or answer.body.resources_session_id != session_id:
            raise EpisodeFailure("malformed_answer", f"{server.name} did not establish the session that was asked for")
        cookies.update(answer.cookies)
        return Answer(answer.body, cookies)

    async def _seed_agent(
        self, episode: Episode, resources: Answer[SeedSessionResponse], headers: dict[str, str]
    ) -> AgentTurn:
        server = self.config.agent_server
        session_id = f"agent-session-{episode.tries.session_name(episode.request.episode_id)}"
        closing = AgentCloseRequest(agent_session_id=session_id, episode_id=episode.request.episode_id)

        async def close() -> None:
            agent.closed = await self._close_agent(closing, agent.cookies, headers)
            episode.observations = agent.closed.agent_observations

        agent = AgentTurn(episode.cleanup(f"close {server.name}", close))
        opening = AgentSessionRequest(
            agent_session_id=session_id,
            episode_id=episode.request.episode_id,
            task_id=episode.request.task.task_id,
            tool_accesses=self._grants(episode, resources),
            sandbox_access=resources.body.sandbox_access,
        )
        path = "/v1/agent_sessions"
        answer = await persistently(
            lambda: self.context.client.post(server, path, opening, AgentSessionResponse, headers=headers)
        )
        agent.cookies = answer.cookies
        return agent

    def _grants(self, episode: Episode, resources: Answer[SeedSessionResponse]) -> list[Grant]:
        name = self.config.resources_server.name
        session_id = resources.body.resources_session_id
        identity = Identity(episode.request.episode_id.key, session_id, run=episode.tries.run)
        key = self.context.keys.issue(identity, [name], deadline.remaining())
        auth = {"authorization": f"Bearer {key}"}
        grants: list[Grant] = []
        for transport in self.config.resources_tool_transports or []:
            url = self.context.client.directory.url(name)
            if transport == "direct_http":
                grants.append(
                    DirectHttpGrant(
                        name=f"{name}.direct_http",
                        base_url=url,
                        cookies=resources.cookies,
                        headers=auth,
                    )
                )
                continue
            tools = resources.body.resources_tools
            if tools is None:
                raise EpisodeFailure("configuration", f"{name} does not offer its tools over mcp", stage="seed")
            connection = McpConnection(url=url + tools.url_path, headers={**auth, **tools.headers})
            grants.append(McpGrant(name=name, connection=connection))
        return grants

    async def _with_tools(self, request: ResponsesRequest) -> ResponsesRequest:
        """Adds the schemas of Resources' tools to a request that names none, when they are granted over HTTP."""
        if request.tools or "direct_http" not in (self.config.resources_tool_transports or []):
            return request
        if self._tools is None:
            try:
                answer = await self.context.client.post(self.config.resources_server, "/tools", NoArguments(), ToolList)
                self._tools = answer.body.tools
            except ServerError as error:
                if error.status != 404:
                    raise
                self._tools = []
        return request.model_copy(update={"tools": self._tools})

    async def _verify(
        self, episode: Episode, response: ResponsesResponse, cookies: dict[str, str], headers: dict[str, str]
    ) -> VerifyResponse:
        task = episode.request.task.task_input
        server = self.config.resources_server
        sent = {**task.task_data, "responses_create_params": task.responses_create_params, "response": response}
        body = VerifyRequest.model_validate(sent)
        answer = await persistently(
            lambda: self.context.client.post(server, "/verify", body, VerifyResponse, cookies=cookies, headers=headers)
        )
        verdict = graded(answer.body, server.name)
        more = verdict.model_extra or {}
        if "responses_create_params" in more:  # a server of NeMo Gym: its answer repeats what it was sent
            repeated = {"responses_create_params", *(name for name in more if task.task_data.get(name) == more[name])}
            verdict = VerifyResponse.model_validate(verdict.model_dump(exclude_unset=True, exclude=repeated))
        return verdict.model_copy(update={"response": response})
