"""The session contract of agents and resources servers, in every way of hosting: retries, conflicts, fences."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.servers.base import ServerError
from gym.servers.client import Answer
from gym.servers.contract import (
    AgentCloseRequest,
    AgentCloseResponse,
    AgentSessionRequest,
    AgentSessionResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    SeedSessionRequest,
    SeedSessionResponse,
    VerifyRequest,
    VerifyResponse,
)
from tests.contract.world import AGENT, HOSTINGS, RESOURCES, Hosting, World, world


@pytest.fixture(params=HOSTINGS)
async def here(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    hosting: Hosting = request.param
    async with world(hosting) as running:
        yield running


async def status(asked: Awaitable[Any]) -> int:
    """The status that a request is refused with."""
    with pytest.raises(ServerError) as caught:
        await asked
    return caught.value.status


def seeding(session: str = "a1", rollout: str = "r1", **more: Any) -> AgentSessionRequest:
    fields = {"episode_id": {"rollout_id": rollout}, "task_id": {"taskset": "t", "task_id": "1"}, **more}
    return AgentSessionRequest.model_validate({"agent_session_id": session, **fields})


async def seed(here: World, body: AgentSessionRequest, **cookies: str) -> Answer[AgentSessionResponse]:
    return await here.client.post(AGENT, "/v1/agent_sessions", body, AgentSessionResponse, cookies=cookies)


async def activate(here: World, cookies: dict[str, str], tool: str = "nothing") -> ResponsesResponse:
    grant = {"kind": "direct_http"}
    text = json.dumps({"tool": tool, "arguments": {}, **grant})
    body = ResponsesRequest(input=[{"type": "message", "role": "user", "content": text}])
    return (await here.client.post(AGENT, "/v1/responses", body, ResponsesResponse, cookies=cookies)).body


async def close(here: World, session: str = "a1", rollout: str = "r1", **cookies: str) -> AgentCloseResponse:
    body = AgentCloseRequest.model_validate({"agent_session_id": session, "episode_id": {"rollout_id": rollout}})
    path = "/v1/agent_sessions/close"
    return (await here.client.post(AGENT, path, body, AgentCloseResponse, cookies=cookies)).body


async def opened(here: World) -> dict[str, str]:
    return (await seed(here, seeding())).cookies


async def until(here: World, entry: str) -> None:
    """Waits until the agent's log has an entry."""
    async with asyncio.timeout(10):
        while entry not in here.agent.log:
            await asyncio.sleep(0.002)


async def test_an_identical_seed_gets_the_same_session(here: World) -> None:
    first = await seed(here, seeding())
    again = await seed(here, seeding(), **first.cookies)
    assert (again.body, again.cookies) == (first.body, first.cookies)
    assert here.agent.log == ["open"]


async def test_conflicting_seeds_are_refused(here: World) -> None:
    first = await seed(here, seeding())
    other = seeding(rollout="r2")
    assert await status(seed(here, other)) == 409
    assert await status(seed(here, seeding("a2"), **first.cookies)) == 409
    await close(here)
    assert await status(seed(here, seeding())) == 409


async def test_concurrent_identical_seeds_open_once_and_all_wait(here: World) -> None:
    here.agent.gate.clear()
    seeds = [asyncio.create_task(seed(here, seeding())) for _ in range(3)]
    await until(here, "open")
    await asyncio.sleep(0)
    assert not any(one.done() for one in seeds)
    here.agent.gate.set()
    answers = await asyncio.gather(*seeds)
    assert len({answer.cookies["gym_agent_session"] for answer in answers}) == 1
    assert here.agent.log == ["open"]


@pytest.mark.parametrize(("fault", "error"), [("open", EpisodeFailure), ("open crash", ServerError)])
async def test_a_failed_opening_is_undone_and_may_be_asked_for_again(
    here: World, fault: str, error: type[Exception]
) -> None:
    here.agent.open_fault = fault
    here.agent.gate.clear()
    seeds = [asyncio.create_task(seed(here, seeding())) for _ in range(2)]
    await until(here, "open")
    here.agent.gate.set()
    for outcome in await asyncio.gather(*seeds, return_exceptions=True):
        assert isinstance(outcome, error)
    assert here.agent.sessions == {}
    assert here.agent.log.count("open") == here.agent.log.count("close")
    here.agent.open_fault = ""
    await seed(here, seeding())
    assert set(here.agent.sessions) == {"a1"}


async def test_what_cannot_be_undone_stays_for_close(here: World) -> None:
    here.agent.open_fault, here.agent.close_fault = "open", "close"
    with pytest.raises(EpisodeFailure, match="open is out of order"):
        await seed(here, seeding())
    assert await status(seed(here, seeding())) == 409
    with pytest.raises(EpisodeFailure, match="close is out of order"):
        await close(here)
    here.agent.close_fault = ""
    assert (await close(here)).agent_session_id == "a1"
    assert here.agent.sessions == {}


