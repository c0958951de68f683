"""Small real servers for the tests of the server base."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

from pydantic import BaseModel, ConfigDict

from gym.failures import EpisodeFailure
from gym.sandbox.interface import SandboxProvider
from gym.servers.base import Call, Server, ServerConfig, ServerContext, ServerError, route
from gym.servers.client import Client, Directory
from gym.servers.contract import ServerRef
from gym.servers.sessions import Signer

TOKEN = "the-token-of-the-run"
ECHO = ServerRef(type="resources_servers", name="echo")


class Said(BaseModel):
    """A body, and an answer."""

    model_config = ConfigDict(extra="forbid")

    text: str
    times: int = 1


class Echo(Server[ServerConfig]):
    """Says what it hears; some words make it go wrong."""

    def __init__(self, config: ServerConfig, context: ServerContext) -> None:
        super().__init__(config, context)
        self.heard: list[tuple[dict[str, str], dict[str, str]]] = []
        self.waiting = asyncio.Event()
        self.cleaned = asyncio.Event()

    @route("/echo")
    async def echo(self, body: Said, call: Call) -> Said:
        """Answers with the body."""
        self.heard.append((dict(call.headers), dict(call.cookies)))
        match body.text:
            case "refuse":
                raise ServerError(418, "a teapot")
            case "fail":
                raise EpisodeFailure("sandbox_lost", "the sandbox is gone", stage="agent")
            case "crash":
                raise KeyError("first\nsecond")
            case "cookies":
                call.set_cookies["one"] = "1=="
                call.set_cookies["two"] = '"2"'
            case "wait":
                await self._wait()
        return body

    async def _wait(self) -> None:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.cleaned.set()

    @route("/plain")
    async def plain(self, body: Said, call: Call) -> Any:
        """Answers with plain data."""
        return {"day": date(2026, 1, 2), "pair": (1, 2), "text": body.text}

    @route("/malformed")
    async def malformed(self, body: Said, call: Call) -> Any:
        """Answers with something that no caller expects."""
        return {"text": ["no", "text"]}


def no_sandboxes(name: str) -> SandboxProvider:
    """Nothing here needs a sandbox."""
    raise AssertionError(name)


def context(name: str = "echo", directory: Directory | None = None) -> ServerContext:
    """What a server is given."""
    client = Client(directory or Directory(), TOKEN)
    return ServerContext(name, client, Signer(b"secret"), no_sandboxes)
