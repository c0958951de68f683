"""Real harnesses on task folders, with a scripted model."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gym.harness.agent import HarnessAgent
from gym.harness.placing import mount
from gym.sandbox.interface import Common, SandboxProvider
from responses_api_agents.codex_agent.app import CodexAgent
from responses_api_agents.pi_agent.app import PiAgent
from tests.harbor.folders import FIXTURES
from tests.harbor.trials import build
from tests.harness.bench import MODEL, needs_runtime
from tests.harness.dialects import Turn
from tests.harness.fake_model import FakeModel, mcp, shell
from tests.sandbox.conftest import docker

ASKS = """
page=$(python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:8123/page").read().decode())')
steps=$(python3 -c 'import json; print(len(json.load(open("/logs/agent/trajectory.json"))["steps"]))')
reward=0
[ "$page" = agent ] && [ "$(cat word)" = marzipan ] && [ "$steps" = 5 ] && reward=1
echo $reward > /logs/verifier/reward.txt
"""
SERVE = "id -un | tr -d '\\n' > page; setsid python3 -m http.server 8123 >/dev/null 2>&1 </dev/null &"


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """Containers."""
    made = docker(tmp_path)
    yield made
    await made.aclose()


async def played(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider, run: Path, task: Path, turns: list[Turn]
) -> dict[str, Any]:
    """The row of an episode in which the model plays `turns`."""
    provider.common = Common(mounts=(mount(needs_runtime(harness)),))
    with FakeModel(turns) as model:
        world = build(harness, provider, run, remote={"policy_model": model.url}, settings={"model_server": MODEL})
        try:
            result = await world.result(task)
        finally:
            await world.stop()
        return result.model_dump()


@pytest.mark.parametrize("harness", [CodexAgent, PiAgent], ids=lambda harness: harness.harness)
async def test_users_tools_and_services(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider, tmp_path: Path
) -> None:
    """The agent is a user of the task, calls a tool of the task, and leaves a server running that the verifier asks."""
    task = shutil.copytree(FIXTURES / "mcp-http", tmp_path / "task")
    task.joinpath("tests/test.sh").write_text(ASKS)
    toml = task.joinpath("task.toml").read_text()
    task.joinpath("task.toml").write_text(
        toml.replace("[environment]", '[agent]\nuser = "agent"\n[environment]\nworkdir = "/home/agent"', 1)
    )
    turns: list[Turn] = [[mcp("secret_word")], [shell("echo marzipan > word")], [shell(SERVE)]]
    row = await played(harness, provider, tmp_path, task, turns)
    assert (row["reward"], row["verifier_notes"]) == (1.0, ["the agent left running: python3"])
    assert "marzipan" in str(row["response"]["output"][1])
    assert row["ng_agent_observations"]["counters"]["tool_calls"] == 3
