"""Real servers of one process, wired as a run wires them; only the policy is a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse, message
from gym.environment_servers.single_agent_turn.app import SingleAgentTurn, SingleAgentTurnConfig
from gym.sandbox.interface import SandboxProvider
from gym.servers.base import Call, Server, ServerContext
from gym.servers.client import Client, Directory
from gym.servers.contract import ROLLOUT_HEADER, RunRequest, RunResponse, ServerRef
from gym.servers.model import ModelServer, ModelServerConfig
from gym.servers.resources import ResourcesServer
from gym.servers.sessions import Signer
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig

MODEL = ServerRef(type="responses_api_models", name="policy_model")
RESOURCES = ServerRef(type="resources_servers", name="benchmark")
AGENT = ServerRef(type="responses_api_agents", name="agent")


class ScriptedModel(ModelServer[ModelServerConfig]):
    """Plays its turns to each rollout, then says `done`. Keeps the requests that it got."""

    scripted = True

    def __init__(self, turns: list[dict[str, Any]], context: ServerContext) -> None:
        super().__init__(ModelServerConfig(), context)
        self.turns = turns
        self.requests: list[ResponsesRequest] = []
        self._played: Counter[str] = Counter()

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        """The next turn of the rollout that asks."""
        self.requests.append(request)
        rollout = call.headers[ROLLOUT_HEADER]
        number = self._played[rollout]
        self._played[rollout] += 1
        if number < len(self.turns):
            return ResponsesResponse.model_validate(self.turns[number])
        return ResponsesResponse(output=[message("assistant", "done")])


@dataclass
class World:
    """The four servers of an episode."""

    environment: SingleAgentTurn
    resources: ResourcesServer[Any, Any]
    agent: SimpleAgent
    model: ModelServer[Any]
    client: Client
    episodes: int = field(default=0)

    @property
    def requests(self) -> list[ResponsesRequest]:
        """What the scripted model was asked."""
        assert isinstance(self.model, ScriptedModel)
        return self.model.requests

    async def run(self, task_data: dict[str, Any], text: Any = "go", task_id: str = "t1", **params: Any) -> RunResponse:
        """One episode of a task."""
        self.episodes += 1
        params = {"input": text, **params}
        task_input = {"responses_create_params": params, "task_data": task_data}
        body = {
            "episode_id": {"rollout_id": f"r{self.episodes}"},
            "task": {"task_id": {"taskset": "test", "task_id": task_id}, "task_input": task_input},
        }
        return await self.environment.run(RunRequest.model_validate(body), Call())

    async def stop(self) -> None:
        """Stops the servers."""
        for server in (self.environment, self.agent, self.resources, self.model):
            await server.stop()
        await self.client.aclose()


def build(
    resources: Callable[[ServerContext], ResourcesServer[Any, Any]],
    policy: list[dict[str, Any]] | Callable[[ServerContext], ModelServer[Any]],
    *,
    provider: SandboxProvider | None = None,
    **agent_settings: Any,
) -> World:
    """Servers around a resources server and a policy: turns to play, or a model server of its own.

    `provider` is the sandbox provider of every block.
    """
    directory = Directory(base_url="http://gym.invalid")
    client = Client(directory, "token")
    signer = Signer(b"secret of the test")

    def sandboxes(name: str) -> SandboxProvider:
        assert provider is not None, f"nobody should open the provider {name}"
        return provider

    def context(name: str) -> ServerContext:
        return ServerContext(name, client, signer, sandboxes)

    def local(server: Server[Any]) -> None:
        directory.local[server.name] = server

    model = ScriptedModel(policy, context(MODEL.name)) if isinstance(policy, list) else policy(context(MODEL.name))
    tools = resources(context(RESOURCES.name))
    agent = SimpleAgent(SimpleAgentConfig(model_server=MODEL, **agent_settings), context(AGENT.name))
    config = SingleAgentTurnConfig(
        resources_server=RESOURCES, agent_server=AGENT, resources_tool_transports=["direct_http"]
    )
    environment = SingleAgentTurn(config, context("experiment"))
    for server in (model, tools, agent, environment):
        local(server)
    return World(environment, tools, agent, model, client)


def turn(*output: Item) -> dict[str, Any]:
    """A model's turn as a Responses body."""
    return {"output": list(output), "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}}
