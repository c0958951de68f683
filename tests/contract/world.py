"""A whole world of real servers for the contract suite: a counter with tools, a tiny agent, a model that counts.

The world is hosted in four ways: all in one process and called in-process; the same, called over HTTP; each server
behind a port of its own, so that every call between them is HTTP; and each server in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse, Usage, function_call, message
from gym.environment_servers.single_agent_turn.app import SingleAgentTurn, SingleAgentTurnConfig
from gym.failures import EpisodeFailure
from gym.launch.in_process import Instance, Launched, launch
from gym.sandbox.interface import SandboxProvider
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession
from gym.servers.base import Call, Server, ServerContext, ServerError
from gym.servers.client import Client, Directory
from gym.servers.contract import ROLLOUT_HEADER, DirectHttpGrant, ServerRef, VerifyRequest, VerifyResponse
from gym.servers.model import ModelServer, ModelServerConfig
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData, tool
from tests.contract.remote import in_processes

Hosting = Literal["in_process", "over_http", "apart", "process"]
HOSTINGS: tuple[Hosting, ...] = ("in_process", "over_http", "apart", "process")

MODEL = ServerRef(type="responses_api_models", name="policy_model")
RESOURCES = ServerRef(type="resources_servers", name="counter")
AGENT = ServerRef(type="responses_api_agents", name="agent")
ENVIRONMENT = ServerRef(type="environment_servers", name="environment")


class CounterTask(TaskData):
    """What the counter shall be at the end; `fault` names the step that goes wrong."""

    expected: int = 0
    fault: str = ""


class Counter(ResourcesServer[ResourcesServerConfig, CounterTask]):
    """A counter for each session."""

    config_type = ResourcesServerConfig
    task_type = CounterTask

    def __init__(self, config: ResourcesServerConfig, context: ServerContext) -> None:
        super().__init__(config, context)
        self.log: list[str] = []

    async def seed(self, session: Session[CounterTask]) -> None:
        self.log.append("seed")
        await trip(session.task.fault, "seed")
        session.state["count"] = 0

    @tool
    async def increment(self, session: Session[CounterTask], by: int = 1) -> dict[str, int]:
        """Adds to the counter."""
        await trip(session.task.fault, "tool")
        session.state["count"] += by
        return {"count": session.state["count"]}

    async def verify(self, session: Session[CounterTask], request: VerifyRequest) -> VerifyResponse:
        self.log.append("verify")
        await trip(session.task.fault, "verify")
        if session.task.fault == "no reward":
            return VerifyResponse(failure_kind="judge_failed", failure_reason="the judge was silent")
        count = session.state["count"]
        return VerifyResponse.model_validate({"reward": float(count == session.task.expected), "count": count})

    async def close(self, session: Session[CounterTask]) -> None:
        self.log.append("close")
        await trip(session.task.fault, "close")


class TinyAgent(AgentServer[AgentServerConfig]):
    """Asks the model and calls what it asks for, until it says something. `gate` holds up opening and closing."""

    transports = frozenset({"direct_http"})

    def __init__(self, config: AgentServerConfig, context: ServerContext) -> None:
        super().__init__(config, context)
        self.log: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.open_fault = ""
        self.close_fault = ""

    async def open(self, session: AgentSession) -> None:
        self.log.append("open")
        await self.gate.wait()
        await trip(self.open_fault, "open")

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        self.log.append("run")
        history, usage = request.items(), Usage()
        output: list[Item] = []
        headers = {ROLLOUT_HEADER: session.request.episode_id.key}
        assert self.config.model_server is not None
        while True:
            asked = request.model_copy(update={"input": [*history, *output]})
            answer = await self.context.client.post(
                self.config.model_server, "/v1/responses", asked, ResponsesResponse, headers=headers
            )
            usage = usage.plus(answer.body.usage)
            output += answer.body.output
            calls = [item for item in answer.body.output if item["type"] == "function_call"]
            if not calls:
                return answer.body.model_copy(update={"output": output, "usage": usage})
            output += [await self._call(session, item) for item in calls]

    async def _call(self, session: AgentSession, item: Item) -> Item:
        grant = next(grant for grant in session.request.tool_accesses if isinstance(grant, DirectHttpGrant))
        cookies = session.resources_cookies or grant.cookies
        got: Any
        try:
            got, changed = await self.context.client.post_json(
                f"{grant.base_url}/{item['name']}",
                json.loads(item["arguments"]),
                cookies=cookies,
                headers=grant.headers,
            )
            session.resources_cookies = {**cookies, **changed}
        except ServerError as error:
            if error.status not in (404, 422):
                raise
            got = {"error": error.detail}
        return {"type": "function_call_output", "call_id": item["call_id"], "output": json.dumps(got)}

    async def close(self, session: AgentSession) -> dict[str, Any] | None:
        self.log.append("close")
        await self.gate.wait()
        await trip(self.close_fault, "close")
        return {"source": "tiny_agent"}


class CountingModel(ModelServer[ModelServerConfig]):
    """Asks once for the tool and the arguments that the user's text names as JSON; then says `done`."""

    scripted = True

    def __init__(self, config: ModelServerConfig, context: ServerContext) -> None:
        super().__init__(config, context)
        self.rollouts: set[str] = set()
        self.cancelled = 0
        self.answering = asyncio.Event()

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        self.rollouts.add(call.headers[ROLLOUT_HEADER])
        items = request.items()
        usage = Usage(input_tokens=2, output_tokens=1, total_tokens=3)
        if len(items) > 1:
            return ResponsesResponse(output=[message("assistant", "done")], usage=usage)
        wanted = json.loads(items[0]["content"])
        if wanted["tool"] == "hang":
            self.answering.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        await trip(wanted["tool"], "model")
        return ResponsesResponse(output=[function_call(wanted["tool"], wanted["arguments"])], usage=usage)


