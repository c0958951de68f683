"""`gym eval run` of task folders that have tool servers, skills and users for their agent, with real harnesses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gym.harness.agent import HarnessAgent
from responses_api_agents.claude_code_agent.app import ClaudeCodeAgent
from responses_api_agents.mini_swe_agent.app import MiniSweAgent
from tests.cli.commands import gym, here
from tests.harbor.folders import FIXTURES
from tests.harness.bench import needs_runtime
from tests.sandbox.conftest import docker

SCRIPT: dict[str, list[Any]] = {
    "Write the secret word": [{"call": "secret_word"}, "echo marzipan > word"],
    "Sign the file": ["echo 'Yours, the harness' >> letter"],
    "Write your user name": ["id -un > /home/agent/who; echo changed > /root/answer"],
}
ROOT_ONLY = "agent.user  mini_swe_agent cannot work as a user that the task names; choose another agent"
MODEL = ("--model-provider", "embedded", "policy_script=script.jsonl")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A working directory with the fixtures as the folder `tasks`; the image of one of them has a user of its own."""
    for name in ("mcp-http", "mcp-stdio", "skills", "users"):
        shutil.copytree(FIXTURES / name, tmp_path / "tasks" / name)
    with tmp_path.joinpath("tasks/skills/environment/Dockerfile").open("a") as image:
        image.write("RUN chown -R agent /srv/project\nUSER agent\n")
    lines = [{"task": match, "match": match, "turns": _turns(steps)} for match, steps in SCRIPT.items()]
    tmp_path.joinpath("script.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path


@pytest.mark.parametrize("harness", [ClaudeCodeAgent, MiniSweAgent], ids=lambda harness: harness.harness)
def test_what_tasks_have_for_their_agent(harness: type[HarnessAgent[Any]], project: Path) -> None:
    needs_runtime(harness)
    docker(project)
    command = ("eval", "run", "tasks", "--agent", harness.harness, *MODEL, "--output", "out")
    if not harness.task_users:
        assert ROOT_ONLY in here(*command, cwd=project, code=2).stderr
        shutil.rmtree(project / "tasks/users")
    gym(*command, cwd=project)
    rows = [json.loads(line) for line in project.joinpath("out/rollouts.jsonl").read_text().splitlines()]
    assert {row["task_id"]: row["reward"] for row in rows} == {
        path.name: 1.0 for path in project.joinpath("tasks").iterdir()
    }
    results = {row["task_id"]: _results(row)[0] for row in rows}
    assert "marzipan" in results["mcp-stdio"]
    assert "marzipan" in results["mcp-http"]


def _turns(steps: list[Any]) -> list[list[dict[str, Any]]]:
    calls = [
        {"call": "shell", "arguments": {"command": step}} if isinstance(step, str) else {**step, "arguments": {}}
        for step in steps
    ]
    return [*([call] for call in calls), [{"say": "Done."}]]


def _results(row: dict[str, Any]) -> list[str]:
    return [str(item["output"]) for item in row["response"]["output"] if item["type"] == "function_call_output"]
