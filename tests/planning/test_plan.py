from __future__ import annotations

import pytest

from gym.composition.compose import compose
from gym.errors import UserError
from gym.planning.plan import Plan, plan
from gym.planning.resolve import resolve

ROW = '{"responses_create_params": {"input": "hi"}, "task_id": "t1", "initial_count": 0, "expected_count": 1}\n'
COUNTER = {
    "bench.yaml": """
        config_paths:
        - resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
        benchmark:
          _inherit_from: example_session_state_mgmt_resources_server
          resources_servers:
            example_session_state_mgmt:
              datasets:
              - {name: mine, type: benchmark, taskset: mine, jsonl_fpath: rows.jsonl}
        """,
    "agent.yaml": """
        config_paths: [responses_api_agents/simple_agent/configs/simple_agent.yaml]
        agent:
          _inherit_from: simple_agent
        """,
    "model.yaml": """
        config_paths: [responses_api_models/embedded_model/configs/embedded_model.yaml]
        """,
    "run.yaml": """
        config_paths:
        - model.yaml
        - bench.yaml
        - agent.yaml
        - environment_servers/single_agent_turn/configs/single_agent_turn.yaml
        experiment:
          _inherit_from: single_agent_turn
          environment_servers:
            single_agent_turn:
              resources_server: {type: resources_servers, name: benchmark}
              agent_server: {type: responses_api_agents, name: agent}
        """,
    "rows.jsonl": ROW,
}
ENVIRONMENT = "experiment.environment_servers.single_agent_turn"
RESOURCES = "benchmark.resources_servers.example_session_state_mgmt"
AGENT = "agent.responses_api_agents.simple_agent"
MODEL = "policy_model.responses_api_models.embedded_model"


def made(arguments: list[str] = [], files: tuple[str, ...] = ("run.yaml",)) -> Plan:  # noqa: B006
    return plan(resolve(compose(arguments, list(files))))


def problems(arguments: list[str], files: tuple[str, ...] = ("run.yaml",)) -> list[str]:
    with pytest.raises(UserError) as caught:
        made(arguments, files)
    return [str(problem) for problem in caught.value.problems]


def test_templates_do_not_start_and_routes_are_derived(project) -> None:
    project(COUNTER)
    found = made()
    assert sorted(found.instances) == ["agent", "benchmark", "experiment", "policy_model"]
    assert found.routes == {"mine": "experiment"}
    assert getattr(found.instances["experiment"].config, "resources_tool_transports") == ["direct_http"]  # noqa: B009
    assert sorted(found.resolved.idle) == [
        "example_session_state_mgmt_resources_server",
        "simple_agent",
        "single_agent_turn",
    ]


def test_a_template_that_is_named_starts(project) -> None:
    project(COUNTER)
    found = made([f"{ENVIRONMENT}.agent_server.name=simple_agent"])
    assert "simple_agent" in found.instances


