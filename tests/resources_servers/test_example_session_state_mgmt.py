"""The counter: state of its own for each session, and a reward from the server's side."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gym.apis.responses import Item, function_call, message
from gym.servers.base import ServerContext
from gym.servers.contract import RunResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, tool_schema
from resources_servers.example_session_state_mgmt.app import CounterTask, ExampleSessionStateMgmt
from resources_servers.workspace_tasks.settings import WorkspaceTask
from tests.environment_servers.wiring import World, build, turn


def counter(context: ServerContext) -> ResourcesServer[Any, Any]:
    return ExampleSessionStateMgmt(ResourcesServerConfig(), context)


def task(initial: int, expected: int) -> dict[str, Any]:
    return {"initial_count": initial, "expected_count": expected}


def add(count: Any, call_id: str = "c1") -> Item:
    return function_call("increment_counter", {"count": count}, call_id)


READ = function_call("get_counter_value", {}, "c9")


def reward_of(episode: RunResponse) -> float | None:
    assert episode.result is not None, episode.failure
    return episode.result.reward


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        ([turn(add(4)), turn(add(5))], 1.0),
        ([turn(add(4, "a"), add(5, "b"))], 1.0),
        ([turn(add(10)), turn(add(-1)), turn(READ)], 1.0),
        ([turn(add("9"))], 1.0),
        ([turn(add(4))], 0.0),
        ([turn(message("assistant", "The counter shows 12."))], 0.0),
        ([turn(add("nine"))], 0.0),
        ([turn(add(4.5)), turn(add(4.5))], 0.0),
    ],
)
async def test_the_counter_decides_and_not_the_words(turns: list[dict[str, Any]], reward: float) -> None:
    assert reward_of(await build(counter, turns).run(task(3, 12))) == reward


async def test_sessions_do_not_share_a_counter() -> None:
    world: World = build(counter, [turn(add(2)), turn(add(3)), turn(READ)])
    episodes = await asyncio.gather(*(world.run(task(start, start + 5)) for start in range(100)))
    assert {reward_of(episode) for episode in episodes} == {1.0}
    assert not world.resources.sessions


@pytest.mark.parametrize("data", [{}, {"initial_count": 1}, {"initial_count": "many", "expected_count": 2}])
async def test_a_task_without_its_numbers_is_malformed(data: dict[str, Any]) -> None:
    episode = await build(counter, []).run(data)
    assert episode.failure is not None
    assert episode.failure.failure_kind == "malformed_task"
    assert "expected_count" in episode.failure.failure_reason or "initial_count" in episode.failure.failure_reason


def rows(server: str) -> list[dict[str, Any]]:
    path = Path(__file__).parents[2] / "resources_servers" / server / "data/example.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_example_rows_fit_their_servers() -> None:
    assert [CounterTask.model_validate(row) for row in rows("example_session_state_mgmt")]
    assert [WorkspaceTask.model_validate(row) for row in rows("workspace_tasks")]


def test_the_tools_that_example_rows_name_are_those_of_the_server() -> None:
    schemas = {name: tool_schema(function) for name, function in ExampleSessionStateMgmt.tools().items()}
    named = [
        tool for row in rows("example_session_state_mgmt") for tool in row["responses_create_params"].get("tools", [])
    ]
    assert named
    for tool in named:
        ours = schemas[tool["name"]]
        assert tool["description"] == ours["description"]
        assert tool["parameters"]["properties"] == ours["parameters"]["properties"]
