"""A model provider on loopback that answers as a test tells it, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gym.servers.base import ServerContext
from gym.servers.client import Client, Directory
from gym.servers.sessions import Signer


@dataclass(frozen=True)
class Reply:
    """One answer; `hang` gives none, `cut` closes the connection."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    cut: bool = False


@dataclass
class Provider:
    """Gives its replies in order; the last one again and again."""

    base_url: str = ""
    replies: list[Reply] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0
    most_in_flight: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            return await self._answer(request)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(await request.json())
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if reply.hang:
            await self.closing.wait()
        if reply.cut and request.transport is not None:
            request.transport.close()
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        return web.Response(status=reply.status, text=text, headers=reply.headers)


@asynccontextmanager
async def serving() -> AsyncIterator[Provider]:
    """A provider on a free port."""
    provider = Provider()
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", provider.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    provider.base_url = f"http://{host}:{port}"
    try:
        yield provider
    finally:
        provider.closing.set()
        await runner.cleanup()


def context(name: str = "policy_model") -> ServerContext:
    """What a server gets when it starts; model servers use no sandboxes."""

    def no_sandboxes(provider: str) -> Any:
        raise AssertionError(f"a model server asked for the sandbox provider {provider}")

    return ServerContext(name, Client(Directory(), token="t"), Signer(b"s"), no_sandboxes)
