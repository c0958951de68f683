"""Servers written for NeMo Gym's contract behind ours, and ours behind its side of the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import httpx
import pytest
from pydantic import BaseModel

from gym.environment_servers.single_agent_turn.app import SingleAgentTurn, SingleAgentTurnConfig
from gym.launch.in_process import Instance, launch
from gym.servers import contract
from gym.servers.contract import RunResponse
from tests.contract import peer_servers, peer_wire
from tests.contract.test_episode import run_request
from tests.contract.world import AGENT, ENVIRONMENT, MODEL, RESOURCES, World, no_sandboxes, world

ModelT = TypeVar("ModelT", bound=BaseModel)
EPISODE = {"rollout_id": "12-0", "attempt": 1}
TASK = {"taskset": "onboarding", "task_id": "repo__issue-1"}
PARAMS = {"input": [{"role": "user", "content": "go"}]}
ACCESS = {
    "workdir": "/app",
    "connection": {
        "kind": "direct",
        "provider_config_ref": "sandbox",
        "descriptor": {"sandbox_id": "nemo-gym-ab12", "workdir": "/app"},
    },
}
GRANTS = [
    {"kind": "direct_http", "name": "tools.direct_http", "required": True, "base_url": "http://10.0.0.5:1/x",
     "cookies": {"Tools___tools": "x"}, "headers": {}},
    {"kind": "mcp", "name": "tools", "required": True,
     "connection": {"transport": "streamable_http", "url": "http://10.0.0.5:12001/mcp",
                    "headers": {"X-NeMo-Gym-Session-Token": "signed"}}},
]  # fmt: skip
RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1.0, "output": [], "model": "m", "tools": []}
OPENING = {"agent_session_id": "agent-session-9f", "episode_id": EPISODE, "task_id": TASK}
RUN = {"episode_id": EPISODE, "task": {"task_id": TASK, "task_input": {"responses_create_params": PARAMS, "repo": "r"}}}
FAILURE = {"failure_reason": "gone", "terminal": False, "stage": "agent", "partial_response": None}
SEED = {"resources_session_id": "resources-session-1", "episode_id": EPISODE, "task_id": TASK, "task_data": {"a": 1}}
TOOLS = {"server_name": "tools", "url_path": "/mcp", "transport": "http", "headers": {"X-NeMo-Gym-Session-Token": "s"}}
CLOSED = {"agent_session_id": "agent-session-9f", "agent_observations": None, "resources_cookies": {"a": "b"}}
SEEN = {"source": "hermes", "records": [{"kind": "agent_invocation", "invocation_id": "1"}], "gaps": []}
VERDICT = {"responses_create_params": PARAMS, "response": RESPONSE, "repo": "r", "reward": 1.0, "mask_sample": False}

MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("RunRequest", RUN),
    ("RunResponse", {"episode_id": EPISODE, "task_id": TASK, "result": VERDICT, "failure": None}),
    ("RunResponse", {"episode_id": EPISODE, "task_id": TASK, "result": None, "failure": FAILURE}),
    ("RunResponse", {"episode_id": EPISODE, "task_id": TASK, "result": None,
                     "failure": {**FAILURE, "failure_kind": "provider_oom_killed", "partial_response": RESPONSE}}),
    ("SeedSessionRequest", SEED),
    ("SeedSessionResponse", {"resources_session_id": "1"}),
    ("SeedSessionResponse", {"resources_session_id": "1", "resources_tools": TOOLS, "sandbox_access": ACCESS}),
    ("CloseSessionRequest", {"resources_session_id": "1", "episode_id": EPISODE}),
    ("CloseSessionResponse", {"resources_session_id": "1"}),
    ("VerifyRequest", {"responses_create_params": PARAMS, "response": RESPONSE, "repo": "r", "verifier_metadata": {}}),
    ("VerifyResponse", VERDICT),
    ("AgentSessionRequest", {**OPENING, "tool_accesses": GRANTS, "sandbox_access": ACCESS}),
    ("AgentSessionRequest", {**OPENING, "tool_accesses": [], "sandbox_access": None}),
    ("AgentSessionResponse", {"agent_session_id": "agent-session-9f"}),
    ("AgentCloseRequest", {"agent_session_id": "agent-session-9f", "episode_id": EPISODE}),
    ("AgentCloseResponse", CLOSED),
    ("AgentCloseResponse", {**CLOSED, "agent_observations": SEEN, "cleanup_confirmed": False}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message"), MESSAGES, ids=[name for name, _ in MESSAGES])
def test_their_messages_are_ours_and_come_back_as_theirs(name: str, message: dict[str, Any]) -> None:
    theirs: type[BaseModel] = getattr(peer_wire, name)
    ours: type[BaseModel] = getattr(contract, name)
    theirs.model_validate(message)
    sent = ours.model_validate(message).model_dump_json(exclude_unset=True)
    assert theirs.model_validate_json(sent)


@pytest.mark.parametrize("fields", [{}, {"tool_accesses": []}, {"continuation": {"mode": "resume_harness_session"}}])
def test_what_the_peer_may_not_know_is_sent_only_where_it_is_asked_for(fields: dict[str, Any]) -> None:
    sent = contract.AgentSessionRequest.model_validate({**OPENING, **fields}).model_dump(
        mode="json", exclude_unset=True
    )
    assert ("continuation" in sent) == ("continuation" in fields)


# Their servers behind our environment server -------------------------------------------------------------------------


@pytest.fixture
async def behind_ours() -> AsyncIterator[tuple[Any, list[str]]]:
    """Our environment server over a resources server and an agent of the peer."""
    log: list[str] = []
    settings = {"resources_server": RESOURCES, "agent_server": AGENT, "resources_tool_transports": ["direct_http"]}
    config = SingleAgentTurnConfig.model_validate(settings)
    async with AsyncExitStack() as stack:
        resources = await stack.enter_async_context(peer_servers.serving(peer_servers.counter(log)))
        agent = await stack.enter_async_context(peer_servers.serving(peer_servers.agent(log)))
        environment = Instance(ENVIRONMENT.name, ENVIRONMENT.type, SingleAgentTurn, config)
        launched = await stack.enter_async_context(launch([environment], sandboxes=no_sandboxes))
        launched.directory.remote.update({RESOURCES.name: resources, AGENT.name: agent})
        yield launched.client, log


async def test_our_environment_server_drives_their_servers(behind_ours: tuple[Any, list[str]]) -> None:
    client, log = behind_ours
    outcome = (await client.post(ENVIRONMENT, "/run", run_request(colour="blue"), RunResponse)).body
    assert outcome.result is not None, outcome.failure
    assert outcome.result.reward == 1.0
    assert log == ["seed", "open", "close agent", "verify", "close"]
    more = outcome.result.model_extra
    assert more == {"count": 2, "ng_agent_observations": {"source": "peer", "records": [], "gaps": []}}


async def test_their_judges_failure_is_no_reward(behind_ours: tuple[Any, list[str]]) -> None:
    client, log = behind_ours
    outcome = (await client.post(ENVIRONMENT, "/run", run_request(fault="judge"), RunResponse)).body
    assert outcome.failure is not None
    assert (outcome.failure.failure_kind, outcome.failure.failure_reason) == (
        "verifier_crashed",
        "counter: judge_failed",
    )
    assert log[-1] == "close"


# Our servers behind theirs -------------------------------------------------------------------------------------------


class Peer:
    """A caller of the peer: it knows only its own shapes, and is strict about answers."""

    def __init__(self, here: World) -> None:
        self.urls = here.urls
        self.token = here.client.token

    async def post(
        self, name: str, path: str, body: dict[str, Any], answer: type[ModelT], cookies: dict[str, str] | None = None
    ) -> tuple[ModelT, dict[str, str]]:
        headers = {"authorization": f"Bearer {self.token}"}
        async with httpx.AsyncClient(headers=headers, cookies=cookies) as client:
            got = await client.post(self.urls[name] + path, json=body)
            assert got.status_code == 200, got.text
            return answer.model_validate_json(got.content), dict(client.cookies)


async def their_episode(here: World, **task_data: Any) -> peer_wire.VerifyResponse:
    """An episode in the order, the shapes and the paths of the peer's environment server."""
    peer = Peer(here)
    params = run_request().task.task_input.responses_create_params.model_dump(mode="json", exclude_unset=True)
    seed = {
        "resources_session_id": "resources-session-1",
        "episode_id": EPISODE,
        "task_id": TASK,
        "task_data": task_data,
    }
    seeded, cookies = await peer.post(RESOURCES.name, "/seed_session", seed, peer_wire.SeedSessionResponse)
    assert seeded.resources_session_id == "resources-session-1"
    grant = {"kind": "direct_http", "name": "counter.direct_http", "required": True, "cookies": cookies}
    grant |= {"base_url": here.urls[RESOURCES.name], "headers": {"authorization": f"Bearer {peer.token}"}}
    opening = {**OPENING, "agent_session_id": "a1", "tool_accesses": [grant], "sandbox_access": None}
    _, agent = await peer.post(AGENT.name, "/v1/agent_sessions", opening, peer_wire.AgentSessionResponse)
    path = "/ng-rollout/12-0-a1/v1/responses"
    response, _ = await peer.post(AGENT.name, path, params, peer_wire.Response, agent)
    captured, _ = await peer.post(
        AGENT.name, "/ng-rollout/12-0-a1/training-token-capture/v1/responses", params, peer_wire.Response, agent
    )
    assert captured == response
    closing = {"agent_session_id": "a1", "episode_id": EPISODE}
    closed, _ = await peer.post(AGENT.name, "/v1/agent_sessions/close", closing, peer_wire.AgentCloseResponse, agent)
    assert closed.agent_observations is not None
    cookies |= closed.resources_cookies or {}
    body = {**task_data, "responses_create_params": params, "response": response.model_dump(mode="json")}
    verdict, _ = await peer.post(RESOURCES.name, "/verify", body, peer_wire.VerifyResponse, cookies)
    ending = {"resources_session_id": "resources-session-1", "episode_id": EPISODE}
    await peer.post(RESOURCES.name, "/close_session", ending, peer_wire.CloseSessionResponse)
    return verdict


