"""The native tool-calling agent: asks the model, runs the calls it makes, and asks again.

A call that cannot be run is answered with an error that the model reads; infrastructure that fails ends the episode.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.errors import closest
from gym.failures import POLICIES, EpisodeFailure, exhausted_budget
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession
from gym.servers.base import ServerError
from gym.servers.contract import DirectHttpGrant, ServerRef
from gym.servers.tools import MODEL_CAN_FIX
from responses_api_agents.simple_agent.conversation import BadCall, Conversation, ToolCall

ERROR_LIMIT_CHARACTERS = 2000


class SimpleAgentConfig(AgentServerConfig):
    """Settings of the agent loop."""

    model_server: ServerRef = Field(description="The policy: a model server instance.")
    max_steps: int | None = Field(50, gt=0, description="Model calls per activation; null: no limit.")
    max_consecutive_bad_calls: int | None = Field(
        None, gt=0, description="Ends the activation after so many tool calls in a row that could not be run."
    )
    system_prompt: str | None = Field(None, description="Goes before the instructions of every request.")


class SimpleAgent(AgentServer[SimpleAgentConfig]):
    """Runs a model with the tools of the session's direct-HTTP grant, in order, one call at a time."""

    config_type = SimpleAgentConfig
    transports = frozenset({"direct_http"})

    async def open(self, session: AgentSession) -> None:
        """Takes the tools' address and cookies from the grant."""
        grants = [grant for grant in session.request.tool_accesses if isinstance(grant, DirectHttpGrant)]
        if len(grants) > 1:
            names = ", ".join(grant.name for grant in grants)
            raise ServerError(422, f"{self.name} uses the tools of one server; the session grants several: {names}")
        if grants:
            session.state["grant"] = grants[0]
            session.resources_cookies = dict(grants[0].cookies)

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        """Model calls and tool calls until a turn without calls, or a limit: then the response is `incomplete`."""
        conversation = Conversation(request, self.config.system_prompt)
        session.state["conversation"] = conversation
        while True:
            try:
                answer = await self._ask_model(session, conversation)
            except EpisodeFailure as failure:
                if not POLICIES[failure.kind].graded:
                    raise
                _, reason = exhausted_budget(failure.message) or ("", failure.kind)
                return conversation.response("incomplete", {"reason": reason})
            calls = conversation.take(answer)
            for call in calls:
                await self._answer_call(session, conversation, call)
            if not calls:
                return conversation.response(answer.status, answer.incomplete_details)
            if self._reached(self.config.max_consecutive_bad_calls, conversation.bad_calls_in_a_row):
                return conversation.response("incomplete", {"reason": "bad_tool_calls"})
            if self._reached(self.config.max_steps, conversation.counters.model_calls):
                return conversation.response("incomplete", {"reason": "max_steps"})

    async def close(self, session: AgentSession) -> dict[str, Any] | None:
        """Why the agent stopped, and what it did in numbers."""
        conversation: Conversation | None = session.state.get("conversation")
        return {"source": "simple_agent", **conversation.observations()} if conversation else None

    @staticmethod
    def _reached(limit: int | None, count: int) -> bool:
        return limit is not None and count >= limit

    async def _ask_model(self, session: AgentSession, conversation: Conversation) -> ResponsesResponse:
        try:
            answer = await self.context.client.post(
                self.config.model_server,
                "/v1/responses",
                conversation.request(),
                ResponsesResponse,
                cookies=conversation.model_cookies,
                headers=session.headers,
            )
        except ServerError as error:
            if error.status < 500:
                raise
            message = f"{self.config.model_server.name} answered {error.status}: {error.detail}"
            raise EpisodeFailure("provider_error", message) from error
        conversation.model_cookies.update(answer.cookies)
        if answer.body.status == "failed" or answer.body.error:
            reason = (answer.body.error or {}).get("message", "no reason given")
            raise EpisodeFailure("provider_error", f"{self.config.model_server.name} answered with a failure: {reason}")
        return answer.body

    async def _answer_call(self, session: AgentSession, conversation: Conversation, call: ToolCall) -> None:
        if call.problem is not None:
            conversation.reject(call, "malformed", call.problem)
        elif call.name not in conversation.tool_names:
            conversation.reject(call, "unknown", _no_such_tool(call.name, conversation.tool_names))
        else:
            try:
                result = await self._call_tool(session, call)
            except ServerError as error:
                conversation.reject(call, *_refusal(call, error))
            else:
                conversation.accept(call, result)

    async def _call_tool(self, session: AgentSession, call: ToolCall) -> Any:
        grant: DirectHttpGrant | None = session.state.get("grant")
        if grant is None:
            message = f"the task offers the tool `{call.name}`, but the session has no direct_http grant to call it"
            raise EpisodeFailure("configuration", message)
        result, cookies = await self.context.client.post_json(
            f"{grant.base_url}/{call.name}",
            call.arguments,
            cookies=session.resources_cookies,
            headers={**grant.headers, **session.headers},
        )
        session.resources_cookies.update(cookies)
        return result


def _refusal(call: ToolCall, error: ServerError) -> tuple[BadCall, str]:
    """A refused call as what the model is told about it.

    Raises:
        EpisodeFailure: The refusal is about something that the model cannot put right.
    """
    if error.status not in MODEL_CAN_FIX:
        message = f"tool {call.name} answered {error.status}: {error.detail}"
        raise EpisodeFailure("tool_server_error", message) from error
    reason = f"`{call.name}` refused the call: {error.detail[:ERROR_LIMIT_CHARACTERS]}"
    return ("unknown" if error.status == 404 else "invalid"), reason


def _no_such_tool(name: str, known: frozenset[str]) -> str:
    near = closest(name, known)
    if near:
        return f"there is no tool `{name}`; did you mean `{near}`?"
    return f"there is no tool `{name}`; the tools are: {json.dumps(sorted(known))}"
