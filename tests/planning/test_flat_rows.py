"""Which environment server flat rows go to, and what `agent_name` decides."""

from __future__ import annotations

import pytest

from gym.tasks.collate import collate
from tests.planning.test_plan import AGENT, COUNTER, made, problems

LEGACY = "environment_servers/single_agent_turn_legacy/configs/single_agent_turn_legacy.yaml"
FLAT = {
    **COUNTER,
    "bench.yaml": COUNTER["bench.yaml"].replace(" taskset: mine,", ""),
    "run.yaml": f"""
        config_paths:
        - model.yaml
        - bench.yaml
        - agent.yaml
        - {LEGACY}
        other:
          _inherit_from: simple_agent
        first:
          _inherit_from: single_agent_turn_legacy
          environment_servers:
            single_agent_turn_legacy:
              resources_server: {{type: resources_servers, name: benchmark}}
              agent_server: {{type: responses_api_agents, name: agent}}
        second:
          _inherit_from: single_agent_turn_legacy
          environment_servers:
            single_agent_turn_legacy:
              resources_server: {{type: resources_servers, name: benchmark}}
              agent_server: {{type: responses_api_agents, name: other}}
        """,
}


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["+agent_name=agent"], "first"),
        (["+agent_name=other"], "second"),
        (["+environment_server_name=second"], "second"),
        (["++benchmark.resources_servers.example_session_state_mgmt.datasets.0.agent=other"], "second"),
    ],
)
def test_flat_rows_go_where_they_are_sent(project, arguments, environment) -> None:
    project(FLAT)
    assert made(arguments).routes == {"mine": environment}


def test_flat_rows_are_collated_as_tasks(project, tmp_path) -> None:
    project(FLAT)
    (row,) = collate(made(["+agent_name=agent"]), tmp_path / "tasks.jsonl")
    assert row["task_id"] == {"taskset": "mine", "task_id": "t1"}
    assert row["task_input"]["expected_count"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "several environment servers use benchmark; choose with agent_name or environment_server_name, one of "),
        (["+agent_name=agnet"], "no environment server runs the agent `agnet`; did you mean `agent`?"),
        (
            ["+agent_name=agent", "+environment_server_name=second"],
            "taskset `mine` is routed to second, which does not use benchmark with the agent agent; these do: first",
        ),
    ],
)
def test_what_cannot_be_routed_is_told(project, arguments, told) -> None:
    project(FLAT)
    assert any(told in line for line in problems(arguments)), problems(arguments)


def test_an_agent_name_that_a_route_contradicts_is_told(project) -> None:
    project({**FLAT, "bench.yaml": COUNTER["bench.yaml"]})
    told = problems(["+agent_name=agent", "++environment_server_routes.mine=second"])
    assert any(
        "taskset `mine` is routed to second, which does not use benchmark with the agent agent" in x for x in told
    )


RELAYED = {
    **FLAT,
    "run.yaml": """
        config_paths:
        - model.yaml
        - bench.yaml
        - agent.yaml
        - environment_servers/legacy_agent/configs/legacy_agent.yaml
        agent:
          responses_api_agents:
            simple_agent:
              resources_server: {type: resources_servers, name: benchmark}
        relay:
          _inherit_from: legacy_agent
          environment_servers:
            legacy_agent:
              agent_server: {type: responses_api_agents, name: agent}
        """,
    "whole_episodes.py": """
        from gym.environment_servers.flat_rows import RunBody
        from gym.servers.base import Call, route
        from responses_api_agents.simple_agent.app import SimpleAgent


        class Whole(SimpleAgent):
            @route("/run")
            async def run_all(self, body: RunBody, call: Call) -> RunBody:
                return body
        """,
}


def test_tasks_of_an_agent_that_runs_episodes_by_itself_go_to_its_relay(project) -> None:
    project(RELAYED)
    assert made([f"{AGENT}._target_=whole_episodes.Whole"]).routes == {"mine": "relay"}


def test_an_agent_that_runs_no_episodes_has_no_relay(project) -> None:
    project(RELAYED)
    (told,) = problems([])
    assert "run.yaml:15  relay.environment_servers.legacy_agent.agent_server" in told
    assert "agent (simple_agent) has no `/run`" in told


@pytest.mark.parametrize("name", ["response", "responses_create_params"])
def test_a_task_field_with_a_name_of_ours_is_refused_with_its_line(project, tmp_path, name) -> None:
    flat = (
        '{"responses_create_params": {"input": "hi"}, "initial_count": 0, "expected_count": 1, "task_data": {"%s": 1}}'
    )
    project({**COUNTER, "rows.jsonl": "\n" + flat % name + "\n"})
    with pytest.raises(Exception, match=rf"rows.jsonl:2  bad row: .*a field of a task cannot be named `{name}`"):
        collate(made(), tmp_path / "tasks.jsonl")
