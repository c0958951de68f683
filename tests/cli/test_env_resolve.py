"""`gym env resolve`: the configuration as it will be used, and who said so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import base_project, gym, here

SECOND = """
policy_api_key: second-key-0123456789
agent: {responses_api_agents: {simple_agent: {max_steps: 9}}}
"""
STEPS = "agent.responses_api_agents.simple_agent.max_steps"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = base_project(tmp_path_factory.mktemp("project"))
    (folder / "second.yaml").write_text(SECOND)
    return folder


def explained(folder: Path, key: str, *more: str) -> Any:
    run = here("env", "resolve", "--config", "base.yaml", "--json", "--explain", key, *more, cwd=folder)
    return json.loads(run.stdout)


def test_the_configuration_is_printed_without_secrets_and_with_the_templates_named(folder) -> None:
    text = gym("env", "resolve", "--config", "base.yaml", "--config", "second.yaml", cwd=folder).stdout
    assert "key-0123456789" not in text
    last = text.splitlines()[-1]
    assert last.startswith("# templates, not started: simple_agent, single_agent_turn, example_session_state_mgmt")
    shown = yaml.safe_load(text)
    assert shown["policy_api_key"] == "***"
    assert shown["agent"]["responses_api_agents"]["simple_agent"] == {
        "_target_": "responses_api_agents.simple_agent.app.SimpleAgent",
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "max_steps": 9,
    }
    assert "simple_agent" not in shown


def test_what_it_prints_composes_to_itself(folder) -> None:
    text = here("env", "resolve", "--config", "base.yaml", "--model-api-key", "none", cwd=folder).stdout
    (folder / "again.yaml").write_text(text)
    again = here("env", "resolve", "--config", "again.yaml", cwd=folder).stdout
    assert yaml.safe_load(again) == yaml.safe_load(text)


def test_json_and_flags_with_awkward_values(folder) -> None:
    name = "a b,c='d' \"e\" ${x} \\ [f]=~+"
    run = here("env", "resolve", "--config", "base.yaml", "--model", name, "--json", cwd=folder)
    assert json.loads(run.stdout)["configuration"]["policy_model_name"] == name


def test_explain_names_every_setter_in_order_and_the_winner(folder) -> None:
    override = f"++{STEPS}=11"
    command = ("env", "resolve", "--config", "base.yaml", "--config", "second.yaml", override)
    template = "responses_api_agents/simple_agent/configs/simple_agent.yaml:8"
    width = len(f"command line: {override}")
    assert here(*command, "--explain", STEPS, cwd=folder).stdout.splitlines() == [
        f"{STEPS} = 11",
        f"  {template:{width}}  50   (inherited from simple_agent)",
        f"  {'base.yaml:12':{width}}  7",
        f"  {'second.yaml:3':{width}}  9",
        f"* command line: {override}  11",
    ]


def test_explain_never_shows_a_secret_not_even_one_that_lost(folder) -> None:
    run = here(
        "env", "resolve", "--config", "base.yaml", "--config", "second.yaml",
        "policy_api_key=third-key-0123456789", "--explain", "policy_api_key", cwd=folder,
    )  # fmt: skip
    assert "key-0123456789" not in run.stdout + run.stderr
    assert run.stdout.count("***") >= 4


def test_explain_of_a_reference_shows_the_reference_and_what_it_came_to(folder) -> None:
    (item,) = explained(folder, "policy_model.responses_api_models.vllm_model.base_url")
    assert item["value"] == "http://127.0.0.1:9/v1"
    assert [setter["value"] for setter in item["set_by"]] == ["${policy_base_url}"]


def test_explain_of_a_list_shows_the_whole_list_and_the_file_that_won(folder) -> None:
    (item,) = explained(folder, "tasks.resources_servers.example_session_state_mgmt.datasets")
    assert [entry["name"] for entry in item["value"]] == ["counter"]
    assert [(setter["where"].partition(":")[0], setter["wins"]) for setter in item["set_by"]] == [
        ("resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml", False),
        ("base.yaml", True),
    ]


def test_explain_of_a_block_explains_each_setting(folder) -> None:
    keys = [item["key"] for item in explained(folder, "agent")]
    assert STEPS in keys
    assert "agent.responses_api_agents.simple_agent.model_server.name" in keys


@pytest.mark.parametrize(
    ("key", "value"), [("port", 0), ("experiment.environment_servers.single_agent_turn.host", None)]
)
def test_explain_of_what_nobody_set_says_so(key, value, folder) -> None:
    (item,) = explained(folder, key)
    assert (item["value"], item["set_by"]) == (value, [])
    assert "nobody set it" in item["note"]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("agent.responses_api_agents.simple_agnt.max_steps", STEPS),
        ("max_steps", STEPS),
        ("max_step", STEPS),
        ("limt", "limit"),
        ("agnt", "agent"),
    ],
)
def test_explain_of_an_unknown_key_names_the_closest(key, near, folder) -> None:
    run = here("env", "resolve", "--config", "base.yaml", "--explain", key, cwd=folder, code=2)
    assert run.stderr == f"command line  {key}  no key `{key}`; did you mean `{near}`?\n"


def test_explain_works_where_the_configuration_has_problems_elsewhere(folder) -> None:
    (item,) = explained(folder, "limit", "+nonsense=1", "limit=2")
    assert item["value"] == 2
    run = here("env", "resolve", "--config", "base.yaml", "+nonsense=1", "limit=2", cwd=folder, code=2)
    assert "no component kind or setting `nonsense`" in run.stderr


def test_a_group_choice_is_explained_by_its_file(tmp_path) -> None:
    run = here("env", "resolve", "+experiment=onboarding", "--explain", "model-provider", cwd=tmp_path)
    assert "experiments/onboarding/model-provider.yaml" in run.stdout
