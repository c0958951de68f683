"""Whose session an MCP request touches, what becomes of one that takes long, and which transports there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gym.servers import mcp
from gym.servers.base import ServerError
from gym.servers.contract import CloseSessionRequest, CloseSessionResponse
from gym.servers.keys import Identity
from tests.servers.toolbox import TOOLBOX, Hosted, Toolbox, hosted, request

INVALID = -32600


@pytest.fixture
async def box() -> AsyncIterator[Hosted]:
    async with hosted() as running:
        yield running


async def test_both_transports_reach_one_session(box: Hosted) -> None:
    headers, (_, cookies) = await box.headers(), await box.seed()
    await box.call(headers, "increment", by=2)
    assert (await box.direct(headers, cookies, "increment", by=3)).json() == {"count": 5}
    assert (await box.call(headers, "increment"))["structuredContent"] == {"count": 6}


async def test_sessions_are_kept_apart(box: Hosted) -> None:
    every = [await box.headers(f"s{n}") for n in range(10)]
    await asyncio.gather(*(box.call(headers, "increment", by=n) for n, headers in enumerate(every) for _ in range(3)))
    results = await asyncio.gather(*(box.call(headers, "increment", by=0) for headers in every))
    assert [result["structuredContent"]["count"] for result in results] == [3 * n for n in range(10)]


@pytest.mark.parametrize("method", ["initialize", "ping", "tools/list", "tools/call"])
async def test_a_closed_session_is_told(box: Hosted, method: str) -> None:
    headers = await box.headers()
    body = CloseSessionRequest(resources_session_id="s1")
    await box.launched.client.post(TOOLBOX, "/close_session", body, CloseSessionResponse)
    answer = await box.post(headers, request(method, name="increment"))
    assert answer.status_code == 200
    assert answer.json()["error"] == {"code": INVALID, "message": "the session is closed or unknown"}


async def test_the_token_is_told_in_the_seed(box: Hosted) -> None:
    tools = (await box.seed())[0].resources_tools
    assert tools is not None
    assert tools.model_dump(exclude_unset=True).keys() == {"server_name", "url_path", "transport", "headers"}
    assert (tools.server_name, tools.url_path, tools.transport) == ("toolbox", "/mcp", "http")
    assert list(tools.headers) == ["x-gym-session-token"]


@pytest.mark.parametrize(
    ("alter", "status"),
    [
        ("no run token", 401),
        ("no session token", 401),
        ("forged", 403),
        ("cookie", 403),
        ("foreign", 403),
        ("as NeMo Gym names it", 200),
        ("key", 200),
        ("key of another session", 403),
        ("key of another instance", 403),
        ("revoked key", 401),
    ],
)
async def test_who_is_let_in(box: Hosted, alter: str, status: int) -> None:
    headers, (_, cookies) = await box.headers(), await box.seed()
    name = "x-gym-session-token"
    keys = box.server.context.keys
    session, instance = ("s2", "toolbox") if "session" in alter else ("s1", "other" if "instance" in alter else TOOLBOX)
    match alter:
        case "no run token":
            del headers["authorization"]
        case "no session token":
            del headers[name]
        case "forged":
            headers[name] = "s2" + headers[name][2:]
        case "cookie":
            headers[name] = next(iter(cookies.values()))
        case "foreign":
            headers[name] = box.server.context.signer.sign("header:other", "s1")
        case "as NeMo Gym names it":
            headers["X-NeMo-Gym-Session-Token"] = headers.pop(name)
        case _:
            instances = ["toolbox"] if instance is TOOLBOX else [str(instance)]
            headers["authorization"] = f"Bearer {keys.issue(Identity('r1', session), instances)}"
    if alter == "revoked key":
        keys.revoke("s1")
    answer = await box.post(headers, request("ping"))
    assert answer.status_code == status
    assert ("error" in answer.json() or "detail" in answer.json()) == (status != 200)


@pytest.mark.parametrize(("session", "status"), [("s1", 200), ("s2", 403)])
async def test_a_key_goes_with_the_cookie_of_its_own_session(box: Hosted, session: str, status: int) -> None:
    headers, (_, cookies) = await box.headers(), await box.seed()
    key = box.server.context.keys.issue(Identity("r1", session), ["toolbox"])
    answer = await box.direct({"authorization": f"Bearer {key}"}, cookies, "increment", by=1)
    assert answer.status_code == status, answer.text
    assert (await box.call(headers, "increment", by=0))["structuredContent"] == {"count": int(status == 200)}


async def test_the_token_opens_the_tools_and_nothing_else(box: Hosted) -> None:
    headers = await box.headers()
    token = headers["x-gym-session-token"]
    cookies = {"gym_resources_session": token}
    with pytest.raises(ServerError) as caught:
        await box.verify(cookies)
    assert caught.value.status == 401


# Time ----------------------------------------------------------------------------------------------------------------


async def test_a_long_call_keeps_its_connection_alive(box: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "KEEP_ALIVE_SECONDS", 0.01)
    headers = await box.headers()
    body = request("tools/call", name="wait", arguments={})
    async with box.http.stream("POST", f"{box.url}/mcp", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(4)] == [": keep-alive", "", ": keep-alive", ""]
        box.server.gate.set()
        rest = [line async for line in lines]
    event, data = [line for line in rest if line and not line.startswith(":")]
    assert event == "event: message"
    assert json.loads(data.removeprefix("data: "))["result"]["content"][0]["text"] == "waited"


async def test_a_client_that_takes_no_events_waits_for_json(box: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "KEEP_ALIVE_SECONDS", 0.001)
    headers = {**await box.headers(), "accept": "application/json"}
    waiting = asyncio.create_task(box.call(headers, "wait"))
    await box.server.entered.wait()
    await box.call(headers, "increment")
    box.server.gate.set()
    assert (await waiting)["content"][0]["text"] == "waited"


async def test_a_client_that_goes_away_cancels_its_call_and_fails_nothing(box: Hosted) -> None:
    headers, (_, cookies) = await box.headers(), await box.seed()
    waiting = asyncio.create_task(box.call(headers, "wait"))
    await box.server.entered.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    async with asyncio.timeout(10):
        await box.server.left.wait()
    assert (await box.verify(cookies)).reward == 1.0


# Which transports ----------------------------------------------------------------------------------------------------


class OnlyHttp(Toolbox):
    """Its tools cannot be reached over MCP."""

    transports = frozenset({"direct_http"})


class OnlyMcp(Toolbox):
    """Its tools cannot be reached over plain HTTP."""

    transports = frozenset({"mcp"})


@pytest.mark.parametrize(
    ("server_class", "over_mcp", "over_http"), [(Toolbox, 200, 200), (OnlyHttp, 404, 200), (OnlyMcp, 200, 404)]
)
async def test_a_server_may_restrict_its_transports(server_class: type[Toolbox], over_mcp: int, over_http: int) -> None:
    async with hosted(server_class) as box:
        answer, cookies = await box.seed()
        assert (answer.resources_tools is not None) == (over_mcp == 200)
        headers = {**box.launched.client.auth, **(answer.resources_tools.headers if answer.resources_tools else {})}
        assert (await box.post(headers, request("tools/list"))).status_code == over_mcp
        assert (await box.direct(headers, cookies, "increment")).status_code == over_http