PROBLEMS: list[tuple[list[str], list[str]]] = [
    (
        [f"{AGENT}.max_step=3"],
        [f"{AGENT}.max_step=3  {AGENT}.max_step  unknown key `{AGENT}.max_step`; did you mean `{AGENT}.max_steps` "],
    ),
    (
        [f"++{AGENT}.max_step=3"],
        [f"{AGENT}.max_step=3  {AGENT}.max_step  unknown key `{AGENT}.max_step`; did you mean `{AGENT}.max_steps` "],
    ),
    (
        [f"+{AGENT}.max_step=3"],
        [f"{AGENT}.max_step=3  {AGENT}.max_step  unknown key `{AGENT}.max_step`; did you mean `{AGENT}.max_steps` "],
    ),
    (
        ["concurency=8"],
        ["command line: concurency=8  concurency  no component kind or setting `concurency`; closest: `concurrency`"],
    ),
    (
        ["++concurency=8"],
        ["command line: ++concurency=8  concurency  no component kind or setting `concurency`; closest: `concurrency`"],
    ),
    (["agnet=simple"], ["command line: agnet=simple  agnet  no component kind or setting `agnet`; closest: `agent`"]),
    (
        ["concurrency=eight"],
        ["command line: concurrency=eight  concurrency  wants an integer of at least 1, got the text `eight`"],
    ),
    (["limit=-1"], ["wants an integer of at least 1, got -1"]),
    (
        [f"{AGENT}.max_steps=0", "agnet=x"],
        ["no component kind or setting `agnet`", "wants an integer of at least 1"],
    ),
    ([f"{ENVIRONMENT}.resources_server.name=benchmrk"], ["which does not exist; did you mean `benchmark`?"]),
    ([f"{ENVIRONMENT}.resources_server.name=agent"], ["but `agent` is one of responses_api_agents"]),
    (["++environment_server_routes.mine=exp"], ["routes to `exp`, which is no environment server; "]),
    (["split=train"], ["no dataset of the split `train`; declared are: benchmark;"]),
    (
        [f"{RESOURCES}.allowed_agents=[hermes_agent]"],
        [f"{ENVIRONMENT}.agent_server  example_session_state_mgmt does not declare simple_agent in its allowed_agents"],
    ),
    (
        [f"+{MODEL}.capabilities.tools=false"],
        [
            f"command line: +{MODEL}.capabilities.tools=false  {MODEL}.capabilities.tools  policy_model is declared "
            "to do without tools, but agent (simple_agent) gets the tools of benchmark; choose another agent or model"
        ],
    ),
    ([f"{RESOURCES}.allowed_model_types=[vllm_model]"], ["does not declare embedded_model in its allowed_model_types"]),
    ([f"{ENVIRONMENT}.resources_tool_transports=[mcp]"], ["asks for mcp, but "]),
    (["sandbox=none_such"], ["command line  sandbox  no sandbox `none_such`"]),
    ([f"{AGENT}._target_=os.system"], ["`os.system` is no AgentServer"]),
    ([f"{AGENT}._target_=no.such.module.Class"], ["no module `no`"]),
    (["~agent"], ["cannot delete `agent`: no file and no option chose one"]),
    (["simple.x=1"], ["unknown key `simple.x`"]),
]


@pytest.mark.parametrize(("arguments", "expected"), PROBLEMS, ids=lambda value: " ".join(value)[:50])
def test_what_is_wrong_is_told(project, arguments, expected) -> None:
    """Case 01 and the rest of planning: every problem with its place, none with the advice to add a plus."""
    project(COUNTER)
    told = problems(arguments)
    for text in expected:
        assert any(text in line for line in told), told
    assert not any("+" in line.replace("++", "") and "add a +" in line for line in told)


def test_two_wrong_overrides_are_told_together(project) -> None:
    project(COUNTER)
    assert len(problems([f"{AGENT}.max_step=1", "concurency=2"])) == 2


def test_pairings_can_be_waived_and_that_is_said(project) -> None:
    project(COUNTER)
    found = made([f"{RESOURCES}.allowed_agents=[hermes_agent]", "allow_unsupported_pairing=true"])
    assert any("waived" in note for note in found.notes)


def test_unset_environment_variables_are_told_together_at_their_lines(project, monkeypatch) -> None:
    monkeypatch.delenv("NO_SUCH_URL", raising=False)
    monkeypatch.delenv("NO_SUCH_NAME", raising=False)
    project(COUNTER)
    project(
        {
            "model.yaml": """
                config_paths: [responses_api_models/vllm_model/configs/vllm_model.yaml]
                policy_base_url: ${oc.env:NO_SUCH_URL}
                policy_api_key: k
                policy_model_name: ${oc.env:NO_SUCH_NAME}
                """
        }
    )
    assert problems([]) == [
        "model.yaml:3  policy_base_url  the environment variable NO_SUCH_URL is not set; export NO_SUCH_URL=...",
        "model.yaml:5  policy_model_name  the environment variable NO_SUCH_NAME is not set; export NO_SUCH_NAME=...",
    ]


