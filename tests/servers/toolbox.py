"""A resources server whose tools return, refuse and fail in every way, and how the MCP tests reach it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import httpx
from pydantic import BaseModel, Field

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.launch.in_process import Instance, Launched, launch
from gym.servers.base import ServerContext, ServerError
from gym.servers.contract import SeedSessionRequest, SeedSessionResponse, ServerRef, VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData, tool
from tests.servers.parts import no_sandboxes

TOOLBOX = ServerRef(type="resources_servers", name="toolbox")
Json = dict[str, Any]


class Point(BaseModel):
    """A place on a plane."""

    x: float
    y: float = 0.0


class Toolbox(ResourcesServer[ResourcesServerConfig, TaskData]):
    """Rewards 1.0 whatever happened, unless a tool failed."""

    def __init__(self, config: ResourcesServerConfig, context: ServerContext) -> None:
        super().__init__(config, context)
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.left = asyncio.Event()

    async def seed(self, session: Session[TaskData]) -> None:
        session.state["count"] = 0

    @tool
    async def increment(self, session: Session[TaskData], by: int = 1) -> dict[str, int]:
        """Add to the counter.

        Tells how it stands then.
        """
        session.state["count"] += by
        return {"count": session.state["count"]}

    @tool
    async def give(self, session: Session[TaskData], what: str) -> Any:
        """Give one of many things."""
        things: dict[str, Any] = {
            "text": "ein Wört",
            "nothing": None,
            "number": 3,
            "list": (1, "two"),
            "model": Point(x=1),
            "day": {"day": date(2026, 1, 2), 1: float("nan")},
            "unfit": object(),
        }
        return things[what]

    @tool
    async def locate(
        self,
        session: Session[TaskData],
        point: Point,
        unit: Literal["m", "ft"] = "m",
        digits: Annotated[int, Field(ge=0, le=3, description="Decimal places.")] = 1,
    ) -> str:
        """Say where a point is."""
        return f"{point.x:.{digits}f}{unit} {point.y:.{digits}f}{unit}"

    @tool
    async def fail(self, session: Session[TaskData], how: str) -> None:
        """Go wrong."""
        match how:
            case "refused":
                raise ServerError(422, "how: too much")
            case "unreachable":
                raise ServerError(503, "the simulator is down")
            case "failure":
                raise EpisodeFailure("sandbox_lost", "the sandbox is gone")
            case _:
                raise KeyError(how)

    @tool
    async def wait(self, session: Session[TaskData]) -> str:
        """Wait until the gate opens."""
        self.entered.set()
        try:
            await self.gate.wait()
        finally:
            self.left.set()
        return "waited"

    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        return VerifyResponse(reward=1.0)


@dataclass
class Hosted:
    """A toolbox that runs, and clients of it."""

    launched: Launched
    server: Toolbox
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        """Where the instance is."""
        return self.launched.directory.url(TOOLBOX.name)

    async def seed(self, session: str = "s1") -> tuple[SeedSessionResponse, dict[str, str]]:
        """Opens a session; its answer and its cookies."""
        fields = {"episode_id": {"rollout_id": "r1"}, "task_id": {"taskset": "t", "task_id": "1"}}
        body = SeedSessionRequest.model_validate({"resources_session_id": session, **fields})
        answer = await self.launched.client.post(TOOLBOX, "/seed_session", body, SeedSessionResponse)
        return answer.body, answer.cookies

    async def headers(self, session: str = "s1") -> dict[str, str]:
        """What an MCP client of a new session sends."""
        tools = (await self.seed(session))[0].resources_tools
        assert tools is not None
        return {**self.launched.client.auth, "accept": "application/json, text/event-stream", **tools.headers}

    async def verify(self, cookies: dict[str, str]) -> VerifyResponse:
        """The verdict on a session."""
        body = VerifyRequest(responses_create_params=ResponsesRequest(input="x"), response=ResponsesResponse())
        return (await self.launched.client.post(TOOLBOX, "/verify", body, VerifyResponse, cookies=cookies)).body

    async def post(self, headers: dict[str, str], body: Any) -> httpx.Response:
        """One POST to `/mcp`."""
        return await self.http.post(f"{self.url}/mcp", json=body, headers=headers)

    async def direct(self, headers: dict[str, str], cookies: dict[str, str], tool: str, **arguments: Any) -> Any:
        """A tool called without MCP."""
        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
        return await self.http.post(f"{self.url}/{tool}", json=arguments, headers={**headers, "cookie": cookie})

    async def call(self, headers: dict[str, str], tool: str, **arguments: Any) -> Json:
        """A tool's result."""
        answer = await self.post(headers, request("tools/call", name=tool, arguments=arguments))
        assert answer.status_code == 200
        result: Json = answer.json()["result"]
        return result


def request(method: str, number: int | str = 1, **params: Any) -> Json:
    """A JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@asynccontextmanager
async def hosted(server_class: type[Toolbox] = Toolbox) -> AsyncIterator[Hosted]:
    """A toolbox, served over HTTP."""
    instance = Instance(TOOLBOX.name, TOOLBOX.type, server_class, ResourcesServerConfig())
    async with launch([instance], sandboxes=no_sandboxes) as launched, httpx.AsyncClient(timeout=30) as http:
        server = launched.directory.local[TOOLBOX.name]
        assert isinstance(server, Toolbox)
        yield Hosted(launched, server, http)
