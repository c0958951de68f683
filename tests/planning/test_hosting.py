"""Where instances run is decided before anything starts, and what cannot be is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym.planning.hosting import Hosted, blocks_of
from tests.planning.test_plan import AGENT, COUNTER, ENVIRONMENT, RESOURCES, made, problems

MODEL = "policy_model.responses_api_models.embedded_model"
APART, HERE = Hosted(is_apart=True), Hosted(is_apart=False)
ODD = "from gym.servers.resources import ResourcesServer\n\n\nclass Odd(ResourcesServer):\n    pass\n"


def odd(name: str, requirements: str, text: str = ODD) -> dict[str, str]:
    """An implementation with requirements, and a file that starts it. Each test has one of its own name."""
    return {
        **COUNTER,
        f"resources_servers/{name}/app.py": text,
        f"resources_servers/{name}/requirements.txt": requirements,
        "odd.yaml": f"odd: {{resources_servers: {{{name}: {{_target_: resources_servers.{name}.app.Odd}}}}}}",
    }


@pytest.mark.parametrize(
    ("arguments", "apart"),
    [
        ([], []),
        (["hosting=process"], ["agent", "benchmark", "experiment", "policy_model"]),
        ([f"+{AGENT}.hosting=process"], ["agent"]),
        (["hosting=process", f"+{AGENT}.hosting=in_process"], ["benchmark", "experiment", "policy_model"]),
    ],
)
def test_the_run_decides_for_those_that_do_not_say_it(project, arguments: list[str], apart: list[str]) -> None:
    project(COUNTER)
    found = made(arguments)
    assert sorted(name for name, how in found.hosting.items() if how == APART) == apart
    assert set(found.hosting.values()) <= {APART, HERE}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            f"+{RESOURCES}.num_workers=2",
            "2 processes, but the sessions of benchmark live in one process; "
            "leave it out; one process has many sessions",
        ),
        (
            f"+{AGENT}.num_workers=3",
            "3 processes, but the sessions of agent live in one process; leave it out; one process has many sessions",
        ),
        (
            f"+{ENVIRONMENT}.num_workers=2",
            "2 processes, but max_concurrent_episodes holds within one process; "
            "leave it out; one process runs many episodes",
        ),
    ],
)
def test_servers_that_need_one_process_get_one(project, setting: str, message: str) -> None:
    project(COUNTER)
    key = setting.removeprefix("+").partition("=")[0]
    assert problems([setting]) == [f"command line: {setting}  {key}  {message}"]


def test_models_may_have_several(project) -> None:
    project(COUNTER)
    assert made([f"+{MODEL}.num_workers=2", "hosting=process"]).hosting["policy_model"] == APART
    notes = made([f"+{MODEL}.num_workers=2", f"+{AGENT}.port=81", f"+{AGENT}.host=127.0.0.1"]).notes
    assert "policy_model runs in this process; num_workers: 2 counts with hosting: process only" in notes
    assert "agent runs in this process; its host and port counts with hosting: process only" in notes


def test_one_port_is_not_given_twice(project) -> None:
    project(COUNTER)
    ports = ["hosting=process", f"+{MODEL}.port=8801", f"+{AGENT}.port=8801", f"+{RESOURCES}.port=8800", "port=8800"]
    found = problems(ports)
    assert len(found) == 2
    assert any("port 8800 is that of the servers of this process too; choose another" in problem for problem in found)
    assert any("port 8801 is that of" in problem for problem in found)


def test_one_that_needs_more_than_is_here_gets_an_environment_of_its_own(project, tmp_path: Path) -> None:
    project(odd("odd", "pydantic\npydantic>=99\n"))
    found = made(files=("run.yaml", "odd.yaml"))
    file = Path("resources_servers/odd/requirements.txt").resolve()
    assert found.hosting["odd"] == Hosted(is_apart=True, requirements=file)
    assert found.hosting["agent"] == HERE
    assert (
        "odd runs in a process with a virtual environment of its own: resources_servers/odd/requirements.txt asks for "
        "pydantic>=99 (`gym env prefetch` builds it ahead)"
    ) in found.notes
    (problem,) = problems(["+odd.resources_servers.odd.hosting=in_process"], files=("run.yaml", "odd.yaml"))
    assert "cannot run in this process: resources_servers/odd/requirements.txt asks for pydantic>=99" in problem


def test_met_requirements_change_nothing(project) -> None:
    project(odd("modest", "pydantic>=2\n"))
    assert made(files=("run.yaml", "odd.yaml")).hosting["odd"] == HERE


def test_requirements_that_are_imported_too_early_are_told_with_both_ways_out(project) -> None:
    project(odd("early", "no-such-distribution-of-ours\n", "import no_such_distribution_of_ours\n"))
    (problem,) = problems([], files=("run.yaml", "odd.yaml"))
    assert problem.endswith(
        "resources_servers.early.app needs the package `no_such_distribution_of_ours`; import it where it is used, so "
        "that the server gets an environment of its own, or pip install no_such_distribution_of_ours"
    )


def test_an_agent_may_use_the_sandboxes_that_it_is_lent_and_nobody_else_those_of_others(project) -> None:
    lending = COUNTER["bench.yaml"].replace("example_session_state_mgmt", "workspace_tasks")
    box = "box: {_target_: gym.sandbox.providers.local.provider.LocalProvider, allow_unisolated: true}"
    files = {**COUNTER, "bench.yaml": lending + "\n        " + box}
    files["rows.jsonl"] = '{"responses_create_params": {"input": "hi"}, "task_id": "t1", "test_script": "exit 0"}\n'
    project(files)
    found = made(["+benchmark.resources_servers.workspace_tasks.sandbox_provider=box", "hosting=process"])
    used = {name: blocks_of(found, item) for name, item in found.instances.items()}
    assert used == {"agent": {"box"}, "benchmark": {"box"}, "experiment": set(), "policy_model": set()}