async def test_closing_stops_an_opening_and_fences_it(here: World) -> None:
    here.agent.gate.clear()
    opening = asyncio.create_task(seed(here, seeding()))
    await until(here, "open")
    closing = asyncio.create_task(close(here))
    with pytest.raises(EpisodeFailure) as caught:
        await opening
    assert caught.value.kind == "cancelled"
    here.agent.gate.set()
    await closing
    assert await status(seed(here, seeding())) == 409
    assert here.agent.log == ["open", "close"]


async def test_unsupported_required_tools_are_refused_before_anything_opens(here: World) -> None:
    connection = {"url": "http://127.0.0.1:9/mcp"}
    grant = {"kind": "mcp", "name": "tools", "connection": connection}
    with pytest.raises(ServerError, match=r"agent cannot use the required mcp tools `tools`; it accepts: direct_http"):
        await seed(here, seeding(tool_accesses=[grant]))
    assert (await seed(here, seeding(tool_accesses=[{**grant, "required": False}]))).body.agent_session_id == "a1"
    assert await status(seed(here, seeding("a2", tool_accesses=[grant]))) == 422
    assert here.agent.log == ["open"]


async def test_a_lost_seeder_leaves_the_opening_alone(here: World) -> None:
    here.agent.gate.clear()
    lost = asyncio.create_task(seed(here, seeding()))
    await until(here, "open")
    lost.cancel()
    await asyncio.wait([lost])
    again = asyncio.create_task(seed(here, seeding()))
    here.agent.gate.set()
    assert (await again).body.agent_session_id == "a1"
    assert here.agent.log == ["open"]


async def test_an_identical_activation_gets_the_same_answer(here: World) -> None:
    grant = {"kind": "direct_http", "name": "tools", "base_url": here.urls[RESOURCES.name]}
    resources = await seed_resources(here)
    more = {"cookies": resources.cookies, "headers": here.client.auth}
    cookies = (await seed(here, seeding(tool_accesses=[{**grant, **more}]))).cookies
    first, second = await asyncio.gather(activate(here, cookies, "increment"), activate(here, cookies, "increment"))
    third = await activate(here, cookies, "increment")
    assert first.output == second.output == third.output
    assert [item["type"] for item in first.output] == ["function_call", "function_call_output", "message"]
    assert await status(activate(here, cookies, "decrement")) == 409
    assert here.agent.log == ["open", "run"]
    assert (await close(here)).resources_cookies == resources.cookies


@pytest.mark.parametrize("fault", ["model", "model crash"])
async def test_a_failed_activation_fails_again_for_an_identical_retry(here: World, fault: str) -> None:
    cookies = await opened(here)
    for _ in range(3):
        with pytest.raises((EpisodeFailure, ServerError), match="model"):
            await activate(here, cookies, fault)
    assert here.agent.log == ["open", "run"]


async def test_a_lost_waiter_leaves_the_activation_alone(here: World) -> None:
    cookies = await opened(here)
    lost = asyncio.create_task(activate(here, cookies, "hang"))
    await here.model.answering.wait()
    lost.cancel()
    await asyncio.wait([lost])
    await seed(here, seeding())  # a round trip later, the run still goes on
    assert (here.agent.sessions["a1"].activation, here.model.cancelled) == (1, 0)


async def test_closing_cancels_what_runs(here: World) -> None:
    cookies = await opened(here)
    running = asyncio.create_task(activate(here, cookies, "hang"))
    await here.model.answering.wait()
    answer = await close(here)
    with pytest.raises(EpisodeFailure) as caught:
        await running
    assert caught.value.kind == "cancelled"
    assert answer.agent_observations == {"source": "tiny_agent", "records": [], "gaps": []}
    assert await status(activate(here, cookies, "hang")) == 409
    async with asyncio.timeout(10):
        while not here.model.cancelled:
            await asyncio.sleep(0.002)


async def test_a_close_is_answered_once_and_replayed(here: World) -> None:
    cookies = await opened(here)
    here.agent.gate.clear()
    closing = [asyncio.create_task(close(here)) for _ in range(3)]
    await until(here, "close")
    closing.pop().cancel()
    here.agent.gate.set()
    answers = [*await asyncio.gather(*closing), await close(here), await close(here, **cookies)]
    assert [answer.model_dump() for answer in answers] == [answers[0].model_dump()] * 4
    assert here.agent.log == ["open", "close"]


async def test_a_close_by_another_episode_is_refused(here: World) -> None:
    await opened(here)
    assert await status(close(here, rollout="r2")) == 409
    await close(here)
    assert await status(close(here, rollout="r2")) == 409


async def test_closing_an_unknown_id_fences_a_late_seed(here: World) -> None:
    assert (await close(here)).agent_observations is None
    assert await status(seed(here, seeding())) == 409
    assert here.agent.log == []


