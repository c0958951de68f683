"""What a try has left open whose end nobody has seen: the run asks for its end, where no other try follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.servers.base import ServerError
from gym.servers.client import Client
from gym.servers.contract import (
    AgentSessionRequest,
    AgentSessionResponse,
    CloseLostResponse,
    EpisodeId,
    RunRequest,
    SeedSessionRequest,
    SeedSessionResponse,
    ServerRef,
    TaskId,
)
from gym.servers.tries import Tries
from responses_api_agents.nop_agent.app import NopAgent
from tests.contract.test_every_adapter import folder
from tests.contract.world import AGENT, ENVIRONMENT, RESOURCES, world
from tests.harbor.trials import build

LOST = EpisodeId(rollout_id="r1", attempt=1)
NAME = Tries("run").session_name(LOST)
TASK = TaskId(taskset="t", task_id="1")


async def open_agent(client: Client, session: str) -> None:
    seed = AgentSessionRequest(agent_session_id=f"agent-session-{session}", episode_id=LOST, task_id=TASK)
    await client.post(AGENT, "/v1/agent_sessions", seed, AgentSessionResponse)


async def open_resources(client: Client) -> None:
    name = f"resources-session-{NAME}"
    seed = SeedSessionRequest(resources_session_id=name, episode_id=LOST, task_id=TASK)
    await client.post(RESOURCES, "/seed_session", seed, SeedSessionResponse)


async def close_lost(client: Client, environment: ServerRef, **task_data: Any) -> list[str]:
    task = {"task_id": TASK, "task_input": {"responses_create_params": {"input": "go"}, "task_data": task_data}}
    body = RunRequest.model_validate({"episode_id": {"rollout_id": "r1", "attempt": 2}, "task": task})
    headers = Tries("run", [1]).to_headers()
    return (
        await client.post(environment, "/close_lost", body, CloseLostResponse, headers=headers)
    ).body.cleanup_failures


async def test_agent_and_resources_are_closed_and_fenced() -> None:
    async with world("apart") as here:
        await open_agent(here.client, NAME)
        await open_resources(here.client)
        assert await close_lost(here.client, ENVIRONMENT) == await close_lost(here.client, ENVIRONMENT) == []
        assert (here.agent.sessions, here.counter.sessions) == ({}, {})
        for late in (open_agent(here.client, NAME), open_resources(here.client)):
            with pytest.raises(ServerError, match="closed"):
                await late


async def test_the_agent_of_a_task_folder_is_closed(tmp_path: Path) -> None:
    provider = LocalProvider(LocalProviderConfig(isolation="none", allow_unisolated=True, root=tmp_path / "boxes"))
    here = build(NopAgent, provider, tmp_path)
    await open_agent(here.client, f"{NAME}-1")
    assert await close_lost(here.client, ServerRef(type="environment_servers", name="experiment"), **folder()) == []
    assert here.agent.sessions == {}
    await here.stop()
    await provider.aclose()
