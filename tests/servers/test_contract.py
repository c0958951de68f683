"""Messages survive the wire, though unset fields are left out."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gym.servers.contract import (
    AgentSessionRequest,
    DirectHttpGrant,
    EpisodeId,
    McpConnection,
    McpGrant,
    RunRequest,
    SandboxAccess,
    SandboxConnection,
    Task,
    TaskId,
    TaskInput,
    VerifyResponse,
)

EPISODE = EpisodeId(rollout_id="12-0", attempt=1)
TASK = TaskId(taskset="t", task_id="1")
PARAMS: dict[str, Any] = {"input": "go"}


@pytest.mark.parametrize(
    "sent",
    [
        AgentSessionRequest(
            agent_session_id="a",
            episode_id=EPISODE,
            task_id=TASK,
            tool_accesses=[
                DirectHttpGrant(name="tools", base_url="http://127.0.0.1:1/x"),
                McpGrant(name="more", connection=McpConnection(url="http://127.0.0.1:1/mcp")),
            ],
            sandbox_access=SandboxAccess(
                connection=SandboxConnection(provider_config_ref="sandbox", descriptor={"id": 1}), workdir="/app"
            ),
        ),
        RunRequest(
            episode_id=EPISODE,
            task=Task(
                task_id=TASK,
                task_input=TaskInput.model_validate({"responses_create_params": PARAMS, "base_commit": "c", "n": None}),
            ),
        ),
        VerifyResponse.model_validate({"reward": 0.5, "extra": [1]}),
    ],
    ids=lambda sent: type(sent).__name__,
)
def test_a_message_survives_the_wire(sent: BaseModel) -> None:
    got = type(sent).model_validate_json(sent.model_dump_json(exclude_unset=True))
    assert got.model_dump() == sent.model_dump()


@pytest.mark.parametrize(
    ("given", "task_data"),
    [
        ({}, {}),
        ({"a": 1}, {"a": 1}),
        ({"task_data": {"a": 1}}, {"a": 1}),
        ({"task_data": {"a": 1}, "b": 2}, {"a": 1, "b": 2}),
        ({"task_data": {"a": 1}, "a": 1}, {"a": 1}),
    ],
)
def test_flat_fields_of_a_task_are_folded(given: dict[str, Any], task_data: dict[str, Any]) -> None:
    task = TaskInput.model_validate({"responses_create_params": PARAMS, **given})
    assert task.task_data == task_data
    assert task.model_extra == {}


@pytest.mark.parametrize(
    ("model", "given", "problem"),
    [
        (
            TaskInput,
            {"responses_create_params": PARAMS, "task_data": {"a": 1}, "a": 2},
            "`a` stands both in task_input and in task_data, with different values",
        ),
        (
            TaskInput,
            {"responses_create_params": PARAMS, "response": {}},
            "a field of a task cannot be named `response`: rename it",
        ),
        (
            TaskInput,
            {"responses_create_params": PARAMS, "task_data": {"responses_create_params": 1}},
            "a field of a task cannot be named `responses_create_params`: rename it",
        ),
        (VerifyResponse, {"reward": float("nan")}, "finite"),
        (EpisodeId, {"rollout_id": "../x"}, "pattern"),
        (EpisodeId, {"rollout_id": "7-a1"}, "that is how later tries are named"),
        (AgentSessionRequest, {"agent_session_id": "\u00e9"}, "agent_session_id"),
        (EpisodeId, {"rollout_id": "x", "attempt": -1}, "greater than or equal to 0"),
        (
            AgentSessionRequest,
            {
                "agent_session_id": "a",
                "episode_id": {"rollout_id": "r"},
                "task_id": {"taskset": "t", "task_id": "1"},
                "tool_accesses": [{"kind": "direct_http", "name": "x", "base_url": "u"}] * 2,
            },
            "tool_accesses have a name twice",
        ),
    ],
)
def test_wrong_messages_are_refused(model: type[BaseModel], given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        model.model_validate(given)


@pytest.mark.parametrize(("attempt", "key"), [(0, "12-0"), (2, "12-0-a2")])
def test_an_episode_has_a_key(attempt: int, key: str) -> None:
    assert EpisodeId(rollout_id="12-0", attempt=attempt).key == key
