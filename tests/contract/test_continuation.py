"""Sessions of many activations, in-process and over HTTP: order, replays, conflicts, bounds, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.servers.base import ServerError
from gym.servers.contract import (
    ACTIVATION_HEADER,
    AgentCloseRequest,
    AgentCloseResponse,
    AgentSessionRequest,
    AgentSessionResponse,
    RunResponse,
)
from tests.contract.storyteller import TELLER, Storyteller, teller
from tests.contract.test_episode import run_request
from tests.contract.world import AGENT, ENVIRONMENT, Hosting, World, world

CONTINUE = {"mode": "resume_harness_session"}
EPISODE = {"rollout_id": "r1"}


@pytest.fixture(params=["in_process", "apart"])
async def here(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    hosting: Hosting = request.param
    async with world(hosting, [teller()]) as running:
        yield running


def teller_of(here: World) -> Storyteller:
    server = here.servers[TELLER.name]
    assert isinstance(server, Storyteller)
    return server


async def seed(here: World, *, agent: Any = TELLER, continuation: Any = CONTINUE) -> dict[str, str]:
    body = {"agent_session_id": "a1", "episode_id": EPISODE, "task_id": {"taskset": "t", "task_id": "1"}}
    body |= {"continuation": continuation} if continuation else {}
    request = AgentSessionRequest.model_validate(body)
    return (await here.client.post(agent, "/v1/agent_sessions", request, AgentSessionResponse)).cookies


async def tell(here: World, cookies: dict[str, str], text: str, index: Any = None, **metadata: Any) -> str:
    """What the agent answers to one more piece of the story."""
    body = ResponsesRequest(input=text, metadata=metadata) if metadata else ResponsesRequest(input=text)
    headers = {} if index is None else {ACTIVATION_HEADER: str(index)}
    post = here.client.post(TELLER, "/v1/responses", body, ResponsesResponse, cookies=cookies, headers=headers)
    return (await post).body.output_text


async def close(here: World) -> AgentCloseResponse:
    body = AgentCloseRequest.model_validate({"agent_session_id": "a1", "episode_id": EPISODE})
    return (await here.client.post(TELLER, "/v1/agent_sessions/close", body, AgentCloseResponse)).body


async def refused(here: World, cookies: dict[str, str], text: str, index: Any = None, **metadata: Any) -> str:
    with pytest.raises(ServerError) as caught:
        await tell(here, cookies, text, index, **metadata)
    return f"{caught.value.status} {caught.value.detail}"


async def test_each_activation_answers_what_is_new_and_close_has_it_all(here: World) -> None:
    cookies = await seed(here)
    told = [await tell(here, cookies, text, index) for index, text in enumerate(["once", "upon", "a time"], 1)]
    assert told == ["ONCE", "UPON", "A TIME"]
    assert await tell(here, cookies, "upon", 2) == "UPON"
    assert await tell(here, cookies, "once", 1) == "ONCE"
    assert teller_of(here).log == ["open", "run 1", "run 2", "run 3"]
    closed = await close(here)
    assert closed.agent_observations is not None
    assert closed.agent_observations["records"] == [{"story": ["once", "upon", "a time"]}]
    assert "cleanup_confirmed" not in closed.model_fields_set


@pytest.mark.parametrize(
    ("text", "index", "reason"),
    [
        ("twice", 1, "409 activation 1 of the session was made with another body"),
        ("later", 3, "409 activation 3 of the session skips activation 2"),
        ("upon", None, "422 the session continues: its requests carry x-ng-agent-activation: 1, 2, ..."),
        *[
            ("upon", index, f"422 x-ng-agent-activation is 1, 2, ...; not `{index}`")
            for index in ("0", "-1", "2.0", "x")
        ],
        ("", 2, "422 nothing to tell"),
    ],
)
async def test_what_does_not_follow_is_refused_and_costs_nothing(
    here: World, text: str, index: Any, reason: str
) -> None:
    cookies = await seed(here)
    await tell(here, cookies, "once", 1)
    assert await refused(here, cookies, text, index) == reason
    assert await tell(here, cookies, "upon", 2) == "UPON"


async def test_activations_do_not_overlap(here: World) -> None:
    cookies = await seed(here)
    first = asyncio.create_task(tell(here, cookies, "wait", 1))
    await teller_of(here).running.wait()
    assert await refused(here, cookies, "upon", 2) == "409 activation 1 of the session still runs"
    again = asyncio.create_task(tell(here, cookies, "wait", 1))
    first.cancel()  # a waiter that goes away stops nothing
    teller_of(here).gate.set()
    assert await again == "WAIT"
    assert await tell(here, cookies, "upon", 2) == "UPON"


async def test_one_activation_is_the_default(here: World) -> None:
    cookies = await seed(here, continuation=None)
    assert await tell(here, cookies, "once") == await tell(here, cookies, "once", 1) == "ONCE"
    assert await refused(here, cookies, "upon", 2) == (
        "409 the session takes one activation; `continuation` in its seed asks for more"
    )
    assert await refused(here, cookies, "upon") == "409 activation 1 of the session was made with another body"


async def test_what_the_agent_cannot_continue_is_refused_before_it_is_opened(here: World) -> None:
    with pytest.raises(ServerError, match="agent cannot resume_harness_session: it takes one activation") as caught:
        await seed(here, agent=AGENT)
    assert caught.value.status == 422
    assert here.agent.log == []
    await seed(here, agent=AGENT, continuation=None)


async def test_an_unknown_way_to_continue_is_refused(here: World) -> None:
    body = {"agent_session_id": "a1", "episode_id": EPISODE, "task_id": {"taskset": "t", "task_id": "1"}}
    body["continuation"] = {"mode": "resume_something_else"}
    url = here.urls[TELLER.name] + "/v1/agent_sessions"
    with pytest.raises(ServerError, match=r"continuation.mode: Input should be 'resume_harness_session'"):
        await here.client.post_json(url, body, cookies={}, headers=here.client.auth)


async def test_after_a_failed_activation_a_session_is_only_closed(here: World) -> None:
    cookies = await seed(here)
    await tell(here, cookies, "once", 1)
    for _ in range(2):
        with pytest.raises(EpisodeFailure, match="the story is lost"):
            await tell(here, cookies, "fail", 2)
    assert await refused(here, cookies, "upon", 3) == "409 activation 2 of the session failed: it can only be closed"
    assert await tell(here, cookies, "once", 1) == "ONCE"
    assert (await close(here)).agent_observations is not None


@pytest.mark.parametrize("seconds", ["0.05", 0.05])
async def test_an_activation_has_a_budget(here: World, seconds: Any) -> None:
    cookies = await seed(here)
    with pytest.raises(EpisodeFailure) as caught:
        await tell(here, cookies, "wait", 1, agent_timeout_sec=seconds)
    assert (caught.value.kind, caught.value.stage) == ("agent_timeout", "agent")
    assert caught.value.message == (
        "teller: metadata.agent_timeout_sec (0.05 s) ran out, preparation and queueing included"
    )


async def test_an_adapter_may_salvage_what_was_done_when_the_time_is_up(here: World) -> None:
    cookies = await seed(here)
    assert await tell(here, cookies, "break off", 1, agent_timeout_sec=0.05) == "BREAK OFF"
    assert await tell(here, cookies, "upon", 2) == "UPON"


@pytest.mark.parametrize("seconds", [0, -1, "soon", True, "inf", [1]])
async def test_a_budget_is_a_positive_number(here: World, seconds: Any) -> None:
    cookies = await seed(here)
    told = await refused(here, cookies, "once", 1, agent_timeout_sec=seconds)
    assert told.startswith("422 metadata.agent_timeout_sec is a positive number of seconds, not `")
    assert await tell(here, cookies, "once", 1) == "ONCE"


async def test_a_negative_receipt_fails_the_activation_and_close_says_so(here: World) -> None:
    cookies = await seed(here)
    for _ in range(2):
        with pytest.raises(EpisodeFailure) as caught:
            await tell(here, cookies, "leave a process", 1)
        assert caught.value.kind == "termination_unconfirmed"
    assert (await close(here)).cleanup_confirmed is False


async def test_closing_ends_a_later_activation_too(here: World) -> None:
    cookies = await seed(here)
    await tell(here, cookies, "once", 1)
    running = asyncio.create_task(tell(here, cookies, "wait", 2))
    await teller_of(here).running.wait()
    assert (await close(here)).agent_observations == {
        "source": "storyteller",
        "records": [{"story": ["once"]}],
        "gaps": [],
    }
    with pytest.raises(EpisodeFailure) as caught:
        await running
    assert caught.value.kind == "cancelled"
    assert (await refused(here, cookies, "once", 1)).startswith("409")


@pytest.mark.parametrize("hosting", ["in_process", "apart"])
@pytest.mark.parametrize("word", ["leave a process", "leave a process behind"])
async def test_an_episode_with_a_negative_receipt_is_not_verified(hosting: Hosting, word: str) -> None:
    async with world(hosting, [teller()], agent_server=TELLER, resources_tool_transports=[]) as here:
        request = run_request()
        request.task.task_input.responses_create_params.input = word
        outcome = (await here.client.post(ENVIRONMENT, "/run", request, RunResponse)).body
        assert outcome.failure is not None
        assert (outcome.failure.failure_kind, outcome.failure.stage) == ("termination_unconfirmed", "agent")
        assert not outcome.failure.terminal
        assert (outcome.failure.partial_response is not None) == (word == "leave a process behind")
        assert here.counter.log == ["seed", "close"]
