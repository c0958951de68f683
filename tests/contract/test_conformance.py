"""Every server of the project through the public conformance suite, in-process and over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from gym.environment_servers.legacy_agent.app import LegacyAgent, LegacyAgentConfig
from gym.environment_servers.single_agent_turn.app import SingleAgentTurn, SingleAgentTurnConfig
from gym.environment_servers.single_agent_turn_legacy.app import SingleAgentTurnLegacy
from gym.launch.in_process import Instance, launch
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.servers.agent import AgentServerConfig
from gym.servers.model import ModelServerConfig
from gym.servers.resources import ResourcesServerConfig
from gym.testing.session_conformance import (
    check_agent_session_contract,
    check_environment_contract,
    check_resources_session_contract,
)
from gym.testing.subject import Subject, in_process, over_http
from resources_servers.example_session_state_mgmt.app import ExampleSessionStateMgmt
from resources_servers.workspace_tasks.app import WorkspaceTasks, WorkspaceTasksConfig
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from tests.contract.storyteller import TELLER, teller
from tests.contract.test_flat_rows import OLD, OldAgent
from tests.contract.world import AGENT, MODEL, RESOURCES, Counter, CountingModel, TinyAgent

MODEL_INSTANCE = Instance(MODEL.name, MODEL.type, CountingModel, ModelServerConfig())
TINY = Instance(AGENT.name, AGENT.type, TinyAgent, AgentServerConfig(model_server=MODEL))
COUNTER = Instance(RESOURCES.name, RESOURCES.type, Counter, ResourcesServerConfig())
SIMPLE = Instance("simple", AGENT.type, SimpleAgent, SimpleAgentConfig(model_server=MODEL))
MCP = {"kind": "mcp", "name": "tools", "connection": {"url": "http://127.0.0.1:9/mcp"}}

Under = Callable[[Sequence[Instance], str], AbstractAsyncContextManager[Subject]]


def asks(tool: str = "increment", **arguments: Any) -> dict[str, Any]:
    text = json.dumps({"tool": tool, "arguments": arguments})
    return {"input": [{"type": "message", "role": "user", "content": text}]}


@pytest.fixture(params=["in-process", "over HTTP"])
def under(request: pytest.FixtureRequest, tmp_path: Path) -> Under:
    """Starts instances, and puts one of them under test."""
    hosting: Literal["in-process", "over HTTP"] = request.param

    @asynccontextmanager
    async def start(instances: Sequence[Instance], name: str) -> AsyncIterator[Subject]:
        provider = LocalProvider(LocalProviderConfig(isolation="none", allow_unisolated=True, root=tmp_path))
        async with launch(instances, sandboxes=lambda _: provider) as launched:
            if hosting == "in-process":
                yield in_process(launched.directory.local[name])
            else:
                async with over_http(launched.directory.url(name), launched.token) as subject:
                    yield subject
        await provider.aclose()
        assert list(tmp_path.iterdir()) == []

    return start


@pytest.mark.parametrize("agent", [TINY, SIMPLE], ids=lambda agent: agent.name)
async def test_agents(under: Under, agent: Instance) -> None:
    async with under([MODEL_INSTANCE, agent], agent.name) as subject:
        again = {"input": asks()["input"] * 2}  # a conversation that the model only ends
        await check_agent_session_contract(subject, request=again, refuses=MCP)


async def test_an_agent_that_continues(under: Under) -> None:
    async with under([teller()], TELLER.name) as subject:
        await check_agent_session_contract(subject, request={"input": "once"}, continues=True, refuses=MCP)


async def test_example_session_state_mgmt(under: Under) -> None:
    tasks = Instance("tasks", RESOURCES.type, ExampleSessionStateMgmt, ResourcesServerConfig())
    async with under([tasks], "tasks") as subject:
        task = {"initial_count": 1, "expected_count": 1}
        await check_resources_session_contract(subject, task_data=task, request=asks())


async def test_workspace_tasks(under: Under) -> None:
    tasks = Instance("tasks", RESOURCES.type, WorkspaceTasks, WorkspaceTasksConfig())
    async with under([tasks], "tasks") as subject:
        task = {"files": {"a.txt": "a"}, "test_script": "#!/bin/sh\nexit 0\n"}
        await check_resources_session_contract(subject, task_data=task, request=asks())


def environment(server: type[SingleAgentTurn]) -> Instance:
    settings = {"resources_server": RESOURCES, "agent_server": AGENT, "resources_tool_transports": ["direct_http"]}
    return Instance("environment", "environment_servers", server, SingleAgentTurnConfig.model_validate(settings))


def episode(**task: Any) -> dict[str, Any]:
    task_input = {"responses_create_params": asks(by=2), "expected": 2, **task}
    return {"task": {"task_id": {"taskset": "counting", "task_id": "two"}, "task_input": task_input}}


@pytest.mark.parametrize("server", [SingleAgentTurn, SingleAgentTurnLegacy])
async def test_one_turn_of_an_agent(under: Under, server: type[SingleAgentTurn]) -> None:
    flat = episode()["task"]["task_input"] if server.accepts_flat_rows else None
    async with under([MODEL_INSTANCE, COUNTER, TINY, environment(server)], "environment") as subject:
        broken = episode(expected="two")
        await check_environment_contract(subject, request=episode(), broken=broken, flat_row=flat)


async def test_legacy_agent(under: Under) -> None:
    agent = Instance(OLD.name, OLD.type, OldAgent, AgentServerConfig())
    relay = Instance("relay", "environment_servers", LegacyAgent, LegacyAgentConfig(agent_server=OLD))
    async with under([agent, relay], "relay") as subject:
        broken = episode(fault="failure")
        flat = episode()["task"]["task_input"]
        await check_environment_contract(subject, request=episode(), broken=broken, flat_row=flat)


async def test_a_server_that_is_not_there_is_told_so() -> None:
    async with over_http("http://127.0.0.1:9") as subject:
        with pytest.raises(AssertionError, match=r"POST /v1/agent_sessions: no answer from http://127.0.0.1:9"):
            await check_agent_session_contract(subject, request=asks())


async def test_a_server_that_refuses_our_token_is_told_so() -> None:
    async with launch([TINY, MODEL_INSTANCE], sandboxes=lambda _: None) as launched:  # type: ignore[arg-type,return-value]
        async with over_http(launched.directory.url(AGENT.name), "wrong") as subject:
            with pytest.raises(AssertionError, match="expected 200, got 401"):
                await check_agent_session_contract(subject, request=asks())
