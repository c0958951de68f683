"""`gym list`: options, their descriptions, their settings, and which go together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import gym, here

KINDS = ("agents", "benchmarks", "models", "environments", "sandboxes", "experiments")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a benchmark that takes only one harness, and one that does not compose."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in {
        "benchmarks/picky/benchmark.yaml": """
# Not this line: the README says it better.
config_paths:
  - resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
benchmark:
  _inherit_from: example_session_state_mgmt_resources_server
  resources_servers: {example_session_state_mgmt: {allowed_agents: [codex_agent]}}
""",
        "benchmarks/picky/other.yaml": "# @package _global_\n# The same,\n# with another rule. And more.\nx: 1\n",
        "benchmarks/picky/README.md": "# Picky\n\n![picture](p.png)\n\nTakes one harness\nonly, e.g.\ncodex. More.\n",
        "benchmarks/broken/benchmark.yaml": "benchmark: {_inherit_from: nothing_of_this_name}\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_listed_with_description_and_path(kind, tmp_path) -> None:
    found = {item["name"]: item for item in json.loads(here("list", kind, "--json", cwd=tmp_path).stdout)}
    expected = {"models": "embedded", "sandboxes": "local"}.get(kind, "onboarding")
    assert found[expected]["description"].endswith(".")
    assert found[expected]["path"].endswith(".yaml")
    table = here("list", kind, cwd=tmp_path).stdout
    assert all(name in table for name in found)


def test_descriptions_come_from_the_readme_or_the_first_comment(folder) -> None:
    found = {
        item["name"]: item["description"]
        for item in json.loads(here("list", "benchmarks", "--json", cwd=folder).stdout)
    }
    assert found["picky"] == "Takes one harness only, e.g. codex."
    assert found["picky/other"] == "The same, with another rule."
    assert found["broken"] == ""


def test_one_option_in_detail(folder) -> None:
    told = json.loads(here("list", "benchmarks", "picky", "--json", cwd=folder).stdout)
    assert told == {
        "name": "picky",
        "description": "Takes one harness only, e.g. codex.",
        "choose_with": "benchmark=picky",
        "file": "benchmarks/picky/benchmark.yaml",
        "readme": "benchmarks/picky/README.md",
        "profiles": ["picky/other"],
    }
    assert "choose with  +experiment=onboarding" in here("list", "experiments", "onboarding", cwd=folder).stdout


@pytest.mark.parametrize(
    ("arguments", "implementation", "setting"),
    [
        ("agents simple", "simple_agent", "max_steps"),
        ("benchmarks onboarding", "workspace_tasks", "verifier_timeout_seconds"),
        ("benchmarks example_session_state_mgmt", "example_session_state_mgmt", "allowed_agents"),
        ("models openai", "openai_model", "openai_api_key"),
        ("environments single_agent_turn", "single_agent_turn", "queue_timeout_seconds"),
        ("sandboxes local", "sandbox", "allow_unisolated"),
    ],
)
def test_fields_are_those_of_the_schema(arguments, implementation, setting, tmp_path) -> None:
    told = json.loads(here("list", *arguments.split(), "--fields", "--json", cwd=tmp_path).stdout)
    field = next(item for item in told[implementation] if item["name"] == setting)
    assert field["type"]
    assert field["description"]
    assert field["secret"] == setting.endswith("key")


def test_the_table_of_fields(tmp_path) -> None:
    text = gym("list", "agents", "simple", "--fields", cwd=tmp_path).stdout
    header, *rows = text.splitlines()[1:]
    assert header.split() == ["setting", "type", "default", "marks", "description"]
    (row,) = (row for row in rows if row.startswith("max_steps "))
    assert " 50 " in row


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("agents simpel", "no agent `simpel`; closest: `simple`; available: "),
        ("agents simpel --fields", "no agent `simpel`; closest: `simple`; available: "),
        ("experiments onboarding --fields", "an experiment has no settings of its own"),
    ],
)
def test_what_is_not_there_is_told(arguments, message, tmp_path) -> None:
    assert message in here("list", *arguments.split(), cwd=tmp_path, code=2).stderr


def test_pairings(folder) -> None:
    found = json.loads(gym("list", "pairings", "--json", cwd=folder).stdout)
    verdicts = {(item["agent"], item["benchmark"]): (item["verdict"], item["reason"]) for item in found}
    assert verdicts["simple", "onboarding"] == ("ok", "")
    assert verdicts["simple", "picky"][0] == "refused"
    assert "does not declare simple_agent in its allowed_agents" in verdicts["simple", "picky"][1]
    assert verdicts["simple", "broken"][0] == "?"
    assert "no template `nothing_of_this_name`" in verdicts["simple", "broken"][1]


def test_wrong_overrides_of_pairings_are_told_once(tmp_path) -> None:
    run = gym("list", "pairings", "sandbox=lcal", cwd=tmp_path, code=2)
    assert "no sandbox `lcal`; closest: `local`" in run.stderr
    assert run.stderr.count("\n") == 1
