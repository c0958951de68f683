"""Servers that go wrong on request, for processes of their own; and what tests look at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import Field, SecretStr

from gym.errors import Problem, UserError
from gym.launch.hosting import Apart, Hosted, Place, hosted
from gym.launch.in_process import Instance
from gym.launch.supervised import Event
from gym.servers.base import Call, Server, ServerConfig, route
from gym.servers.contract import ServerType
from gym.servers.keys import Identity
from gym.servers.model import ModelServer, ModelServerConfig
from tests.servers.parts import Said, no_sandboxes

WAIT_SECONDS = 30


class OddConfig(ServerConfig):
    """How the server goes wrong: `refuse`, `break`, `leave` or `hang` at its start."""

    fault: str = ""
    once: str = Field("", description="A file: with it, the fault happens from the second start on.")
    key: SecretStr = SecretStr("")


class Odd(Server[OddConfig]):
    """Says what it is asked about itself."""

    config_type = OddConfig

    async def start(self) -> None:
        print(f"{self.name} starts", file=sys.stderr)
        if self.config.once and not os.path.exists(self.config.once):
            with open(self.config.once, "w"):
                return
        match self.config.fault:
            case "refuse":
                raise UserError(Problem(f"{self.name} does not like it", "try another", "here.yaml:3", "odd.fault"))
            case "break":
                raise OSError("disk full")
            case "leave":
                os._exit(7)
            case "hang":
                await asyncio.Event().wait()

    @route("/tell")
    async def tell(self, body: Said, call: Call) -> Any:
        """Something about the process."""
        match body.text:
            case "pid":
                return os.getpid()
            case "key":
                return self.config.key.get_secret_value()
            case "variable":
                return os.environ.get("GYM_TEST_KEY")
            case "path":
                return os.environ.get("PYTHONPATH")
            case "log":
                print(f"the key is {self.config.key.get_secret_value()}, the token {self.context.client.token}")
            case "child":
                return (await asyncio.create_subprocess_exec("sleep", "1000")).pid
            case "directory":
                return self.context.client.directory.remote
            case "issue":
                identity = Identity("r1", f"s{body.times}")
                return self.context.keys.issue(identity, ["model"])
            case "revoke":
                self.context.keys.revoke(f"s{body.times}")
        return None


class Plain(ModelServer[ModelServerConfig]):
    """Answers with its process."""

    async def respond(self, request: Any, call: Call) -> Any:
        raise NotImplementedError

    @route("/pid")
    async def pid(self, body: Said, call: Call) -> Any:
        """Which process this is."""
        return os.getpid()


def odd(name: str = "odd", kind: ServerType = "resources_servers", **settings: Any) -> Instance:
    """An instance of `Odd`."""
    return Instance(name, kind, Odd, OddConfig.model_validate(settings))


def model(workers: int = 1) -> Instance:
    """An instance of `Plain`."""
    return Instance("model", "responses_api_models", Plain, ModelServerConfig(num_workers=workers))


@asynccontextmanager
async def apart(*instances: Instance, here: Iterable[Instance] = (), **place: Any) -> AsyncIterator[Hosted]:
    """Runs the instances in processes of their own."""
    settings = Place(**{"tell": lambda _event: None, **place})
    items = [Apart(instance, {}) for instance in instances]
    async with hosted(list(here), items, sandboxes=no_sandboxes, place=settings) as running:
        yield running


async def tell(running: Hosted, text: str, name: str = "odd", number: int = 1) -> Any:
    """What `Odd` answers."""
    client = running.launched.client
    url = f"{running.url(name)}/tell"
    return (await client.post_json(url, {"text": text, "times": number}, cookies={}, headers=client.auth))[0]


def pid_of(running: Hosted, name: str = "odd", worker: int = 0) -> int:
    """The process of an instance."""
    pid = running.processes()[name][worker].pid
    assert pid is not None
    return pid


async def gone(pid: int) -> None:
    """Waits until a process has ended."""
    async with asyncio.timeout(WAIT_SECONDS):
        while is_alive(pid):
            await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def up_again(running: Hosted, name: str, restarts: int, worker: int = 0) -> None:
    """Waits until a process was started again so often, and serves."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            now = running.processes()[name][worker]
            if now.restarts >= restarts and now.state == "running":
                return
            await asyncio.sleep(0.005)


def assert_free(url: str) -> None:
    """Nobody listens at the port of a URL."""
    with socket.create_server(("127.0.0.1", int(url.split(":")[2].split("/")[0]))):
        pass


async def freed(url: str) -> None:
    """Waits until nobody listens at the port of a URL."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with contextlib.suppress(OSError):
                return assert_free(url)
            await asyncio.sleep(0.005)


class Events(list[Event]):
    """What was told."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def kinds(self, name: str) -> list[str]:
        """The kinds of what was told of an instance, in order."""
        return [event.kind for event in self if event.name == name]
