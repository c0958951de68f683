"""One turn of one agent on one task: seed, activate, close, verify, in the order of the session contract."""

from __future__ import annotations

import uuid
from typing import Any

from pydantic import Field

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.servers import deadline
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
from gym.servers.environment import Cleanup, EnvironmentServer, EnvironmentServerConfig, Episode
from gym.servers.keys import Identity
from gym.servers.resources import NoArguments, ToolList


class SingleAgentTurnConfig(EnvironmentServerConfig):
    """Which resources server and which agent an episode binds."""

    resources_server: ServerRef = Field(description="The tasks' verifier and tools.")
    agent_server: ServerRef = Field(description="The agent that is evaluated.")
    resources_tool_transports: list[Transport] | None = Field(
        None,
        description="How the agent gets the tools of Resources: direct_http, mcp, or none ([]); "
        "null: what both sides support.",
    )


class SingleAgentTurn(EnvironmentServer[SingleAgentTurnConfig]):
    """Seeds Resources, runs the agent once, closes it, verifies, and closes Resources."""

    config_type = SingleAgentTurnConfig

    def __init__(self, config: SingleAgentTurnConfig, context: ServerContext) -> None:
        self._tools: list[dict[str, Any]] | None = None
        super().__init__(config, context)

    async def run_episode(self, episode: Episode) -> VerifyResponse:
        """The lifecycle of design section 6."""
        task = episode.request.task
        headers = {ROLLOUT_HEADER: episode.request.episode_id.key}
        async with episode.step("seed", "seed_resources"):
            resources = await self._seed_resources(episode, headers)
        async with episode.step("seed", "seed_agent"):
            agent, agent_id, close_agent = await self._seed_agent(episode, resources, headers)
        async with episode.step("agent"):
            request = await self._with_tools(task.task_input.responses_create_params)
            activation = await self.context.client.post(
                self.config.agent_server,
                "/v1/responses",
                request,
                ResponsesResponse,
                cookies=agent.cookies,
                headers=headers,
            )
            episode.partial_response = activation.body
        async with episode.step("cleanup", "close_agent"):
            await episode.clean(close_agent)
        closed: AgentCloseResponse = agent_id["closed"]
        if closed.cleanup_confirmed is False:
            raise EpisodeFailure(
                "cleanup_failed", "the agent could not confirm that its processes ended", stage="agent"
            )
        async with episode.step("verification"):
            cookies = {**resources.cookies, **(closed.resources_cookies or {})}
            verdict = await self._verify(episode, activation.body, cookies, headers)
        if closed.agent_observations is not None:
            verdict = verdict.model_copy(update={"ng_agent_observations": closed.agent_observations})
        return verdict

    async def _seed_resources(self, episode: Episode, headers: dict[str, str]) -> Answer[SeedSessionResponse]:
        server = self.config.resources_server
        session_id = f"resources-session-{uuid.uuid4().hex}"
        closing = CloseSessionRequest(resources_session_id=session_id, episode_id=episode.request.episode_id)

        async def close() -> None:
            self.context.keys.revoke(session_id)
            for last in (False, True):
                try:
                    await self.context.client.post(
                        server, "/close_session", closing, CloseSessionResponse, headers=headers
                    )
                    return
                except (EpisodeFailure, ServerError):
                    if last:
                        raise

        episode.cleanup(f"close {server.name}", close)
        task = episode.request.task
        answer = await self.context.client.post(
            server,
            "/seed_session",
            SeedSessionRequest(
                resources_session_id=session_id,
                episode_id=episode.request.episode_id,
                task_id=task.task_id,
                task_data=task.task_input.task_data,
            ),
            SeedSessionResponse,
            headers=headers,
        )
        if not answer.cookies or answer.body.resources_session_id != session_id:
            raise EpisodeFailure("malformed_answer", f"{server.name} did not establish the session that was asked for")
        return answer

    async def _seed_agent(
        self, episode: Episode, resources: Answer[SeedSessionResponse], headers: dict[str, str]
    ) -> tuple[Answer[AgentSessionResponse], dict[str, Any], Cleanup]:
        server = self.config.agent_server
        session_id = f"agent-session-{uuid.uuid4().hex}"
        receipt: dict[str, Any] = {}
        closing = AgentCloseRequest(agent_session_id=session_id, episode_id=episode.request.episode_id)

        async def close() -> None:
            answer = await self.context.client.post(
                server, "/v1/agent_sessions/close", closing, AgentCloseResponse, headers=headers
            )
            receipt["closed"] = answer.body

        entry = episode.cleanup(f"close {server.name}", close)
        answer = await self.context.client.post(
            server,
            "/v1/agent_sessions",
            AgentSessionRequest(
                agent_session_id=session_id,
                episode_id=episode.request.episode_id,
                task_id=episode.request.task.task_id,
                tool_accesses=self._grants(episode, resources),
                sandbox_access=resources.body.sandbox_access,
            ),
            AgentSessionResponse,
            headers=headers,
        )
        return answer, receipt, entry

    def _grants(self, episode: Episode, resources: Answer[SeedSessionResponse]) -> list[Grant]:
        name = self.config.resources_server.name
        identity = Identity(episode.request.episode_id.key, resources.body.resources_session_id)
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
        body = VerifyRequest.model_construct(
            responses_create_params=task.responses_create_params, response=response, **task.task_data
        )
        answer = await self.context.client.post(
            server, "/verify", body, VerifyResponse, cookies=cookies, headers=headers
        )
        verdict = answer.body
        if verdict.failure_kind is not None or verdict.reward is None:
            reason = verdict.failure_reason or verdict.failure_kind or "the verifier gave no reward"
            raise EpisodeFailure("verifier_crashed", f"{server.name}: {reason}", stage="verification")
        return verdict.model_copy(update={"response": response})
