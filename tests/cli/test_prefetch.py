"""`gym env prefetch`: what a configuration needs, and the virtual environment for what is not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import gym
from tests.launch.wheels import make_wheel

CONFIG = """
config_paths:
  - responses_api_agents/simple_agent/configs/simple_agent.yaml
odd:
  resources_servers:
    odd: {_target_: resources_servers.odd.app.Odd}
"""
REQUIREMENTS = """
# What the verifier needs.
--no-index
--find-links wheels
pydantic>=2  # is here
gym-test-thing>=1.2
only-there; python_version < "3"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    implementation = tmp_path / "resources_servers" / "odd"
    implementation.mkdir(parents=True)
    (implementation / "app.py").write_text("import no_such_distribution_of_ours\n")
    (implementation / "requirements.txt").write_text(REQUIREMENTS)
    (tmp_path / "run.yaml").write_text(CONFIG)
    return tmp_path


def told(folder: Path, code: int) -> dict[str, list[dict[str, str]]]:
    env = {"GYM_CACHE": str(folder / "cache")}
    run = gym("env", "prefetch", "--config", "run.yaml", "--json", cwd=folder, code=code, env=env)
    return {key: rows for key, rows in json.loads(run.stdout).items() if isinstance(rows, list)}


def test_what_cannot_be_installed_is_missing_and_told_in_the_installers_words(folder) -> None:
    said = told(folder, 1)
    assert [(item["need"], item["state"]) for item in said["needs"]] == [
        ("pydantic>=2", "ok"),
        ("gym-test-thing>=1.2", "missing"),
    ]
    (environment,) = said["environments"]
    assert (environment["part"], environment["state"]) == ("odd", "failed")
    assert "gym-test-thing" in environment["detail"]


def test_an_environment_is_built_once_though_the_implementation_cannot_be_imported(folder) -> None:
    # The first of its requirements is here already, and is taken from here.
    (folder / "resources_servers" / "odd" / "requirements.txt").write_text(REQUIREMENTS.replace("pydantic>=2  #", "#"))
    make_wheel(folder / "resources_servers" / "odd" / "wheels", "gym_test_thing", "1.3")
    first, second = told(folder, 0), told(folder, 0)
    assert [item["state"] for item in first["needs"]] == ["apart"]
    assert [item["state"] for item in first["environments"] + second["environments"]] == ["built", "here"]
    (environment,) = first["environments"]
    assert Path(environment["detail"]).is_relative_to(folder / "cache" / "environments")


def test_where_nothing_is_needed_it_says_so(tmp_path) -> None:
    run = gym("env", "prefetch", "+experiment=onboarding", cwd=tmp_path, code=None)
    assert "has a requirements.txt or a runtime; there is nothing to install" in run.stdout
    assert "sandbox" in run.stdout