async def test_a_failed_close_can_be_tried_again(here: World) -> None:
    cookies = await opened(here)
    here.agent.close_fault = "close"
    with pytest.raises(EpisodeFailure, match="close is out of order"):
        await close(here)
    assert await status(activate(here, cookies)) == 409
    here.agent.close_fault = ""
    assert (await close(here)).agent_observations == {"source": "tiny_agent", "records": [], "gaps": []}


@pytest.mark.parametrize(("alter", "expected"), [("none", 401), ("forged", 401), ("foreign", 401), ("unsigned", 401)])
async def test_only_cookies_of_this_server_open_a_session(here: World, alter: str, expected: int) -> None:
    own = (await opened(here))["gym_agent_session"]
    foreign = next(iter((await seed_resources(here)).cookies.values()))
    forged = own[:-1] + ("0" if own[-1] != "0" else "1")
    given = {"forged": forged, "foreign": foreign, "unsigned": "a1"}
    cookies = {"gym_agent_session": given[alter]} if alter in given else {}
    assert await status(activate(here, cookies)) == expected
    if cookies:
        assert await status(seed(here, seeding("a2"), **cookies)) == expected
        assert await status(close(here, **cookies)) == expected


# Resources servers ---------------------------------------------------------------------------------------------------


async def seed_resources(
    here: World, session: str = "s1", rollout: str = "r1", **task: Any
) -> Answer[SeedSessionResponse]:
    fields = {"episode_id": {"rollout_id": rollout}, "task_id": {"taskset": "t", "task_id": "1"}, "task_data": task}
    body = SeedSessionRequest.model_validate({"resources_session_id": session, **fields})
    return await here.client.post(RESOURCES, "/seed_session", body, SeedSessionResponse)


async def close_resources(here: World, session: str = "s1") -> CloseSessionResponse:
    body = CloseSessionRequest(resources_session_id=session)
    return (await here.client.post(RESOURCES, "/close_session", body, CloseSessionResponse)).body


async def increment(here: World, cookies: dict[str, str], arguments: dict[str, Any] | None = None) -> Any:
    url = f"{here.urls[RESOURCES.name]}/increment"
    return (await here.client.post_json(url, arguments or {}, cookies=cookies, headers=here.client.auth))[0]


async def test_resources_seed_once_and_refuse_conflicts(here: World) -> None:
    answers = await asyncio.gather(*(seed_resources(here) for _ in range(3)))
    assert len({answer.cookies["gym_resources_session"] for answer in answers}) == 1
    assert here.counter.log == ["seed"]
    assert await status(seed_resources(here, rollout="r2")) == 409
    assert await status(seed_resources(here, expected=4)) == 409


async def test_a_failed_seed_of_resources_leaves_nothing(here: World) -> None:
    for _ in range(2):
        with pytest.raises(EpisodeFailure, match="seed is out of order"):
            await seed_resources(here, fault="seed")
    assert here.counter.sessions == {}
    assert here.counter.log == ["seed", "close"] * 2


async def test_closing_resources_may_be_repeated_and_fences(here: World) -> None:
    cookies = (await seed_resources(here)).cookies
    for _ in range(2):
        assert (await close_resources(here)).resources_session_id == "s1"
    assert here.counter.log == ["seed", "close"]
    assert await status(increment(here, cookies)) == 409
    assert await status(seed_resources(here)) == 409
    await close_resources(here, "s2")
    assert await status(seed_resources(here, "s2")) == 409


async def test_tools_check_their_arguments_and_their_session(here: World) -> None:
    cookies = (await seed_resources(here)).cookies
    assert await increment(here, cookies) == {"count": 1}
    assert await increment(here, cookies, {"by": 4}) == {"count": 5}
    with pytest.raises(ServerError) as caught:
        await increment(here, cookies, {"by": "x", "extra": 1})
    assert caught.value.status == 422
    assert caught.value.detail == (
        "by: Input should be a valid integer, unable to parse string as an integer; "
        "extra: Extra inputs are not permitted"
    )
    assert await status(increment(here, {})) == 401


async def test_verify_needs_the_session_and_a_fitting_body(here: World) -> None:
    cookies = (await seed_resources(here, expected=0)).cookies
    body = VerifyRequest(responses_create_params=ResponsesRequest(input="x"), response=ResponsesResponse())
    verdict = await here.client.post(RESOURCES, "/verify", body, VerifyResponse, cookies=cookies)
    assert verdict.body.reward == 1.0
    assert await status(here.client.post(RESOURCES, "/verify", body, VerifyResponse)) == 401
    url = f"{here.urls[RESOURCES.name]}/verify"
    refused = here.client.post_json(url, {"response": 3}, cookies=cookies, headers=here.client.auth)
    with pytest.raises(ServerError, match=r"responses_create_params: Field required; response: ") as caught:
        await refused
    assert caught.value.status == 422


async def test_unknown_routes_are_404(here: World) -> None:
    for path in ("/nope", "/v1/responses/nope", ""):
        url = here.urls[RESOURCES.name] + path
        assert await status(here.client.post_json(url, {}, cookies={}, headers=here.client.auth)) == 404
