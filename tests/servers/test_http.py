"""A server as an app: tokens, bodies, refusals, cookies, OpenAPI, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gym.launch.in_process import Instance, launch
from gym.servers.base import ServerConfig
from gym.servers.http import build_app, build_host
from tests.servers.parts import TOKEN, Echo, context, no_sandboxes

BEARER = {"authorization": f"Bearer {TOKEN}"}
JSON = {"content-type": "application/json"}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app: Any = build_app(Echo(ServerConfig(), context()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as opened:
        yield opened


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("GET", "/livez", {}, 200),
        ("GET", "/livez", BEARER, 200),
        ("POST", "/livez", {}, 401),
        ("GET", "/", {}, 401),
        ("GET", "/", BEARER, 200),
        ("GET", "/", {"authorization": f"bearer {TOKEN}"}, 200),
        ("GET", "/", {"x-api-key": TOKEN}, 200),
        ("GET", "/", {"x-api-key": TOKEN + "x"}, 401),
        ("GET", "/", {"x-api-key": ""}, 401),
        ("GET", "/", {"authorization": TOKEN}, 401),
        ("GET", "/", {"authorization": f"Basic {TOKEN}"}, 401),
        ("GET", "/", {"authorization": "Bearer ü".encode("latin-1")}, 401),
        ("GET", "/openapi.json", {}, 401),
        ("GET", "/nope", {}, 401),
        ("GET", "/nope", BEARER, 404),
        ("GET", "/docs", BEARER, 404),
        ("POST", "/echo", {}, 401),
        ("GET", "/echo", BEARER, 405),
        ("POST", "/echo/", BEARER, 404),
        ("POST", "/ECHO", BEARER, 404),
    ],
)
async def test_only_the_token_of_the_run_opens_a_server(
    client: httpx.AsyncClient, method: str, path: str, headers: dict[str, Any], expected: int
) -> None:
    answer = await client.request(method, path, headers=headers)
    assert answer.status_code == expected
    assert isinstance(answer.json(), dict)


@pytest.mark.parametrize(
    ("content", "expected", "detail"),
    [
        (b'{"text": "hi", "times": 2}', 200, None),
        (b'{"text": "refuse"}', 418, "a teapot"),
        (b'{"text": "crash"}', 500, r"KeyError: 'first\nsecond'"),
        (b'{"text": 3}', 422, "text: Input should be a valid string"),
        (
            b'{"times": "x", "more": 1}',
            422,
            "text: Field required; times: Input should be a valid integer, unable to parse string as an integer; "
            "more: Extra inputs are not permitted",
        ),
        (b"[]", 422, "body: Input should be a valid dictionary or object to extract fields from"),
        (b"", 422, "body: Field required"),
        (b'{"text": "hi"', 422, "the body is no JSON: Expecting ',' delimiter at 13"),
    ],
)
async def test_bodies_are_checked_and_faults_are_one_line(
    client: httpx.AsyncClient, content: bytes, expected: int, detail: str | None
) -> None:
    answer = await client.post("/echo", headers={**BEARER, **JSON}, content=content)
    assert answer.status_code == expected
    assert answer.json() == ({"detail": detail} if detail else json.loads(content))


async def test_a_fault_is_logged_with_its_traceback(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await client.post("/echo", headers=BEARER, json={"text": "crash"})
    assert "echo/echo failed" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_failed_episode_is_a_502_with_its_kind(client: httpx.AsyncClient) -> None:
    answer = await client.post("/echo", headers=BEARER, json={"text": "fail"})
    assert answer.status_code == 502
    failure = {"kind": "sandbox_lost", "stage": "agent"}
    assert answer.json() == {"detail": "the sandbox is gone", "failure": failure}


async def test_cookies_are_set_as_they_are(client: httpx.AsyncClient) -> None:
    answer = await client.post("/echo", headers=BEARER, json={"text": "cookies"})
    assert answer.headers.get_list("set-cookie") == [
        "one=1==; Path=/; HttpOnly; SameSite=Lax",
        'two="2"; Path=/; HttpOnly; SameSite=Lax',
    ]


async def test_plain_answers_are_json(client: httpx.AsyncClient) -> None:
    answer = await client.post("/plain", headers=BEARER, json={"text": "x"})
    assert answer.json() == {"day": "2026-01-02", "pair": [1, 2], "text": "x"}


async def test_openapi_shows_the_bodies_and_answers(client: httpx.AsyncClient) -> None:
    described = (await client.get("/openapi.json", headers=BEARER)).json()
    post = described["paths"]["/echo"]["post"]
    said = {"$ref": "#/components/schemas/Said"}
    assert post["requestBody"]["content"]["application/json"]["schema"] == said
    assert post["responses"]["200"]["content"]["application/json"]["schema"] == said
    assert set(described["components"]["schemas"]["Said"]["properties"]) == {"text", "times"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("GET", "/livez", {}, 200),
        ("GET", "/", {}, 401),
        ("GET", "/", BEARER, 200),
        ("GET", "/echo/livez", {}, 200),
        ("GET", "/echo", BEARER, 404),
        ("GET", "/echo/", BEARER, 200),
        ("POST", "/echo/echo", {}, 401),
        ("POST", "/echo/echo", BEARER, 200),
        ("POST", "/other/echo", {}, 401),
        ("POST", "/other/echo", BEARER, 404),
        ("GET", "/other/livez", {}, 401),
    ],
)
async def test_a_host_has_each_server_under_its_name(
    method: str, path: str, headers: dict[str, str], expected: int
) -> None:
    app: Any = build_host({"echo": Echo(ServerConfig(), context())}, TOKEN)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answer = await client.request(method, path, headers=headers, json={"text": "x"} if method == "POST" else None)
        assert answer.status_code == expected


async def test_a_client_that_goes_away_cancels_its_handler() -> None:
    instance = Instance("echo", "resources_servers", Echo, ServerConfig())
    async with launch([instance], sandboxes=no_sandboxes, token=TOKEN) as launched:
        server = launched.directory.local["echo"]
        assert isinstance(server, Echo)
        host, port = launched.base_url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = b'{"text": "wait"}'
        head = f"POST /echo/echo HTTP/1.1\r\nhost: x\r\nx-api-key: {TOKEN}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await server.waiting.wait()
        writer.close()
        async with asyncio.timeout(10):
            await server.cleaned.wait()
