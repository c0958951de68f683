"""The tools of a resources server through the official MCP client, alone and in whole episodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from mcp import MCPError

from gym.composition.compose import compose
from gym.environment_servers.single_agent_turn.app import SingleAgentTurn, SingleAgentTurnConfig
from gym.launch.in_process import Instance, launch
from gym.planning.plan import plan
from gym.planning.resolve import resolve
from gym.servers import mcp as served
from gym.servers.agent import AgentServerConfig
from gym.servers.client import Client
from gym.servers.contract import CloseSessionRequest, CloseSessionResponse, RunRequest, RunResponse, ServerRef
from gym.servers.resources import ResourcesServerConfig
from tests.contract.mcp_agent import McpAgent, connected
from tests.servers.parts import no_sandboxes
from tests.servers.toolbox import TOOLBOX, Hosted, Toolbox, hosted

AGENT = ServerRef(type="responses_api_agents", name="agent")
ENVIRONMENT = ServerRef(type="environment_servers", name="environment")


@pytest.fixture
async def box() -> AsyncIterator[Hosted]:
    async with hosted() as running:
        yield running


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_lists_and_calls(box: Hosted, mode: Literal["legacy", "auto"]) -> None:
    async with connected(f"{box.url}/mcp", await box.headers(), mode=mode) as client:
        assert client.server_info.name == "toolbox"
        assert client.protocol_version == "2025-11-25"
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["fail", "give", "increment", "locate", "wait"]
        assert tools[2].description == "Add to the counter.\n\nTells how it stands then."
        result = await client.call_tool("increment", {"by": 2})
        assert (result.is_error, result.structured_content) == (False, {"count": 2})
        assert json.loads(result.content[0].text) == {"count": 2}
        point = {"point": {"x": 1}, "unit": "ft", "digits": 2}
        assert (await client.call_tool("locate", point)).content[0].text == "1.00ft 0.00ft"


async def test_the_official_client_is_told_what_goes_wrong(box: Hosted) -> None:
    headers = await box.headers()
    async with connected(f"{box.url}/mcp", headers) as client:
        wrong = await client.call_tool("increment", {"by": "many"})
        assert wrong.is_error
        assert wrong.content[0].text.startswith("`increment` refused the call: by: Input should be a valid integer")
        assert (await client.call_tool("fail", {"how": "crash"})).is_error
        with pytest.raises(MCPError, match="there is no tool `incrment`; did you mean `increment`"):
            await client.call_tool("incrment", {})
        closing = CloseSessionRequest(resources_session_id="s1")
        await box.launched.client.post(TOOLBOX, "/close_session", closing, CloseSessionResponse)
        with pytest.raises(MCPError, match="the session is closed or unknown"):
            await client.call_tool("increment", {})


async def test_the_official_client_takes_a_late_answer_as_events(box: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "KEEP_ALIVE_SECONDS", 0.001)
    async with connected(f"{box.url}/mcp", await box.headers()) as client:
        waiting = asyncio.create_task(client.call_tool("wait", {}))
        await box.server.entered.wait()
        assert (await client.call_tool("increment", {})).structured_content == {"count": 1}
        box.server.gate.set()
        assert (await waiting).content[0].text == "waited"


async def test_many_official_clients_keep_their_sessions_apart(box: Hosted) -> None:
    async def count(number: int) -> Any:
        async with connected(f"{box.url}/mcp", await box.headers(f"s{number}")) as client:
            await asyncio.gather(*(client.call_tool("increment", {"by": number}) for _ in range(3)))
            return (await client.call_tool("increment", {"by": 0})).structured_content

    assert await asyncio.gather(*(count(n) for n in range(8))) == [{"count": 3 * n} for n in range(8)]


@pytest.mark.parametrize("header", ["authorization", "x-gym-session-token"])
async def test_the_official_client_does_not_get_in_without_both_headers(box: Hosted, header: str) -> None:
    headers = await box.headers()
    del headers[header]
    with pytest.RaisesGroup(MCPError, allow_unwrapped=True, flatten_subgroups=True):
        async with connected(f"{box.url}/mcp", headers):
            pass


# Episodes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def world() -> AsyncIterator[tuple[Client, Toolbox]]:
    settings = {"resources_server": TOOLBOX, "agent_server": AGENT, "resources_tool_transports": ["mcp"]}
    instances = [
        Instance(TOOLBOX.name, TOOLBOX.type, Toolbox, ResourcesServerConfig()),
        Instance(AGENT.name, AGENT.type, McpAgent, AgentServerConfig(model_server=None)),
        Instance(ENVIRONMENT.name, ENVIRONMENT.type, SingleAgentTurn, SingleAgentTurnConfig.model_validate(settings)),
    ]
    async with launch(instances, sandboxes=no_sandboxes) as launched:
        toolbox = launched.directory.local[TOOLBOX.name]
        assert isinstance(toolbox, Toolbox)
        yield launched.client, toolbox


async def run(client: Client, calls: list[tuple[str, dict[str, Any]]], rollout: str = "r1") -> RunResponse:
    params = {"input": [{"type": "message", "role": "user", "content": json.dumps(calls)}]}
    task = {"task_id": {"taskset": "t", "task_id": "1"}, "task_input": {"responses_create_params": params}}
    body = RunRequest.model_validate({"episode_id": {"rollout_id": rollout}, "task": task})
    return (await client.post(ENVIRONMENT, "/run", body, RunResponse)).body


async def test_an_episode_over_mcp(world: tuple[Client, Toolbox]) -> None:
    client, toolbox = world
    outcome = await run(client, [("increment", {"by": 2}), ("increment", {"by": "x"}), ("increment", {})])
    assert outcome.failure is None
    assert outcome.result is not None
    assert outcome.result.reward == 1.0
    assert outcome.result.response is not None
    outputs = [item["output"] for item in outcome.result.response.output if item["type"] == "function_call_output"]
    assert outputs[::2] == ['{"count": 2}', '{"count": 3}']
    assert outputs[1].startswith("`increment` refused the call: by: ")
    assert outcome.result.response.output_text == "fail, give, increment, locate, wait"
    assert toolbox.sessions == {}


async def test_a_failure_that_the_harness_passes_over_is_no_reward(world: tuple[Client, Toolbox]) -> None:
    client, toolbox = world
    outcome = await run(client, [("fail", {"how": "crash"}), ("increment", {})])
    assert outcome.result is None
    assert outcome.failure is not None
    assert (outcome.failure.failure_kind, outcome.failure.stage) == ("tool_server_error", "agent")
    assert outcome.failure.failure_reason == "tool fail of toolbox: KeyError: 'crash'"
    assert outcome.failure.partial_response is not None
    assert toolbox.sessions == {}


# Planning ------------------------------------------------------------------------------------------------------------

ROW = '{"responses_create_params": {"input": "hi"}, "task_id": "t1", "initial_count": 0, "expected_count": 1}\n'
BENCH = """
    config_paths:
    - resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
    - environment_servers/single_agent_turn/configs/single_agent_turn.yaml
    benchmark:
      _inherit_from: example_session_state_mgmt_resources_server
      resources_servers:
        example_session_state_mgmt:
          _target_: {target}
          datasets:
          - {{name: mine, type: benchmark, taskset: mine, jsonl_fpath: rows.jsonl}}
    agent:
      responses_api_agents:
        mcp_agent:
          _target_: tests.contract.mcp_agent.McpAgent
    experiment:
      _inherit_from: single_agent_turn
      environment_servers:
        single_agent_turn:
          resources_server: {{type: resources_servers, name: benchmark}}
          agent_server: {{type: responses_api_agents, name: agent}}
          resources_tool_transports: {transports}
    """
COUNTER = "resources_servers.example_session_state_mgmt.app.ExampleSessionStateMgmt"
NO_TOOLS = "tests.contract.mcp_agent.NoTools"


@pytest.mark.parametrize(
    ("target", "asked", "settled"),
    [(COUNTER, "null", ["mcp"]), (COUNTER, "[mcp]", ["mcp"]), (COUNTER, "[]", []), (NO_TOOLS, "null", [])],
)
def test_an_agent_that_knows_mcp_only_gets_it(project, target: str, asked: str, settled: list[str]) -> None:
    project({"run.yaml": BENCH.format(target=target, transports=asked), "rows.jsonl": ROW})
    config = plan(resolve(compose([], ["run.yaml"]))).instances["experiment"].config
    assert isinstance(config, SingleAgentTurnConfig)
    assert config.resources_tool_transports == settled
