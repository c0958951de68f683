# ruff: noqa: D103 (the name of a test says what it is about)
"""Which servers every provider's sandboxes reach."""

from __future__ import annotations

import asyncio

import pytest

from gym.errors import UserError
from gym.sandbox.interface import Network, Sandbox, SandboxProvider, SandboxSpec
from gym.testing.sandbox_conformance.checks import check, has_own, own
from gym.testing.sandbox_conformance.servers import greeting, reached


async def made(provider: SandboxProvider, network: Network, gym_port: int | None = None) -> Sandbox:
    """A sandbox with this network, where the provider has it."""
    if network not in provider.capabilities.networks:
        pytest.skip(f"no network `{network}`")
    address = None if gym_port is None else ("127.0.0.1", gym_port)
    return await provider.create(SandboxSpec(network=network, gym_address=address))


async def inner_url(sandbox: Sandbox, url: str) -> str:
    """The URL inside, where sandboxes can reach what listens on this machine's loopback."""
    try:
        return await sandbox.gym_url(url)
    except UserError as error:
        if "loopback" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("network", ["open", "gym_only"])
@check
async def test_the_gym_servers_are_reached(provider: SandboxProvider, network: Network) -> None:
    async with greeting("gym") as gym, greeting("other") as other:
        sandbox = await made(provider, network, gym)
        url = await inner_url(sandbox, f"http://127.0.0.1:{gym}/agent/v1?x=1")
        assert url.endswith("/agent/v1?x=1")
        assert await reached(sandbox, url) == "gym"
        again = await asyncio.gather(*(reached(sandbox, url) for _ in range(3)))
        assert again == ["gym"] * 3
        second = await sandbox.gym_url(f"http://127.0.0.1:{other}")
        assert await reached(sandbox, second) == "other"


@check
async def test_gym_only_reaches_nothing_else(provider: SandboxProvider) -> None:
    if not provider.isolated:
        pytest.skip("without isolation nothing is kept")
    async with greeting("gym") as gym, greeting("other") as other:
        sandbox = await made(provider, "gym_only", gym)
        url = await sandbox.gym_url(f"http://127.0.0.1:{gym}")
        host = url.removeprefix("http://").partition(":")[0]
        for address in (f"127.0.0.1:{other}", f"{host}:{other}", "192.0.2.1:80"):
            assert (await reached(sandbox, f"http://{address}", 1)).startswith("refused"), address
        assert await reached(sandbox, url) == "gym"


@check
async def test_none_reaches_nothing(provider: SandboxProvider) -> None:
    if not provider.isolated:
        pytest.skip("without isolation nothing is kept")
    async with greeting("gym") as gym:
        sandbox = await made(provider, "none", gym)
        assert (await reached(sandbox, f"http://127.0.0.1:{gym}", 1)).startswith("refused")
        assert (await reached(sandbox, "http://192.0.2.1:80", 1)).startswith("refused")
        if has_own(sandbox, "gym_url"):
            with pytest.raises(UserError, match=r"network `none` cannot reach .*gym_only"):
                await sandbox.gym_url(f"http://127.0.0.1:{gym}")


@check
async def test_a_borrower_reaches_the_gym_servers_too(provider: SandboxProvider) -> None:
    async with greeting("gym") as gym:
        owned = await made(provider, "gym_only")
        sandbox = await provider.connect(owned.descriptor())
        assert await reached(sandbox, await sandbox.gym_url(f"http://127.0.0.1:{gym}")) == "gym"


@pytest.mark.parametrize("url", ["127.0.0.1:80", "http://", "http://host:port", "file:///x"])
@check
async def test_what_is_no_url(provider: SandboxProvider, url: str) -> None:
    sandbox = await provider.create(SandboxSpec(network="open"))
    own(sandbox, "gym_url")
    with pytest.raises(UserError, match="is no URL of a server"):
        await sandbox.gym_url(url)


@check
async def test_large_answers_and_half_closed_connections_pass(provider: SandboxProvider) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = len(await reader.read())
        writer.write(b"%d\n" % count + bytes(3_000_000))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        sandbox = await made(provider, "gym_only")
        host, _, inner = (await sandbox.gym_url(f"http://127.0.0.1:{port}")).removeprefix("http://").partition(":")
        script = (
            f"import socket; s = socket.create_connection(('{host}', {inner})); s.sendall(bytes(2_000_000));"
            "s.shutdown(socket.SHUT_WR); f = s.makefile('rb'); print(f.readline(), len(f.read()))"
        )
        result = await sandbox.exec(["python3", "-c", script])
        assert result.stdout_text == "b'2000000\\n' 3000000\n", result.stderr_text


@check
async def test_a_server_inside_is_reached_from_here(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SandboxSpec(network="open"))
    script = (
        "import http.server as h; s = h.ThreadingHTTPServer(('', 0), h.SimpleHTTPRequestHandler);"
        "print(s.server_port, flush=True); s.serve_forever()"
    )
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(name: str, chunk: bytes) -> None:
        if name == "stdout":
            port.set_result(int(chunk))

    await sandbox.upload(b"inside", "file")
    serving = asyncio.ensure_future(sandbox.exec(["python3", "-c", script], on_output=take))
    try:
        reader, writer = await asyncio.open_connection(*await sandbox.forward(await port))
    except UserError:
        serving.cancel()
        pytest.skip("nothing is forwarded")
    writer.write(b"GET /file HTTP/1.0\r\n\r\n")
    assert (await reader.read()).endswith(b"inside")
    writer.close()
    await writer.wait_closed()
    serving.cancel()
    if provider.isolated:
        closed = await made(provider, "none")
        with pytest.raises(UserError, match="reach"):
            await closed.forward(80)