def test_unused_templates_are_never_resolved(project) -> None:
    project(COUNTER)
    project(
        {
            "extra.yaml": """
                spare: {responses_api_agents: {x: {v: '${oc.env:NO_SUCH_URL}'}}}
                heir: {_inherit_from: spare}
                """
        }
    )
    told = problems([], ("run.yaml", "extra.yaml"))
    assert all("spare" not in line.split("  ")[1] for line in told)


def test_missing_values_and_bad_interpolations_name_their_line(project) -> None:
    project(COUNTER)
    project(
        {
            "more.yaml": """
                agent:
                  responses_api_agents:
                    simple_agent:
                      max_steps: ???
                      system_prompt: ${nope}
                """
        }
    )
    assert problems([], ("run.yaml", "more.yaml")) == [
        f"more.yaml:5  {AGENT}.max_steps  is required, and `???` stands for it; give it a value: {AGENT}.max_steps=...",
        f"more.yaml:6  {AGENT}.system_prompt  `${{nope}}` names a key that does not exist; "
        "set that key, or write the value here",
    ]


def test_a_missing_data_file_says_what_to_do(project) -> None:
    root = project(COUNTER)
    (root / "rows.jsonl").unlink()
    assert problems([]) == [f"bench.yaml:9  {RESOURCES}.datasets.0.jsonl_fpath  no such file: rows.jsonl; put it there"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            "x: {resources_server: {foo: {}}}",
            "unknown server type `resources_server`; did you mean `resources_servers`?",
        ),
        ("x: {resources_servers: {a: {}, b: {}}}", "a server type holds one implementation"),
        ("x: {resources_servers: {a: {}}, responses_api_agents: {b: {}}}", "an instance has one key, its server type"),
        ("x: {resources_servers: {a: {}}}", "no `_target_`: a has no class yet"),
    ],
)
def test_malformed_blocks_are_told(project, extra, expected) -> None:
    project(COUNTER)
    project({"extra.yaml": extra + "\n"})
    assert any(
        line.startswith("extra.yaml:1") and expected in line for line in problems([], ("run.yaml", "extra.yaml"))
    )


def test_free_variables_may_be_used_and_overridden(project) -> None:
    project(COUNTER)
    project({"vars.yaml": "steps: 5\nagent: {responses_api_agents: {simple_agent: {max_steps: '${steps}'}}}\n"})
    found = made(["steps=7"], ("run.yaml", "vars.yaml"))
    assert getattr(found.instances["agent"].config, "max_steps") == 7  # noqa: B009


def test_taskset_mode_refuses_flat_datasets(project) -> None:
    project(COUNTER)
    flat = f"{RESOURCES}.datasets=[{{name: mine, type: benchmark, jsonl_fpath: rows.jsonl}}]"
    assert (
        "flat rows are refused by environment_routing_mode: taskset"
        in problems([flat, "environment_routing_mode=taskset"])[0]
    )
    assert "flat rows, which experiment does not take" in problems([flat])[0]


def test_every_group_choice_of_the_command_line_is_used(project) -> None:
    project(COUNTER)
    told = problems([f"{ENVIRONMENT}.agent_server.name=simple_agent", "agent=simple"])
    assert any("agent `simple` would not be used" in line for line in told)


WORKSPACE = {
    **COUNTER,
    "bench.yaml": """
        config_paths:
        - resources_servers/workspace_tasks/configs/workspace_tasks.yaml
        - conf/sandbox/local.yaml
        benchmark:
          _inherit_from: workspace_tasks_resources_server
          resources_servers:
            workspace_tasks:
              datasets:
              - {name: mine, type: benchmark, taskset: mine, jsonl_fpath: rows.jsonl}
        """,
}


def test_bounds_that_do_not_nest_are_refused_with_the_sum(project) -> None:
    project(WORKSPACE)
    bound = "benchmark.resources_servers.workspace_tasks.verifier_timeout_seconds=100"
    limit = f"{ENVIRONMENT}.default_episode_timeout_seconds"
    assert problems([bound, f"{limit}=60"]) == [
        f"command line: {limit}=60  {limit}  60 s cannot hold 100 s benchmark.verifier_timeout_seconds; "
        "raise it, or lower one of these"
    ]
    assert made([bound, f"{limit}=101"]).routes == {"mine": "experiment"}