async def trip(fault: str, step: str) -> None:
    """Goes wrong where `fault` names this step: as a failure, as a fault of the code (`... crash`), or for ever."""
    if fault == f"{step} hang":
        await asyncio.Event().wait()
    if fault == step:
        raise EpisodeFailure("provider_unreachable", f"{step} is out of order")
    if fault == f"{step} crash":
        raise ValueError(f"{step}\ncrashed")


@dataclass
class World:
    """The running servers, and a client of theirs."""

    client: Client
    servers: dict[str, Server[Any]] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    @property
    def counter(self) -> Counter:
        """The resources server."""
        server = self.servers[RESOURCES.name]
        assert isinstance(server, Counter)
        return server

    @property
    def agent(self) -> TinyAgent:
        """The agent server."""
        server = self.servers[AGENT.name]
        assert isinstance(server, TinyAgent)
        return server

    @property
    def model(self) -> CountingModel:
        """The model server."""
        server = self.servers[MODEL.name]
        assert isinstance(server, CountingModel)
        return server


def instances(**environment: Any) -> list[Instance]:
    """The four instances of the world, callees first."""
    settings = {"resources_server": RESOURCES, "agent_server": AGENT, "resources_tool_transports": ["direct_http"]}
    return [
        Instance(MODEL.name, MODEL.type, CountingModel, ModelServerConfig()),
        Instance(RESOURCES.name, RESOURCES.type, Counter, ResourcesServerConfig()),
        Instance(AGENT.name, AGENT.type, TinyAgent, AgentServerConfig(model_server=MODEL)),
        Instance(
            ENVIRONMENT.name,
            ENVIRONMENT.type,
            SingleAgentTurn,
            SingleAgentTurnConfig.model_validate({**settings, **environment}),
        ),
    ]


def no_sandboxes(name: str) -> SandboxProvider:
    """Nothing here needs a sandbox."""
    raise AssertionError(name)


@asynccontextmanager
async def world(hosting: Hosting, more: Sequence[Instance] = (), **environment: Any) -> AsyncIterator[World]:
    """The servers, hosted in one of the four ways, with `more` beside them."""
    everything = [*instances(**environment), *more]
    if hosting == "process":
        async with in_processes(everything) as (running, stand_ins):
            yield World(running.launched.client, stand_ins, dict(running.launched.directory.remote))
        return
    async with AsyncExitStack() as stack:
        launched: list[Launched] = []
        for group in [[instance] for instance in everything] if hosting == "apart" else [everything]:
            token = launched[0].token if launched else None
            launched.append(await stack.enter_async_context(launch(group, sandboxes=no_sandboxes, token=token)))
        urls = {name: one.directory.url(name) for one in launched for name in one.directory.local}
        for one in launched:
            one.directory.remote.update((name, url) for name, url in urls.items() if name not in one.directory.local)
        client = launched[0].client
        if hosting != "in_process":
            client = Client(Directory(remote=urls), launched[0].token)
            stack.push_async_callback(client.aclose)
        yield World(client, {name: server for one in launched for name, server in one.directory.local.items()}, urls)
