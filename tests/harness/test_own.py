"""What a configuration may not take out of Gym's hands, in each harness that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gym.errors import UserError
from gym.harness.agent import HarnessAgent
from gym.harness.bundles import Bundle
from gym.harness.own import owned, refused_arguments, refused_settings
from responses_api_agents.claude_code_agent.app import ClaudeCodeAgent
from responses_api_agents.codex_agent.app import CodexAgent
from responses_api_agents.mini_swe_agent.app import MiniSweAgent
from responses_api_agents.opencode_agent.app import OpenCodeAgent
from responses_api_agents.pi_agent.app import PiAgent
from tests.harness.turns import adapter, turn

URL = {"url": "http://host:1/mcp"}
OWN = owned("--json -C", model_name="-m --model", extra_config="-c")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--model=x"], "`--model` is not for you to set; use `model_name` of the agent"),
        (["-mx"], "`-m` is not for you to set; use `model_name`"),
        (["x", "-c", "mcp_servers={}"], "`-c` is not for you to set; use `extra_config`"),
        (["--json"], "Gym decides it"),
        (["--"], "`--` is not"),
        (["--help"], "`--help` is not"),
        (["--deny", "bash,mcp__tools__f"], "names tools of the task"),
        (["--modelx", "--cd", "-x", "plain", "-"], None),
    ],
)
def test_arguments(given: list[str], told: str | None) -> None:
    found = list(refused_arguments(given, OWN))
    assert (told is None) == (not found)
    assert told is None or told in found[0]
    assert not list(refused_arguments(given, {}))


def test_settings_on_any_level() -> None:
    own = {"a": "x", "b.c": ""}
    assert len(list(refused_settings("f", {"a": None, "b": {"c": 1}}, own))) == 2
    assert not list(refused_settings("f", {"b": 3, "c": 1, "d": {"a": 1}}, own))


@pytest.mark.parametrize(
    ("harness", "settings", "told"),
    [
        (CodexAgent, {"extra_config": {"mcp_servers": {"foo": URL}}}, "`mcp_servers` is not for you to set; use"),
        (CodexAgent, {"extra_config": {"model_providers": {}}}, "`model_providers` is not"),
        (CodexAgent, {"extra_config": {"features": True}}, "`features` has to be a mapping"),
        (CodexAgent, {"extra_args": ["-cmcp_servers={}"]}, "use `extra_config`"),
        (CodexAgent, {"extra_args": ["--ignore-user-config"]}, "`--ignore-user-config` is not"),
        (PiAgent, {"extra_args": ["--no-mcp"]}, "`--no-mcp` is not"),
        (PiAgent, {"extra_args": ["-nt"]}, "use `enable_tools`"),
        (PiAgent, {"node_version": "../../x"}, "node_version"),
        (ClaudeCodeAgent, {"extra_args": ["--strict-mcp-config"]}, "use `mcp_servers`"),
        (ClaudeCodeAgent, {"extra_settings": {"env": {"ANTHROPIC_MODEL": "x"}}}, "use `model_name`"),
        (ClaudeCodeAgent, {"claude_code_version": "latest"}, "claude_code_version"),
        (OpenCodeAgent, {"opencode_config": {"provider": 3}}, "`provider` has to be a mapping"),
        (OpenCodeAgent, {"extra_args": ["-mx/y"]}, "use `model_name`"),
        (MiniSweAgent, {"request_settings": {"tools": []}}, "`tools` is not"),
        (MiniSweAgent, {"extra_config": {"model": {"model_name": "x"}}}, "use `model_name`"),
    ],
)
def test_what_is_refused_before_anything_starts(
    harness: type[HarnessAgent[Any]], settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        adapter(harness, **settings)


@pytest.mark.parametrize("harness", [ClaudeCodeAgent, CodexAgent, OpenCodeAgent, PiAgent], ids=lambda one: one.harness)
def test_every_argument_that_gym_gives_is_its_own(harness: type[HarnessAgent[Any]]) -> None:
    agent = adapter(harness, system_prompt="x")
    argv = agent.invocation(turn(system_prompt="x")).argv
    options = [word for word in argv if word[:1] == "-" and word not in ("-", "-c")]
    assert len(options) > 2
    assert set(options) <= set(agent.config.own_arguments)


async def test_what_only_the_runtime_can_tell_is_told_before_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "python/lib/python3/site-packages/minisweagent/config"
    (folder / "benchmarks").mkdir(parents=True)
    for name in ("mini.yaml", "benchmarks/swebench.yaml"):
        (folder / name).touch()
    agent = adapter(MiniSweAgent, base_config="nope.yaml")
    bundle = Bundle(agent.runtime(agent.config), tmp_path, 0, 0, {})
    with pytest.raises(UserError, match=r"use one of benchmarks/swebench.yaml, mini.yaml"):
        agent.check_runtime(bundle)
    adapter(MiniSweAgent, base_config="benchmarks/swebench.yaml").check_runtime(bundle)


async def test_two_servers_of_one_name_are_told_before_the_run() -> None:
    agent = adapter(PiAgent, mcp_servers={"a-b": URL, "a_b": URL})
    with pytest.raises(UserError, match=r"`a-b` of .* and `a_b` of `mcp_servers` are both `a_b`.*one of them"):
        await agent.start()
