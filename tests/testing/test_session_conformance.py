"""The conformance suite has teeth: servers that break one rule are found out, with a text that names it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession
from gym.servers.base import Call, ServerError
from gym.servers.contract import (
    AgentCloseRequest,
    AgentCloseResponse,
    AgentSessionRequest,
    AgentSessionResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    EpisodeId,
    RunRequest,
    RunResponse,
    SeedSessionRequest,
    SeedSessionResponse,
    VerifyRequest,
    VerifyResponse,
)
from gym.servers.environment import EnvironmentServer, EnvironmentServerConfig, Episode
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData
from gym.testing.session_conformance import (
    check_agent_session_contract,
    check_environment_contract,
    check_resources_session_contract,
)
from gym.testing.subject import in_process
from tests.servers.parts import context

REQUEST = {"input": "go"}
MCP = {"kind": "mcp", "name": "tools", "connection": {"url": "http://127.0.0.1:9/mcp"}}
EPISODE = {"task": {"task_id": {"taskset": "t", "task_id": "1"}, "task_input": {"responses_create_params": REQUEST}}}


class Agent(AgentServer[AgentServerConfig]):
    """Keeps the rules."""

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        return ResponsesResponse()


class RunsAgain(Agent):
    async def activate(self, body: ResponsesRequest, call: Call) -> ResponsesResponse:
        return ResponsesResponse()


class TakesAnyBody(Agent):
    async def activate(self, body: ResponsesRequest, call: Call) -> ResponsesResponse:
        return await super().activate(ResponsesRequest(input="go"), call)


class GivesNoCookie(Agent):
    async def seed_session(self, body: AgentSessionRequest, call: Call) -> AgentSessionResponse:
        return await super().seed_session(body, Call(call.headers, call.cookies))


class RenamesSessions(Agent):
    async def seed_session(self, body: AgentSessionRequest, call: Call) -> AgentSessionResponse:
        await super().seed_session(body, call)
        return AgentSessionResponse(agent_session_id=uuid.uuid4().hex)


class NeverCloses(Agent):
    async def close_session(self, body: AgentCloseRequest, call: Call) -> AgentCloseResponse:
        return AgentCloseResponse(agent_session_id=body.agent_session_id)


class LosesReceipts(Agent):
    async def close_session(self, body: AgentCloseRequest, call: Call) -> AgentCloseResponse:
        answer = await super().close_session(body, call)
        return answer.model_copy(update={"agent_observations": {"source": uuid.uuid4().hex}})


class SaysItContinues(Agent):
    continuations = frozenset({"resume_harness_session"})


class TakesAnyGrant(Agent):
    transports = frozenset({"direct_http", "mcp"})


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (RunsAgain, "identical activations must get one answer"),
        (TakesAnyBody, "a second activation with another body: expected 409, got 200"),
        (GivesNoCookie, "a seed must set a session cookie"),
        (RenamesSessions, "a seed must echo its agent_session_id"),
        (NeverCloses, "a close by another episode: expected 409, got 200"),
        (LosesReceipts, "every close must get the same receipt"),
        (SaysItContinues, "a continuation that the agent cannot do: expected 422, got 200"),
        (TakesAnyGrant, "a required grant that the agent cannot use: expected 422, got 200"),
    ],
)
async def test_agents_that_break_a_rule(server: type[Agent], told: str) -> None:
    subject = in_process(server(AgentServerConfig(), context("agent")))
    with pytest.raises(AssertionError, match=told):
        await check_agent_session_contract(subject, request=REQUEST, refuses=MCP)


async def test_an_agent_that_does_not_continue_as_it_should() -> None:
    with pytest.raises(AssertionError, match="a seed: expected 200, got 422"):
        await check_agent_session_contract(
            in_process(Agent(AgentServerConfig(), context("agent"))), request=REQUEST, continues=True
        )


class Resources(ResourcesServer[ResourcesServerConfig, TaskData]):
    """Keeps the rules."""

    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        return VerifyResponse(reward=1.0)


class VerifiesAnybody(Resources):
    async def verify_session(self, body: VerifyRequest, call: Call) -> VerifyResponse:
        return VerifyResponse(reward=1.0)


class GivesNoVerdict(Resources):
    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        return VerifyResponse.model_validate({"comment": "well done"})


class SeedsAnybody(Resources):
    async def seed_session(self, body: SeedSessionRequest, call: Call) -> SeedSessionResponse:
        self.cookie.issue(call, body.resources_session_id)
        return SeedSessionResponse(resources_session_id=body.resources_session_id)

    async def verify_session(self, body: VerifyRequest, call: Call) -> VerifyResponse:
        self.cookie.read(call.cookies)
        return VerifyResponse(reward=1.0)


class ClosesOnce(Resources):
    async def close_session(self, body: CloseSessionRequest, call: Call) -> CloseSessionResponse:
        if body.resources_session_id not in self.sessions:
            raise ServerError(409, "no such session")
        return await super().close_session(body, call)


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (VerifiesAnybody, r"a verification without a session cookie: expected a refusal \(4xx\), got 200"),
        (GivesNoVerdict, "a verdict has a finite reward or a failure_kind"),
        (SeedsAnybody, "a seed of the same id for another episode: expected 409, got 200"),
        (ClosesOnce, "a close: expected 200, got 409"),
    ],
)
async def test_resources_servers_that_break_a_rule(server: type[Resources], told: str) -> None:
    subject = in_process(server(ResourcesServerConfig(), context("resources")))
    with pytest.raises(AssertionError, match=told):
        await check_resources_session_contract(subject, task_data={}, request=REQUEST)


async def test_sessions_that_hold_nothing_need_no_fences() -> None:
    subject = in_process(SeedsAnybody(ResourcesServerConfig(), context("resources")))
    await check_resources_session_contract(subject, task_data={}, request=REQUEST, keeps_state=False)


class Environment(EnvironmentServer[EnvironmentServerConfig]):
    """Keeps the rules."""

    async def run_episode(self, episode: Episode) -> VerifyResponse:
        if "broken" in episode.request.task.task_input.task_data:
            raise EpisodeFailure("malformed_task", "it is broken", stage="seed")
        return VerifyResponse(reward=0.5, response=ResponsesResponse())


class Answers(Environment):
    """Answers with what `change` makes of a good answer."""

    change: dict[str, Any] = {}

    async def run(self, body: RunRequest, call: Call) -> RunResponse:
        return (await super().run(body, call)).model_copy(update=self.change)


class NamesAnother(Answers):
    change = {"episode_id": EpisodeId(rollout_id="other")}


class AnswersNothing(Answers):
    change = {"result": None}


class AddsToTheContract(Answers):
    change = {"timings": {"agent": 1.0}}


class ScoresWhatIsBroken(Environment):
    async def run_episode(self, episode: Episode) -> VerifyResponse:
        return VerifyResponse(reward=0.0, response=ResponsesResponse())


class FailsAtTheBorder(Environment):
    async def run(self, body: RunRequest, call: Call) -> RunResponse:
        answer = await super().run(body, call)
        if answer.failure is not None:
            raise ServerError(500, answer.failure.failure_reason)
        return answer


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (NamesAnother, "a run must answer for its episode"),
        (AnswersNothing, "a run answers with either a result or a failure"),
        (AddsToTheContract, "a run answers only with"),
        (ScoresWhatIsBroken, "an episode that cannot succeed must be a failure, never a result"),
        (FailsAtTheBorder, "a run: expected 200, got 500: it is broken"),
    ],
)
async def test_environment_servers_that_break_a_rule(server: type[Environment], told: str) -> None:
    subject = in_process(server(EnvironmentServerConfig(), context("environment")))
    task = {"task_id": {"taskset": "t", "task_id": "1"}}
    broken = {"task": {**task, "task_input": {"responses_create_params": REQUEST, "broken": True}}}
    with pytest.raises(AssertionError, match=told):
        await check_environment_contract(subject, request=EPISODE, broken=broken)


async def test_servers_that_keep_the_rules_pass() -> None:
    await check_agent_session_contract(
        in_process(Agent(AgentServerConfig(), context("agent"))), request=REQUEST, refuses=MCP
    )
    await check_resources_session_contract(
        in_process(Resources(ResourcesServerConfig(), context("resources"))), task_data={}, request=REQUEST
    )
    await check_environment_contract(
        in_process(Environment(EnvironmentServerConfig(), context("environment"))), request=EPISODE
    )
