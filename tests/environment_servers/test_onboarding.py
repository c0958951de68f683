"""The onboarding tasks prove themselves: unsolved before, solved by their scripts, and one script really fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gym.apis.responses import function_call
from gym.responses_api_models.embedded_model.app import EmbeddedModel, EmbeddedModelConfig
from gym.sandbox.providers.local.provider import LocalProvider
from gym.sandbox.providers.local.settings import LocalProviderConfig
from gym.servers.base import ServerContext
from gym.servers.contract import RunResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig
from resources_servers.example_session_state_mgmt.app import ExampleSessionStateMgmt
from resources_servers.workspace_tasks.app import WorkspaceTasks, WorkspaceTasksConfig
from tests.environment_servers.wiring import World, build, turn

FOLDER = Path(__file__).parents[2] / "experiments/onboarding"
SCRIPT = FOLDER / "policy.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


WORKSPACE = {row["task_id"]: row for row in rows(FOLDER / "data/workspace.jsonl")}
COUNTER = {row["task_id"]: row for row in rows(FOLDER / "data/counter.jsonl")}
PLAYED = {line["task"]: line for line in rows(SCRIPT)}
WRONG = "count-words"
COUNTS_WORDS = """
python3 - <<'END'
import collections, re
words = collections.Counter(re.findall("[a-z]+(?:'[a-z]+)*", open("speech.txt").read().lower()))
lines = [f"{word} {number}\\n" for word, number in sorted(words.items(), key=lambda entry: (-entry[1], entry[0]))]
open("counts.txt", "w").writelines(lines)
END
"""


def counter(context: ServerContext) -> ResourcesServer[Any, Any]:
    return ExampleSessionStateMgmt(ResourcesServerConfig(), context)


def workspace(context: ServerContext) -> ResourcesServer[Any, Any]:
    return WorkspaceTasks(WorkspaceTasksConfig(), context)


def embedded(context: ServerContext) -> EmbeddedModel:
    return EmbeddedModel(EmbeddedModelConfig(script=str(SCRIPT)), context)


@pytest.fixture(params=["auto", "none"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[..., World]]:
    """Workspace servers over local sandboxes, isolated where this machine can, and plain."""
    config = LocalProviderConfig(isolation=request.param, allow_unisolated=True, root=tmp_path)
    provider = LocalProvider(config)
    yield lambda policy: build(workspace, policy, provider=provider)
    await provider.aclose()


async def play(world: World, row: dict[str, Any]) -> RunResponse:
    """An episode of a row, with its own prompt."""
    data = {key: value for key, value in row.items() if key != "responses_create_params"}
    params = dict(row["responses_create_params"])
    await world.model.start()
    return await world.run(data, task_id=row["task_id"], text=params.pop("input"), **params)


def reward_of(episode: RunResponse) -> float:
    assert episode.result is not None, episode.failure
    assert episode.result.reward is not None
    return episode.result.reward


@pytest.mark.parametrize("task_id", WORKSPACE)
async def test_nobody_is_paid_for_nothing(world: Callable[..., World], task_id: str) -> None:
    assert reward_of(await play(world([]), WORKSPACE[task_id])) == 0.0


@pytest.mark.parametrize("task_id", WORKSPACE)
async def test_the_script_solves_the_task_unless_it_is_the_wrong_one(world: Callable[..., World], task_id: str) -> None:
    assert reward_of(await play(world(embedded), WORKSPACE[task_id])) == float(task_id != WRONG)


async def test_the_task_that_the_script_gets_wrong_can_be_solved(world: Callable[..., World]) -> None:
    solved = [turn(function_call("shell", {"command": COUNTS_WORDS}))]
    assert reward_of(await play(world(solved), WORKSPACE[WRONG])) == 1.0


@pytest.mark.parametrize("task_id", COUNTER)
async def test_the_script_works_the_counter(task_id: str) -> None:
    assert reward_of(await play(build(counter, embedded), COUNTER[task_id])) == 1.0
    assert reward_of(await play(build(counter, []), COUNTER[task_id])) == 0.0


def test_every_task_has_one_line_of_the_script_and_one_only() -> None:
    prompts = {
        task_id: row["responses_create_params"]["input"][0]["content"] for task_id, row in (WORKSPACE | COUNTER).items()
    }
    matches = {
        task_id: [line["task"] for line in PLAYED.values() if line["match"] in text]
        for task_id, text in prompts.items()
    }
    assert matches == {task_id: [task_id] for task_id in prompts}
    assert set(PLAYED) == set(prompts)
    assert (len(WORKSPACE), len(COUNTER)) == (8, 4)