async def test_their_environment_server_drives_our_servers() -> None:
    async with world("apart") as here:
        verdict = await their_episode(here, expected=2)
        assert (verdict.reward, verdict.mask_sample) == (1.0, False)
        assert here.counter.log == ["seed", "verify", "close"]
        assert (here.counter.sessions, here.agent.sessions) == ({}, {})


async def test_our_verifiers_failure_is_masked_for_them() -> None:
    async with world("apart") as here:
        verdict = await their_episode(here, expected=2, fault="no reward")
        assert (verdict.reward, verdict.mask_sample, verdict.failure_kind) == (0.0, True, "judge_failed")


@pytest.mark.parametrize("fault", ["", "seed", "tool", "verify"])
async def test_their_collector_reads_our_outcomes(fault: str) -> None:
    async with world("apart") as here:
        body = run_request(fault=fault).model_dump(mode="json", exclude_unset=True)
        body["episode_id"] = EPISODE
        outcome, _ = await Peer(here).post(ENVIRONMENT.name, "/run", body, peer_wire.RunResponse)
        assert (outcome.failure is None) == (not fault)


async def test_a_rollout_in_the_path_reaches_the_model() -> None:
    async with world("apart") as here:
        params = run_request().task.task_input.responses_create_params.model_dump(mode="json", exclude_unset=True)
        await Peer(here).post(MODEL.name, "/ng-rollout/9-9/v1/responses", params, peer_wire.Response)
        assert here.model.rollouts == {"9-9"}
