"""All servers in one process: addresses before anything is built, starts and stops that leave nothing behind."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from typing import Any

import httpx
import pytest

from gym.errors import Problem, UserError
from gym.launch import in_process
from gym.launch.in_process import Instance, launch
from gym.servers.base import Call, Server, ServerConfig, ServerContext, route
from gym.servers.client import Client, Directory
from gym.servers.contract import ServerType
from tests.servers.parts import ECHO, TOKEN, Echo, Said, no_sandboxes

steps: list[str] = []


class Noted(Server[ServerConfig]):
    """Notes what happens to it. Its name says how it misbehaves."""

    def __init__(self, config: ServerConfig, context: ServerContext) -> None:
        super().__init__(config, context)
        self.url = context.client.directory.base_url
        if "unbuildable" in self.name:
            raise UserError(f"{self.name}: wrong settings")

    async def start(self) -> None:
        await asyncio.sleep(0)
        if "unstartable" in self.name:
            raise UserError(Problem(f"{self.name}: cannot start"))
        if "broken" in self.name:
            raise OSError("disk full")
        if "slow" in self.name:
            steps.append("starting")
            await asyncio.Event().wait()
        steps.append(f"start {self.name}")

    async def stop(self) -> None:
        await asyncio.sleep(0)
        if "stubborn" in self.name:
            await asyncio.Event().wait()
        steps.append(f"stop {self.name}")
        if "clumsy" in self.name:
            raise OSError("disk full")


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    steps.clear()


def noted(name: str, kind: ServerType = "resources_servers") -> Instance:
    return Instance(name, kind, Noted, ServerConfig())


def echo() -> Instance:
    return Instance("echo", "resources_servers", Echo, ServerConfig())


def port_of(base_url: str) -> int:
    return int(base_url.rpartition(":")[2])


def assert_free(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_servers_know_their_address_when_they_are_built() -> None:
    async with launch([noted("a")], sandboxes=no_sandboxes) as launched:
        server = launched.directory.local["a"]
        assert isinstance(server, Noted)
        assert server.url == launched.base_url
        assert launched.directory.url("a") == f"{launched.base_url}/a"
        assert len(launched.token) >= 32
    assert_free(port_of(launched.base_url))


async def test_callers_are_stopped_before_those_they_call() -> None:
    kinds: list[ServerType] = [
        "responses_api_models",
        "environment_servers",
        "resources_servers",
        "responses_api_agents",
    ]
    async with launch([noted(kind, kind) for kind in kinds], sandboxes=no_sandboxes):
        assert sorted(steps) == sorted(f"start {kind}" for kind in kinds)
        steps.clear()
    order = ["environment_servers", "responses_api_agents", "resources_servers", "responses_api_models"]
    assert steps == [f"stop {kind}" for kind in order]


@pytest.mark.parametrize("when", ["before the first call", "while it loads", "later"])
async def test_http_is_answered_however_early(when: str) -> None:
    async with launch([echo()], sandboxes=no_sandboxes, token=TOKEN) as launched:
        client = Client(Directory(remote={"echo": launched.directory.url("echo")}), TOKEN)
        if when == "later":
            await client.post(ECHO, "/echo", Said(text="x"), Said)
        number = 1 if when == "before the first call" else 20
        answers = await asyncio.gather(*(client.post(ECHO, "/echo", Said(text=f"{n}"), Said) for n in range(number)))
        assert [answer.body.text for answer in answers] == [str(n) for n in range(number)]
        await client.aclose()
    assert_free(port_of(launched.base_url))


async def test_calls_in_process_load_no_http() -> None:
    program = """
import asyncio, sys
from gym.launch.in_process import launch
from tests.launch.test_in_process import ECHO, Said, echo, no_sandboxes
heavy = ("fastapi", "uvicorn", "starlette", "aiohttp")
for name in [name for name in sys.modules if name.partition(".")[0] in heavy]:
    raise SystemExit(f"{name} is imported by importing")

async def main():
    async with launch([echo()], sandboxes=no_sandboxes) as launched:
        await launched.client.post(ECHO, "/echo", Said(text="x"), Said)

asyncio.run(main())
print(sorted({name.partition(".")[0] for name in sys.modules} & set(heavy)))
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


