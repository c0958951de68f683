"""Calls by reference: the same answers, refusals and cookies in-process and over HTTP; misbehaving peers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel

from gym.failures import EpisodeFailure
from gym.launch.in_process import Instance, launch
from gym.servers.base import ServerConfig, ServerError
from gym.servers.client import Client, Directory
from tests.servers.parts import ECHO, TOKEN, Echo, Said, no_sandboxes

Peer = tuple[Client, Echo, str]


@pytest.fixture(params=["in_process", "over_http"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    instance = Instance("echo", "resources_servers", Echo, ServerConfig())
    async with launch([instance], sandboxes=no_sandboxes, token=TOKEN) as launched:
        server = launched.directory.local["echo"]
        assert isinstance(server, Echo)
        url = launched.directory.url("echo")
        if request.param == "in_process":
            yield launched.client, server, url
            return
        client = Client(Directory(remote={"echo": url}), TOKEN)
        yield client, server, url
        await client.aclose()


async def test_an_answer_is_typed(peer: Peer) -> None:
    answer = await peer[0].post(ECHO, "/echo", Said(text="hi"), Said)
    assert (answer.body, answer.cookies) == (Said(text="hi"), {})


async def test_headers_and_cookies_arrive_and_cookies_come_back_verbatim(peer: Peer) -> None:
    client, server, _ = peer
    answer = await client.post(
        ECHO, "/echo", Said(text="cookies"), Said, cookies={"a": "x==", "b": '"y"'}, headers={"x-ng-rollout-id": "r1"}
    )
    assert answer.cookies == {"one": "1==", "two": '"2"'}
    headers, cookies = server.heard[-1]
    assert cookies == {"a": "x==", "b": '"y"'}
    assert headers["x-ng-rollout-id"] == "r1"


async def test_a_client_keeps_no_cookies(peer: Peer) -> None:
    client, server, _ = peer
    await client.post(ECHO, "/echo", Said(text="cookies"), Said)
    await client.post(ECHO, "/echo", Said(text="x"), Said)
    assert server.heard[-1][1] == {}


@pytest.mark.parametrize(
    ("text", "status", "detail"), [("refuse", 418, "a teapot"), ("crash", 500, r"KeyError: 'first\nsecond'")]
)
async def test_refusals_and_faults(peer: Peer, text: str, status: int, detail: str) -> None:
    with pytest.raises(ServerError) as caught:
        await peer[0].post(ECHO, "/echo", Said(text=text), Said)
    assert (caught.value.status, caught.value.detail) == (status, detail)


async def test_a_failure_keeps_kind_and_stage(peer: Peer) -> None:
    with pytest.raises(EpisodeFailure, match="the sandbox is gone") as caught:
        await peer[0].post(ECHO, "/echo", Said(text="fail"), Said)
    assert (caught.value.kind, caught.value.stage) == ("sandbox_lost", "agent")


async def test_a_body_of_another_type_is_checked(peer: Peer) -> None:
    class Wider(BaseModel):
        text: str
        more: int

    with pytest.raises(ServerError) as caught:
        await peer[0].post(ECHO, "/echo", Wider(text="x", more=1), Said)
    assert (caught.value.status, caught.value.detail) == (422, "more: Extra inputs are not permitted")


async def test_a_malformed_answer_is_a_failure(peer: Peer) -> None:
    with pytest.raises(EpisodeFailure, match=r"echo/malformed answered with a malformed body: text: ") as caught:
        await peer[0].post(ECHO, "/malformed", Said(text="x"), Said)
    assert caught.value.kind == "malformed_answer"


async def test_unknown_routes(peer: Peer) -> None:
    with pytest.raises(ServerError) as caught:
        await peer[0].post(ECHO, "/nope", Said(text="x"), Said)
    assert caught.value.status == 404


async def test_a_timeout_ends_the_handler(peer: Peer) -> None:
    client, server, _ = peer
    with pytest.raises(TimeoutError):
        await client.post(ECHO, "/echo", Said(text="wait"), Said, timeout_seconds=0.05)
    async with asyncio.timeout(10):
        await server.cleaned.wait()


async def test_json_calls(peer: Peer) -> None:
    client, _, url = peer
    got, cookies = await client.post_json(f"{url}/plain", {"text": "x"}, cookies={}, headers=client.auth)
    assert (got, cookies) == ({"day": "2026-01-02", "pair": [1, 2], "text": "x"}, {})
    got, cookies = await client.post_json(f"{url}/echo", {"text": "cookies"}, cookies={}, headers=client.auth)
    assert (got, cookies) == ({"text": "cookies"}, {"one": "1==", "two": '"2"'})


async def test_a_wrong_token_is_refused() -> None:
    instance = Instance("echo", "resources_servers", Echo, ServerConfig())
    async with launch([instance], sandboxes=no_sandboxes) as launched:
        client = Client(Directory(remote={"echo": launched.directory.url("echo")}), "guessed")
        with pytest.raises(ServerError) as caught:
            await client.post(ECHO, "/echo", Said(text="x"), Said)
        assert caught.value.status == 401
        await client.aclose()


async def test_an_unknown_instance_has_no_address() -> None:
    with pytest.raises(ServerError, match="no address known for the instance `echo`") as caught:
        await Client(Directory(), TOKEN).post(ECHO, "/echo", Said(text="x"), Said)
    assert caught.value.status == 503


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer_that(answers: bytes) -> AsyncIterator[Client]:
    """A client of a server that answers every request with these bytes and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(Directory(remote={"echo": f"http://127.0.0.1:{port}"}), TOKEN)
    async with server:
        yield client
        await client.aclose()


def http(status: str, body: bytes, length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (b"", "server_unreachable"),
        (b"nonsense\r\n\r\n", "server_unreachable"),
        (http("200 OK", b'{"text": "x"}', length=99), "server_unreachable"),
        (http("200 OK", b"<html>"), "malformed_answer"),
        (http("200 OK", b"[]"), "malformed_answer"),
        (http("502 Bad Gateway", b'{"detail": "x", "failure": {"kind": "of their own"}}'), "internal"),
    ],
)
async def test_peers_that_misbehave(answers: bytes, kind: str) -> None:
    async with peer_that(answers) as client:
        with pytest.raises(EpisodeFailure) as caught:
            await client.post(ECHO, "/echo", Said(text="x"), Said)
        assert caught.value.kind == kind
        assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("answers", "status", "detail"),
    [
        (http("503 Service Unavailable", b""), 503, "http://.../echo answered 503: Service Unavailable"),
        (http("500 Internal Server Error", b"oops"), 500, "http://.../echo answered 500: oops"),
        (http("409 Conflict", b'["list"]'), 409, '["list"]'),
        (http("302 Found", b""), 302, "Found"),
    ],
)
async def test_refusals_without_our_form(answers: bytes, status: int, detail: str) -> None:
    async with peer_that(answers) as client:
        with pytest.raises(ServerError) as caught:
            await client.post(ECHO, "/echo", Said(text="x"), Said)
        said = re.sub(r"//[^/]+/", "//.../", caught.value.detail)
        assert (caught.value.status, said) == (status, detail)


async def test_nobody_listens() -> None:
    client = Client(Directory(remote={"echo": "http://127.0.0.1:1"}), TOKEN)
    with pytest.raises(
        EpisodeFailure, match=r"no answer from http://127\.0\.0\.1:1/echo: ClientConnectorError"
    ) as caught:
        await client.post(ECHO, "/echo", Said(text="x"), Said)
    assert caught.value.kind == "server_unreachable"
    await client.aclose()