def test_a_close_can_be_asked_for_again_while_cleanup_lasts(project) -> None:
    project(COUNTER)
    window = f"+{AGENT}.session_close_retry_window_seconds"
    (told,) = problems([f"{window}=1"])
    assert "1 s, but a close may be asked for again for 180 s (cleanup_timeout_seconds of experiment)" in told
    assert made([f"{window}=180"]).routes == {"mine": "experiment"}


def test_a_queue_is_shorter_than_an_episode_and_needs_a_limit(project) -> None:
    project(COUNTER)
    queue, limit = f"{ENVIRONMENT}.queue_timeout_seconds", f"{ENVIRONMENT}.max_concurrent_episodes"
    (told,) = problems([f"{queue}=21600", f"{limit}=2"])
    assert "21600 s in the queue, but an episode itself has 21600 s (default_episode_timeout_seconds)" in told
    assert not [note for note in made([f"{queue}=60", f"{limit}=2"]).notes if "queue" in note]
    assert made([f"{queue}=60"]).notes[-1] == (
        "experiment admits every episode at once: queue_timeout_seconds: 60 has no effect without "
        "max_concurrent_episodes"
    )


def test_a_harness_in_the_tasks_sandbox_can_reach_its_model(project) -> None:
    project(WORKSPACE)
    assert getattr(made().instances["benchmark"].config, "sandbox_config").network == "none"  # noqa: B009
    imports = "config_paths: [responses_api_agents/codex_agent/configs/codex_agent.yaml]"
    project({"agent.yaml": f"{imports}\nagent: {{_inherit_from: codex_agent}}\n"})
    found = made()
    assert getattr(found.instances["benchmark"].config, "sandbox_config").network == "gym_only"  # noqa: B009
    assert any("gym_only" in note for note in found.notes)


def test_a_harness_gets_a_sandbox_from_somewhere(project) -> None:
    imports = "config_paths: [responses_api_agents/codex_agent/configs/codex_agent.yaml]"
    codex = {"agent.yaml": f"{imports}\nagent: {{_inherit_from: codex_agent}}\n"}
    setting = "agent.responses_api_agents.codex_agent"
    project(COUNTER | codex)
    (told,) = problems([f"{setting}.sandbox_provider=null"])
    assert "codex_agent needs a sandbox" not in told
    assert told.startswith("run.yaml:")
    assert "agent needs a sandbox: benchmark lends none, and the agent has no `sandbox_provider`" in told
    assert made([f"{setting}.sandbox_provider=null", f"++{setting}.execution=host"])
    project(WORKSPACE | codex)
    assert made([f"{setting}.sandbox_provider=null"])
    (told,) = problems([f"++{setting}.execution=host"])
    assert told.startswith(f"command line: ++{setting}.execution=host")
    assert "the task's files are in the sandboxes of benchmark" in told


def test_a_misspelled_setting_in_a_file_is_no_variable(project) -> None:
    project({**COUNTER, "more.yaml": "max_policy_cals: 3\nmy_own: 1\nlimits: 2\nby_the_way: ${limits}\n"})
    (told,) = problems([], ("run.yaml", "more.yaml"))
    assert told.startswith("more.yaml:1  max_policy_cals  no setting `max_policy_cals`")
    assert told.endswith("did you mean `max_policy_calls`?")


def test_the_providers_own_ttl_outlives_an_episode_too(project) -> None:
    target = "_target_: gym.sandbox.providers.docker.DockerProvider"
    docker = f"sandbox: {{{target}, default_image: gym-base, default_ttl_seconds: 3}}\n"
    project({**WORKSPACE, "docker.yaml": docker})
    (told,) = problems([], ("run.yaml", "docker.yaml"))
    assert told.startswith("docker.yaml:1  sandbox.default_ttl_seconds  3 s do not outlive an episode")
