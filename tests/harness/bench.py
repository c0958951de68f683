"""One harness on a bench: the real program in a local sandbox, a scripted model, and no environment server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.errors import UserError
from gym.harness import bundles
from gym.harness.agent import HarnessAgent
from gym.harness.placing import mount
from gym.sandbox.interface import Common, Network, Sandbox, SandboxProvider, SandboxSpec
from gym.servers.base import Call, ServerContext
from gym.servers.client import Client, Directory
from gym.servers.contract import AgentCloseRequest, AgentCloseResponse, AgentSessionRequest
from gym.servers.sessions import Signer
from tests.conftest import needs
from tests.harness.fake_model import FakeModel

MODEL = {"type": "responses_api_models", "name": "policy_model"}
EPISODE = {"rollout_id": "r1"}


def needs_runtime(agent: type[HarnessAgent[Any]]) -> bundles.Bundle:
    """The runtime of a harness, from the one cache of this machine; the test is skipped where it can't be had."""
    recipe = agent.runtime(agent.config_type.model_validate({"model_server": MODEL}))
    try:
        return bundles.prepare(recipe)
    except UserError as error:
        needs(str(recipe), present=False, reason=str(error))
        raise AssertionError from error


@dataclass
class Bench:
    """An agent server with one lent sandbox."""

    agent: HarnessAgent[Any]
    sandbox: Sandbox
    provider: SandboxProvider
    cookies: dict[str, str] = field(default_factory=dict)

    async def seed(self, **fields: Any) -> None:
        """Opens the session."""
        access = {
            "connection": {"provider_config_ref": "sandbox", "descriptor": self.sandbox.descriptor()},
            "workdir": self.sandbox.workdir,
        }
        body = {
            "agent_session_id": "s1",
            "episode_id": EPISODE,
            "task_id": {"taskset": "t", "task_id": "1"},
            "sandbox_access": access,
            **fields,
        }
        call = Call()
        await self.agent.seed_session(AgentSessionRequest.model_validate(body), call)
        self.cookies.update(call.set_cookies)

    async def activate(self, text: Any = "do it", **params: Any) -> ResponsesResponse:
        """Runs the harness once."""
        request = ResponsesRequest.model_validate({"input": text, **params})
        return await self.agent.activate(request, Call(cookies=self.cookies))

    async def close(self) -> AgentCloseResponse:
        """Closes the session; its answer is whole."""
        body = AgentCloseRequest.model_validate({"agent_session_id": "s1", "episode_id": EPISODE})
        return await self.agent.close_session(body, Call(headers={"x-gym-extras": "1"}, cookies=self.cookies))

    async def run(self, text: Any = "do it", **params: Any) -> tuple[ResponsesResponse, dict[str, Any]]:
        """A whole session: the response, and the observations."""
        await self.seed()
        response = await self.activate(text, **params)
        closed = await self.close()
        assert closed.agent_observations is not None
        return response, closed.agent_observations

    async def text(self, name: str) -> str:
        """A file of the work directory."""
        return (await self.sandbox.read_file(f"{self.sandbox.workdir}/{name}", 100_000)).decode()


@asynccontextmanager
async def on_the_bench(
    agent_class: type[HarnessAgent[Any]],
    model: FakeModel,
    provider: SandboxProvider,
    *,
    mounted: bool = True,
    env: dict[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """A bench with a sandbox of its own that reaches the model and nothing else; everything is gone afterwards.

    Args:
        mounted: The sandbox shows the runtime, as those of a run do; else it is uploaded.
        env: Variables of the sandbox.
    """
    bundle = needs_runtime(agent_class)
    directory = Directory(remote={"policy_model": model.url})
    client = Client(directory, "token of the test")
    context = ServerContext("agent", client, Signer(b"secret of the test"), lambda _name: provider)
    config = agent_class.config_type.model_validate({"model_server": MODEL, **settings})
    agent = agent_class(config, context)
    await agent.start()
    network: Network = "gym_only" if "gym_only" in provider.capabilities.networks else "open"
    provider.common = Common(mounts=(mount(bundle),) if mounted else ())
    sandbox = await provider.create(SandboxSpec(network=network, env=env or {}))
    try:
        yield Bench(agent, sandbox, provider)
    finally:
        await agent.stop()
        await sandbox.stop()
        await client.aclose()


def grant(model: FakeModel, name: str = "tools", token: str | None = None, *, required: bool = True) -> dict[str, Any]:
    """An MCP grant for the fake's MCP server."""
    headers = {"X-Token": model.token if token is None else token}
    connection = {"url": f"{model.url}/mcp", "headers": headers}
    return {"kind": "mcp", "name": name, "required": required, "connection": connection}
