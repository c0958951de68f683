"""Callers that still send flat rows, and agents that still run whole episodes, in-process and over HTTP."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.environment_servers.flat_rows import RunBody
from gym.environment_servers.legacy_agent.app import LegacyAgent, LegacyAgentConfig
from gym.environment_servers.single_agent_turn.app import SingleAgentTurnConfig
from gym.environment_servers.single_agent_turn_legacy.app import SingleAgentTurnLegacy
from gym.failures import EpisodeFailure
from gym.launch.in_process import Instance
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession
from gym.servers.base import Call, ServerError, route
from gym.servers.contract import RunRequest, RunResponse, ServerRef
from tests.contract.test_episode import assert_all_closed, run_request
from tests.contract.world import AGENT, RESOURCES, Hosting, World, world

FLAT = ServerRef(type="environment_servers", name="flat")
RELAY = ServerRef(type="environment_servers", name="relay")
OLD = ServerRef(type="responses_api_agents", name="old_agent")


class OldAgent(AgentServer[AgentServerConfig]):
    """Runs whole episodes behind a `/run` of its own; the row says what comes of it."""

    heard: tuple[dict[str, Any], dict[str, str]]

    @route("/run")
    async def run_all(self, body: RunBody, call: Call) -> RunBody:
        """Answers flat, as such agents did."""
        row = dict(body.model_extra or {})
        self.heard = row, dict(call.cookies)
        match row.get("fault"):
            case "teapot":
                raise ServerError(418, "a teapot")
            case "failure":
                raise EpisodeFailure("sandbox_lost", "gone")
        call.set_cookies["old"] = "1"
        verdict = {"reward": 1.0, "response": ResponsesResponse().model_dump(mode="json"), "steps": 3}
        return RunBody.model_validate({**row, **verdict, **row.get("verdict", {})})

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        raise NotImplementedError


def more() -> list[Instance]:
    settings = {"resources_server": RESOURCES, "agent_server": AGENT, "resources_tool_transports": ["direct_http"]}
    flat = SingleAgentTurnConfig.model_validate(settings)
    return [
        Instance(FLAT.name, FLAT.type, SingleAgentTurnLegacy, flat),
        Instance(OLD.name, OLD.type, OldAgent, AgentServerConfig()),
        Instance(RELAY.name, RELAY.type, LegacyAgent, LegacyAgentConfig(agent_server=OLD)),
    ]


@pytest.fixture(params=["in_process", "apart"])
async def here(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    hosting: Hosting = request.param
    async with world(hosting, more()) as running:
        yield running


def row(**fields: Any) -> dict[str, Any]:
    """A flat row as a caller that counts tasks and repeats sends it."""
    text = json.dumps({"tool": "increment", "arguments": {"by": 2}})
    params = {"input": [{"type": "message", "role": "user", "content": text}]}
    identity = {"_ng_task_index": 4, "_ng_rollout_index": 1, "_ng_attempt_index": 2}
    return {"responses_create_params": params, "expected": 2, "instance_id": "two", **identity, **fields}


async def post(here: World, ref: ServerRef, body: dict[str, Any], **cookies: str) -> dict[str, Any]:
    given = RunBody.model_validate(body)
    answer = await here.client.post(ref, "/run", given, RunBody, cookies=cookies)
    return {**(answer.body.model_extra or {}), "cookies": answer.cookies}


async def test_a_flat_row_gets_a_flat_verdict(here: World) -> None:
    answer = await post(here, FLAT, row(task_source=RESOURCES.name, agent_ref={"name": AGENT.name}))
    assert answer["reward"] == 1.0
    assert (answer["count"], answer["expected"], answer["instance_id"]) == (2, 2, "two")
    assert answer["agent_ref"] == {"name": AGENT.name}
    assert [item["type"] for item in answer["response"]["output"]][-1] == "message"
    assert not [name for name in answer if name.startswith("_ng_")]
    assert here.model.rollouts == {"4-1-a2"}
    assert_all_closed(here)


async def test_a_flat_row_that_fails_gets_a_flat_failure(here: World) -> None:
    answer = await post(here, FLAT, row(fault="verify"))
    assert "reward" not in answer
    assert answer.pop("_ng_failure_partial_response")["object"] == "response"
    assert {name: value for name, value in answer.items() if name != "cookies"} == {
        "_ng_failure_class": "environment_server_failed",
        "_ng_failure_terminal": False,
        "_ng_failure_message": "verify is out of order",
        "_ng_failure_stage": "verification",
        "failure_kind": "provider_unreachable",
        "agent_ref": {"name": AGENT.name},
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"task_source": "elsewhere"}, "task_source names `elsewhere`; flat runs tasks of counter"),
        ({"agent_ref": {"name": "hermes"}}, "agent_ref names `hermes`; flat runs agent"),
        ({"_ng_rollout_id": "../x"}, "episode_id.rollout_id: String should match pattern"),
        ({"response": {}}, "a field of a task cannot be named `response`: rename it"),
        ({"episode_id": {}, "task": {}}, "episode_id.rollout_id: Field required"),
    ],
)
async def test_rows_of_others_and_broken_rows_are_refused(here: World, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ServerError) as caught:
        await post(here, FLAT, row(**fields))
    assert caught.value.status == 422
    assert reason in caught.value.detail
    assert here.counter.log == []


async def test_a_row_without_a_rollout_is_refused(here: World) -> None:
    body = {name: value for name, value in row().items() if not name.startswith("_ng_")}
    with pytest.raises(ServerError, match="a flat row names its rollout: `_ng_rollout_id`, or `_ng_task_index`"):
        await post(here, FLAT, body)


@pytest.mark.parametrize("ref", [FLAT, RELAY], ids=lambda ref: ref.name)
async def test_both_take_episodes_too(here: World, ref: ServerRef) -> None:
    outcome = (await here.client.post(ref, "/run", run_request(), RunResponse)).body
    assert outcome.result is not None, outcome.failure
    assert outcome.result.reward == 1.0
    assert outcome.episode_id.rollout_id == "r1"


def old(here: World) -> OldAgent:
    server = here.servers[OLD.name]
    assert isinstance(server, OldAgent)
    return server


async def test_a_row_is_relayed_as_it_is(here: World) -> None:
    body = row(agent_ref={"name": "old_agent"}, anything=[None, 1.5])
    answer = await post(here, RELAY, body, session="abc")
    assert old(here).heard == (body, {"session": "abc"})
    assert answer["cookies"] == {"old": "1"}
    assert answer["steps"] == 3
    assert {name: answer[name] for name in body} == body


@pytest.mark.parametrize(("fault", "status"), [("teapot", 418), ("failure", None)])
async def test_the_agents_status_is_relayed(here: World, fault: str, status: int | None) -> None:
    with pytest.raises(ServerError if status else EpisodeFailure) as caught:
        await post(here, RELAY, row(fault=fault))
    assert getattr(caught.value, "status", None) == status


async def test_an_episode_becomes_a_row(here: World) -> None:
    request = run_request(colour="blue")
    outcome = (await here.client.post(RELAY, "/run", request, RunResponse)).body
    given = request.task.task_input
    params = given.responses_create_params.model_dump(mode="json", exclude_unset=True)
    identity = {"_ng_rollout_id": "r1", "_ng_attempt_index": 0}
    assert old(here).heard == ({"expected": 2, "colour": "blue", "responses_create_params": params, **identity}, {})
    assert outcome.result is not None
    assert set(outcome.result.model_extra or {}) == {"steps"}  # what only repeats the row is left out


@pytest.mark.parametrize(
    ("verdict", "kind", "reason"),
    [
        ({"_ng_failure_class": "agent_run_error", "_ng_failure_message": "no model"}, "agent_error", "no model"),
        ({"_ng_failure_class": "agent_run_error"}, "agent_error", "agent_run_error"),
        ({"_ng_failure_class": "judge_failed", "reward": 0.0}, "verifier_crashed", "judge_failed"),
        ({"_ng_failure_class": "x", "_ng_failure_stage": "lunch"}, "agent_error", "x"),
        ({"reward": None}, "verifier_crashed", "the verifier gave no reward"),
        ({"reward": "high"}, "malformed_answer", "old_agent/run answered with a malformed row: reward"),
    ],
)
async def test_what_an_old_run_reports_as_failed_is_a_failure(
    here: World, verdict: dict[str, Any], kind: str, reason: str
) -> None:
    outcome = (await here.client.post(RELAY, "/run", run_request(verdict=verdict), RunResponse)).body
    assert outcome.failure is not None
    assert outcome.failure.failure_kind == kind
    assert reason in outcome.failure.failure_reason


async def test_an_agent_without_a_run_is_a_fault_of_the_configuration() -> None:
    relay = Instance(RELAY.name, RELAY.type, LegacyAgent, LegacyAgentConfig(agent_server=AGENT))
    async with world("in_process", [relay]) as here:
        request: RunRequest = run_request()
        outcome = (await here.client.post(RELAY, "/run", request, RunResponse)).body
        assert outcome.failure is not None
        assert (outcome.failure.failure_kind, outcome.failure.failure_reason) == (
            "configuration",
            "agent has no route /run",
        )


async def test_the_relay_says_that_it_is_deprecated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with world("in_process", more()):
            pass
    assert "relay: legacy_agent is deprecated, as is the /run of old_agent; use single_agent_turn" in caplog.text