async def test_signals_stay_with_the_program() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with launch([echo()], sandboxes=no_sandboxes) as launched:
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{launched.base_url}/livez")).status_code == 200
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("bind", "advertise", "expected"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:"),
        ("127.0.0.1", "gym.internal", "http://gym.internal:"),
        ("0.0.0.0", None, "http://127.0.0.1:"),
        ("0.0.0.0", "10.1.2.3", "http://10.1.2.3:"),
        ("localhost", None, "http://localhost:"),
    ],
)
async def test_the_address_that_others_are_told(bind: str, advertise: str | None, expected: str) -> None:
    async with launch([], sandboxes=no_sandboxes, bind_host=bind, advertise_host=advertise) as launched:
        assert launched.base_url.startswith(expected)


async def test_a_port_that_is_taken_is_the_users_to_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; choose"):
            async with launch([], sandboxes=no_sandboxes, port=port):
                raise AssertionError
    async with launch([], sandboxes=no_sandboxes, port=port) as launched:
        assert port_of(launched.base_url) == port


@pytest.mark.parametrize("host", ["203.0.113.1", "x" * 70])
async def test_a_host_that_is_not_ours_is_the_users_to_fix(host: str) -> None:
    with pytest.raises(UserError, match=f"cannot listen on {host}:0: "):
        async with launch([], sandboxes=no_sandboxes, bind_host=host):
            raise AssertionError


@pytest.mark.parametrize("how", ["unbuildable", "unstartable"])
async def test_all_that_servers_refuse_is_reported_together(how: str) -> None:
    with pytest.raises(UserError) as caught:
        async with launch([noted(f"{how}1"), noted("fine"), noted(f"{how}2")], sandboxes=no_sandboxes):
            raise AssertionError
    assert [problem.what.partition(":")[0] for problem in caught.value.problems] == [f"{how}1", f"{how}2"]
    assert steps == ([] if how == "unbuildable" else ["start fine", "stop fine"])


async def test_a_fault_at_the_start_stops_the_others() -> None:
    with pytest.raises(UserError, match="broken could not be started: OSError: disk full"):
        async with launch([noted("fine"), noted("broken")], sandboxes=no_sandboxes):
            raise AssertionError
    assert steps == ["start fine", "stop fine"]


async def test_cancelled_while_starting() -> None:
    async def use() -> None:
        async with launch([noted("fine"), noted("slow")], sandboxes=no_sandboxes):
            raise AssertionError

    task = asyncio.create_task(use())
    while not {"starting", "start fine"} <= set(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps[-1] == "stop fine"


async def test_cancelled_while_running_and_again_while_stopping() -> None:
    inside = asyncio.Event()

    async def use() -> None:
        async with launch([noted("a"), noted("b", "responses_api_models")], sandboxes=no_sandboxes):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await inside.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps[-2:] == ["stop a", "stop b"]


async def test_servers_that_stop_badly_do_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(in_process, "STOP_SECONDS", 0.02)
    names = ["stubborn", "clumsy", "fine"]
    async with launch([noted(name) for name in names], sandboxes=no_sandboxes):
        pass
    assert "stop fine" in steps
    assert "stubborn did not stop within 0.02 s" in caplog.text
    assert "clumsy failed to stop" in caplog.text


class Endless(Server[ServerConfig]):
    """Never answers, and cleans up when it is told to stop."""

    @route("/wait")
    async def wait(self, body: Said, call: Call) -> Any:
        """Waits for ever."""
        steps.append("waiting")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cleaned")

    async def stop(self) -> None:
        steps.append("stop")


async def test_requests_that_still_run_at_the_end_are_cancelled_and_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "HTTP_GRACE_SECONDS", 0)
    instance = Instance("endless", "resources_servers", Endless, ServerConfig())
    async with httpx.AsyncClient(headers={"x-api-key": TOKEN}, timeout=None) as client:
        async with launch([instance], sandboxes=no_sandboxes, token=TOKEN) as launched:
            asked = asyncio.create_task(client.post(f"{launched.base_url}/endless/wait", json={"text": ""}))
            while "waiting" not in steps:
                await asyncio.sleep(0.002)
        assert steps == ["waiting", "cleaned", "stop"]
        answer = await asked
    assert answer.status_code == 503
    assert answer.json()["failure"]["kind"] == "server_unreachable"
