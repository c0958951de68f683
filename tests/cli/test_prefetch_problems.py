"""What is wrong with a configuration is told before anything is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import gym


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("sandbox._target_=gym.nope.X", "no module `gym.nope`"),
        ("++agent.responses_api_agents.codex_agent.timeout_seconds=-1", "wants a number greater than 0, got -1"),
        ("++agent.responses_api_agents.codex_agent.mcp_servers.mine.url=notaurl", "mcp_servers.mine.url"),
    ],
)
def test_a_broken_part_is_refused(tmp_path: Path, override: str, told: str) -> None:
    run = gym("env", "prefetch", "+experiment=onboarding", "agent=codex", override, cwd=tmp_path, code=2)
    assert told in run.stderr
    assert "Traceback" not in run.stderr
