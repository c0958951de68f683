"""`gym env prefetch`: what is missing, and the command that installs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import gym

CONFIG = """
config_paths:
  - responses_api_agents/simple_agent/configs/simple_agent.yaml
odd:
  resources_servers:
    odd: {_target_: resources_servers.odd.app.Odd}
"""
REQUIREMENTS = """
# What the verifier needs.
pydantic>=2  # is here
pydantic>=99
no-such-distribution-of-ours[fast]>=1.2
only-there; python_version < "3"
-r more.txt
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    implementation = tmp_path / "resources_servers" / "odd"
    implementation.mkdir(parents=True)
    (implementation / "app.py").write_text("import no_such_distribution_of_ours\n")
    (implementation / "requirements.txt").write_text(REQUIREMENTS)
    (tmp_path / "run.yaml").write_text(CONFIG)
    return tmp_path


def test_what_is_missing_is_named_with_the_command_though_the_implementation_cannot_be_imported(folder) -> None:
    run = gym("env", "prefetch", "--config", "run.yaml", "--json", cwd=folder, code=1)
    told = json.loads(run.stdout)
    assert [(item["need"], item["state"]) for item in told["needs"]] == [
        ("pydantic>=2", "ok"),
        ("pydantic>=99", "missing"),
        ("no-such-distribution-of-ours[fast]>=1.2", "missing"),
        ("-r more.txt", "unchecked"),
    ]
    (command,) = told["install"]
    assert command.endswith(f"-m pip install -r {folder / 'resources_servers/odd/requirements.txt'}")
    assert f"install with: {command}" in gym("env", "prefetch", "--config", "run.yaml", cwd=folder, code=1).stdout


def test_where_nothing_is_needed_it_says_so(tmp_path) -> None:
    run = gym("env", "prefetch", "+experiment=onboarding", cwd=tmp_path, code=None)
    assert "has a requirements.txt; there is nothing to install" in run.stdout
    assert "sandbox" in run.stdout
