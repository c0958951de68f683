"""`gym eval plan`: all that can be known before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import base_project, gym, here


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_project(tmp_path_factory.mktemp("project"))


def test_the_plan_is_told_whole(folder) -> None:
    plan = json.loads(here("eval", "plan", "--config", "base.yaml", "--limit", "2", "--json", cwd=folder).stdout)
    assert (plan["run"], plan["split"], plan["tasks"], plan["model_name"]) == ("base", "benchmark", 2, "some-model")
    assert [(item["name"], item["implementation"], item["template"]) for item in plan["instances"]] == [
        ("policy_model", "vllm_model", None),
        ("agent", "simple_agent", "simple_agent"),
        ("tasks", "example_session_state_mgmt", "example_session_state_mgmt_resources_server"),
        ("experiment", "single_agent_turn", "single_agent_turn"),
    ]
    assert plan["routes"] == [
        {
            "taskset": "counter",
            "environment": "experiment",
            "resources": "tasks",
            "agent": "agent",
            "model": "policy_model",
        }
    ]
    (dataset,) = plan["datasets"]
    assert (dataset["declared_by"], dataset["rows"], dataset["attempts"]) == ("tasks", 3, 2)
    (budget,) = plan["budgets"]
    assert (budget["queue_seconds"], budget["episode_seconds"], budget["cleanup_seconds"]) == (60, 21600, 180)


def test_the_plan_for_people(folder) -> None:
    text = gym("eval", "plan", "--config", "base.yaml", cwd=folder).stdout
    assert "budget of experiment: queue 60 s -> episode 21600 s -> each cleanup 180 s\n" in text
    assert text.endswith("would run 3 tasks of the split benchmark, 64 episodes at once, model some-model\n")
    assert not (folder / "results").exists()


def test_a_pairing_is_refused_and_can_be_waived(folder) -> None:
    refusing = "++tasks.resources_servers.example_session_state_mgmt.allowed_agents=[codex_agent]"
    refused = here("eval", "plan", "--config", "base.yaml", refusing, cwd=folder, code=2)
    assert "does not declare simple_agent in its allowed_agents (codex_agent)" in refused.stderr
    waived = here("eval", "plan", "--config", "base.yaml", refusing, "--allow-unsupported-pairing", cwd=folder)
    assert "note: waived by --allow-unsupported-pairing: " in waived.stdout


def test_problems_are_told_together_in_order_with_their_places(folder) -> None:
    run = here(
        "eval", "plan", "--config", "base.yaml", "--split", "train", "--limit", "no",
        "++experiment.environment_servers.single_agent_turn.queue_timeout_second=3", cwd=folder, code=2,
    )  # fmt: skip
    assert "queue_timeout_seconds" in run.stderr
    assert "limit" in run.stderr
    assert len(run.stderr.splitlines()) == 2


def test_without_files_the_groups_are_composed(tmp_path) -> None:
    plan = json.loads(here("eval", "plan", "--benchmark", "onboarding", "--json", "agent=simple", cwd=tmp_path).stdout)
    assert plan["run"] == "onboarding"
    assert any(item.get("is_script") for item in plan["instances"])
    assert plan["sandboxes"]


def test_without_a_benchmark_it_says_how_one_is_chosen(tmp_path) -> None:
    refused = here("eval", "plan", "--agent", "oracle", cwd=tmp_path, code=2).stderr
    assert refused.startswith("benchmark  no benchmark is chosen; choose one: benchmark=NAME (`gym list benchmarks`)")
