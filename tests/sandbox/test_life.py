"""The life of a sandbox, the relay, and addresses: parts that all providers share."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.addresses import is_loopback, split_url, with_address
from gym.sandbox.life import Life
from gym.sandbox.relay import Relay
from gym.testing.sandbox_conformance.servers import greeting


async def test_the_first_reason_stays() -> None:
    life = Life("x")
    life.end("is stopped")
    life.end("is something else")
    with pytest.raises(EpisodeFailure, match="sandbox x is stopped"):
        life.refuse_ended()


async def test_the_end_waits_for_uses_and_refuses_new_ones() -> None:
    life = Life("x")
    order = []

    async def use() -> None:
        async with life.use():
            order.append("in use")
            await life.ended
            order.append("done")

    using = asyncio.ensure_future(use())
    await asyncio.sleep(0)
    life.end("is stopped")
    await life.unused()
    order.append("unused")
    await using
    assert order == ["in use", "done", "unused"]
    with pytest.raises(EpisodeFailure):
        async with life.use():
            pass


async def test_a_later_bound_replaces_an_earlier_one() -> None:
    life = Life("x")
    stopped: list[str] = []

    async def stop() -> None:
        life.never_expire()
        stopped.append(life.ended.result())

    life.expire_after(1000, stop)
    life.expire_after(0.01, stop)
    await life.ended
    await asyncio.sleep(0)
    assert stopped == ["sandbox x has outlived its ttl of 0.01 s"]


async def test_a_relay_survives_servers_that_are_not_there() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = taken.getsockname()[1]
    relay = Relay(listener, ("127.0.0.1", nowhere))
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    await relay.aclose()
    await relay.aclose()


async def test_closing_a_relay_cuts_its_connections() -> None:
    async with greeting("x") as port:
        relay = Relay(socket.create_server(("127.0.0.1", 0)), ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"GET / HTTP/1.0\r\n")
        await writer.drain()
        while len(relay._connections) == 0:
            await asyncio.sleep(0)
        await relay.aclose()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.transport.abort()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:80/x", ("127.0.0.1", 80)),
        ("http://host", ("host", 80)),
        ("https://host/", ("host", 443)),
        ("http://[::1]:5/", ("::1", 5)),
    ],
)
def test_addresses(url: str, address: tuple[str, int]) -> None:
    assert split_url(url) == address


def test_another_address() -> None:
    assert with_address("http://127.0.0.1:80/a/b?c=d", "10.0.0.1", 5) == "http://10.0.0.1:5/a/b?c=d"
    assert with_address("http://127.0.0.1/", "fe80::1", 5) == "http://[fe80::1]:5/"
    with pytest.raises(UserError, match="is no URL"):
        split_url("http://[::1")


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.5", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("x", False)]
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
