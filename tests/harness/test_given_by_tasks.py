"""What a task has for its agent in the sandbox: tool servers that are commands, and skills; with the real programs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gym.failures import EpisodeFailure
from gym.harness.agent import HarnessAgent
from gym.sandbox.interface import SandboxProvider
from responses_api_agents.claude_code_agent.app import ClaudeCodeAgent
from responses_api_agents.codex_agent.app import CodexAgent
from responses_api_agents.mini_swe_agent.app import MiniSweAgent
from responses_api_agents.opencode_agent.app import OpenCodeAgent
from responses_api_agents.pi_agent.app import PiAgent
from tests.harness.bench import Bench, on_the_bench
from tests.harness.fake_model import FakeModel, mcp
from tests.sandbox.conftest import docker

HARNESSES: list[type[HarnessAgent[Any]]] = [ClaudeCodeAgent, CodexAgent, MiniSweAgent, OpenCodeAgent, PiAgent]
every_harness = pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.harness)

COUNTER = """
import json, os, sys
calls = 0
open("/tmp/pids", "a").write(f"{os.getpid()}\\n")
print("a line that is no message", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, result = message["method"], {}
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "counter", "version": "1"}
    if method == "tools/list":
        result = {"tools": [{"name": "count", "description": "Counts.", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        calls += 1
        said = [f"call {calls}", os.environ.get("OF_THE_TASK"), *sys.argv[1:]]
        result = {"content": [{"type": "text", "text": json.dumps(said)}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
SKILL = "---\nname: signing\ndescription: How letters are signed.\n---\n\nAppend a line to the letter.\n"
ARGUMENT = "$HOME ~/x {env:HOME}"


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """Containers."""
    made = docker(tmp_path)
    yield made
    await made.aclose()


def command(name: str, *words: str, required: bool = True) -> dict[str, Any]:
    """A grant of an MCP server that is a command."""
    connection = {"transport": "stdio", "command": words[0], "args": list(words[1:])}
    return {"kind": "mcp", "name": name, "required": required, "connection": connection}


@every_harness
async def test_tool_servers_that_are_commands_and_skills(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider
) -> None:
    """A server is started once, has the sandbox's environment and its words as they are, and is gone at the end."""
    turns = [[mcp("count")], [mcp("count")]]
    with FakeModel(turns) as model:
        async with on_the_bench(harness, model, provider, env={"OF_THE_TASK": "a $VALUE"}) as bench:
            await give_skill(bench)
            await bench.sandbox.upload(COUNTER.encode(), "/opt/counter.py")
            lost = command("lost", "no-such-program", required=False)
            await bench.seed(tool_accesses=[command("task.tools", "python3", "/opt/counter.py", ARGUMENT), lost])
            response = await bench.activate()
            await bench.close()
            left = await bench.sandbox.exec("for pid in $(cat /tmp/pids); do ls -d /proc/$pid; done; ls -A / /tmp")
    results = [str(item["output"]) for item in response.output if item["type"] == "function_call_output"]
    for number, result in enumerate(results[:2], 1):
        said = [f"call {number}", "a $VALUE", ARGUMENT]
        assert json.dumps(said) in result.replace('\\"', '"'), result
    assert "/proc/" not in left.stdout_text
    assert ".gym-" not in left.stdout_text
    asked = json.dumps(model.model_requests[0])
    assert "signing" in asked
    assert "How letters are signed." in asked


@every_harness
async def test_a_required_command_that_fails_fails_the_episode(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider
) -> None:
    with FakeModel() as model:
        async with on_the_bench(harness, model, provider) as bench:

            async def episode() -> None:
                await bench.seed(tool_accesses=[command("broken", "sh", "-c", "echo it broke >&2; exit 3")])
                await bench.activate()

            with pytest.raises(EpisodeFailure) as failed:
                await episode()
            assert not model.model_requests
    assert failed.value.kind == "tool_server_error", failed.value.message


async def give_skill(bench: Bench) -> None:
    """A skill where those of the sandbox's user are."""
    home = (await bench.sandbox.exec('printf %s "$HOME"')).stdout_text
    await bench.sandbox.upload(SKILL.encode(), f"{home}/.agents/skills/signing/SKILL.md")
