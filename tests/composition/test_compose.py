from __future__ import annotations

import pytest

from gym.composition.compose import Composed, compose
from gym.errors import UserError

TEMPLATE = {
    "lib/base.yaml": """
        tmpl:
          resources_servers:
            foo:
              a: 1
              l: [1, 2]
              m: {x: 1, y: 2}
        """,
    "responses_api_agents/foo_agent/configs/foo_agent.yaml": """
        foo_agent:
          responses_api_agents:
            foo_agent: {a: 1}
        """,
    "responses_api_agents/bar_agent/configs/bar_agent.yaml": """
        bar_agent:
          responses_api_agents:
            bar_agent: {b: 1}
        """,
    "experiments/x/agent.yaml": """
        config_paths: [responses_api_agents/foo_agent/configs/foo_agent.yaml]
        agent:
          _inherit_from: foo_agent
          responses_api_agents:
            foo_agent: {only_foo: 2}
        """,
    "experiments/x/benchmark.yaml": """
        config_paths:
        - lib/base.yaml
        benchmark:
          _inherit_from: tmpl
          resources_servers:
            foo:
              l: [3]
              m: {y: null}
        """,
    "experiments/x/run.yaml": """
        config_paths:
        - experiments/x/benchmark.yaml
        - experiments/x/agent.yaml
        - lib/base.yaml
        num_repeats: 3
        who: run
        """,
}
DOORS = [([], ["experiments/x/run.yaml"]), (["+experiment=x"], None), (["experiment=x"], None)]


def problems(arguments: list[str], files: list[str] | None = None) -> list[str]:
    with pytest.raises(UserError) as caught:
        compose(arguments, files)
    return [str(problem) for problem in caught.value.problems]


def run(arguments: list[str], files: list[str] | None = None) -> Composed:
    composed = compose(arguments, files)
    assert composed.problems == []
    return composed


@pytest.mark.parametrize(("arguments", "files"), DOORS)
def test_both_doors_compose_the_same(project, arguments, files) -> None:
    project(TEMPLATE)
    values = run([*arguments, "limit=7"], files).values
    foo = values["benchmark"]["resources_servers"]["foo"]
    assert foo == {"a": 1, "l": [3], "m": {"x": 1, "y": None}}
    assert values["agent"] == {"responses_api_agents": {"foo_agent": {"a": 1, "only_foo": 2}}}
    assert (values["num_repeats"], values["limit"], values["who"]) == (3, 7, "run")


@pytest.mark.parametrize(("arguments", "files"), DOORS)
def test_a_group_choice_replaces_the_file_whole(project, arguments, files) -> None:
    project(TEMPLATE)
    values = run([*arguments, "agent=bar"], files).values
    assert values["agent"] == {"responses_api_agents": {"bar_agent": {"b": 1}}}
    assert "foo_agent" not in values


def test_a_harness_folder_is_an_option_by_itself(project) -> None:
    project(TEMPLATE)
    values = run(["agent=bar_agent"]).values
    assert values["agent"] == {"responses_api_agents": {"bar_agent": {"b": 1}}}


def test_files_merge_in_order_and_lists_replace(project) -> None:
    project({"a.yaml": "v: {list: [1, 2], kept: 1}\n", "b.yaml": "v: {list: [9]}\n"})
    assert run([], ["a.yaml", "b.yaml"]).values["v"] == {"list": [9], "kept": 1}
    assert run([], ["b.yaml", "a.yaml"]).values["v"] == {"list": [1, 2], "kept": 1}


def test_an_importing_file_wins_over_what_it_imports(project) -> None:
    project(
        {
            "deep.yaml": "v: deep\nonly: deep\n",
            "mid.yaml": "config_paths: [deep.yaml]\nv: mid\n",
            "top.yaml": "config_paths: [mid.yaml]\nv: top\n",
        }
    )
    values = run([], ["top.yaml"]).values
    assert (values["v"], values["only"]) == ("top", "deep")


def test_a_file_imported_twice_is_loaded_once_at_its_first_position(project) -> None:
    project(
        {
            "base.yaml": "v: base\n",
            "a.yaml": "config_paths: [base.yaml]\nv: a\n",
            "b.yaml": "config_paths: [./base.yaml]\nw: b\n",
        }
    )
    assert run([], ["a.yaml", "b.yaml"]).values["v"] == "a"


def test_names_that_hydra_would_misread_work(project, tmp_path) -> None:
    odd = "odd dir/with @ and = and ${x}, 100%.yaml"
    project({odd: "v: odd\n"})
    assert run([], [odd]).values["v"] == "odd"
    assert run([], [str(tmp_path / odd)]).values["v"] == "odd"


def test_absolute_paths_outside_the_project_work(project, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "x.yaml"
    outside.write_text("v: outside\n")
    project({"a.yaml": f"config_paths: ['{outside}']\n"})
    assert run([], ["a.yaml"]).values["v"] == "outside"


def test_the_peers_path_prefix_is_an_alias(project) -> None:
    project(
        {"a.yaml": "config_paths: [nemo_gym/environment_servers/single_agent_turn/configs/single_agent_turn.yaml]\n"}
    )
    assert "single_agent_turn" in run([], ["a.yaml"]).values


def test_env_yaml_comes_last_before_the_overrides(project) -> None:
    project({**TEMPLATE, "env.yaml": "who: env\nnum_repeats: 5\n"})
    values = run(["+experiment=x", "num_repeats=6"]).values
    assert (values["who"], values["num_repeats"]) == ("env", 6)
    assert run([], ["experiments/x/run.yaml"]).values["who"] == "env"


def test_an_import_cycle_prints_the_chain(project) -> None:
    project({"a.yaml": "config_paths: [b.yaml]\n", "b.yaml": "x: 1\nconfig_paths:\n- a.yaml\n"})
    assert problems([], ["a.yaml"]) == [
        "b.yaml:3  imports itself: a.yaml -> b.yaml -> a.yaml; remove one of the imports"
    ]


def test_a_missing_import_names_file_line_and_the_near_one(project) -> None:
    project({"a.yaml": "x: 1\nconfig_paths:\n- lib/bose.yaml\n- none.yaml\n", "lib/base.yaml": "v: 1\n"})
    first, second = problems([], ["a.yaml"])
    assert first == "a.yaml:3  config_paths  no such file: lib/bose.yaml; did you mean `lib/base.yaml`?"
    assert second.startswith("a.yaml:4  config_paths  no such file: none.yaml; paths are relative to the project root")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1\nb: 2\n", "bad.yaml:2  not valid YAML"),
        ("a: 1\na: 2\n", "bad.yaml:2  not valid YAML"),
        ("- 1\n", "bad.yaml:1  holds a list; a configuration file is a mapping"),
        ("config_paths: x.yaml\n", "bad.yaml:1  config_paths  must be a list of files"),
        ("v: ${oops\n", "bad.yaml:1  v  "),
    ],
)
def test_a_bad_file_is_told_with_its_line(project, text, expected) -> None:
    project({"bad.yaml": text})
    (problem,) = problems([], ["bad.yaml"])
    assert problem.startswith(expected)


def test_a_group_chosen_twice_names_both_places(project) -> None:
    project({**TEMPLATE, "experiments/y/agent.yaml": "agent: {}\n"})
    project({"a.yaml": "config_paths:\n- experiments/x/agent.yaml\n- experiments/y/agent.yaml\n"})
    assert problems([], ["a.yaml"]) == [
        "a.yaml:3  chooses agent `y`, but a.yaml:2 chose `x`; import one file of the group agent"
    ]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("a: {_inherit_from: nope}", "run.yaml:1  a._inherit_from  no template `nope`"),
        ("a: {_inherit_from: b}\nb: {_inherit_from: a}", "inherits from itself: a -> b -> a"),
        ("a: {_inherit_from: a}", "inherits from itself: a -> a"),
        ("tmlp: {x: 1}\na: {_inherit_from: tmpl}", "did you mean `tmlp`?"),
    ],
)
def test_broken_inheritance_is_told(project, block, expected) -> None:
    project({"run.yaml": block})
    assert any(expected in problem for problem in problems([], ["run.yaml"]))


def test_an_override_block_cannot_change_the_implementation(project) -> None:
    project(
        {
            **TEMPLATE,
            "y.yaml": "config_paths: [lib/base.yaml]\nb:\n  _inherit_from: tmpl\n  resources_servers:\n    bar: {}\n",
        }
    )
    (problem,) = problems([], ["y.yaml"])
    assert problem.startswith("y.yaml:5  b.resources_servers.bar  names the implementation `bar`, but its template")


def test_inheritance_chains_work(project) -> None:
    project({"run.yaml": "a: {x: 1, y: 1}\nb: {_inherit_from: a, y: 2}\nc: {_inherit_from: b, z: 3}\n"})
    assert run([], ["run.yaml"]).values["c"] == {"x": 1, "y": 2, "z": 3}


def test_interpolations_stay_text(project) -> None:
    project({"run.yaml": "a: ${oc.env:NOT_SET_ANYWHERE}\nb: {_inherit_from: c}\nc: {v: '${a}'}\n"})
    assert run([], ["run.yaml"]).values["b"] == {"v": "${a}"}


def test_origins_name_every_say_in_order(project) -> None:
    project(TEMPLATE)
    composed = run(["+experiment=x", "++benchmark.resources_servers.foo.l=[5]", "num_repeats=4"])
    said = composed.origins.settings(("benchmark", "resources_servers", "foo", "l"))
    assert [(item.where, item.value, item.note) for item in said] == [
        ("lib/base.yaml:6", [1, 2], "inherited from tmpl"),
        ("experiments/x/benchmark.yaml:8", [3], ""),
        ("command line: ++benchmark.resources_servers.foo.l=[5]", [5], ""),
    ]
    said = composed.origins.settings(("num_repeats",))
    assert [item.where for item in said] == [
        "conf/config.yaml:12",
        "experiments/x/run.yaml:6",
        "command line: num_repeats=4",
    ]
    assert (
        composed.origins.where(("agent", "responses_api_agents", "foo_agent", "only_foo"))
        == "experiments/x/agent.yaml:6"
    )


CHOICES = {f"conf/sandbox/{name}.yaml": f"sandbox: {{kind: {name}}}\n" for name in ("docker", "podman")} | {
    f"responses_api_agents/{name}/configs/{name}.yaml": f"{name}: {{responses_api_agents: {{{name}: {{}}}}}}\n"
    for name in ("codex", "mini_swe")
}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["agent=codx"], ["no agent `codx`; closest: `codex`; available: claude_code, codex, "]),
        (["agent=mini-swe"], ["no agent `mini-swe`; closest: `mini_swe`; available: claude_code, codex, "]),
        (["benchmark=gsm8k"], ["no benchmark `gsm8k`; "]),
        (["sandbox=[docker,podman]"], ["one sandbox per run; for a sweep write sandbox=docker,podman with -m"]),
        (["agent=codex", "sandbox=dockr"], ["no sandbox `dockr`; closest: `docker`"]),
        (["agent=codx", "sandbox=dockr"], ["no agent `codx`", "no sandbox `dockr`"]),
        (["agent=codex,mini_swe"], ["`agent` is given several options; add -m to sweep over them"]),
        (
            ["limit=1,2"],
            ["`limit=1,2` gives several values; add -m to sweep over them, or write limit=[...] for a list"],
        ),
        (["=3"], ["cannot read `=3`"]),
    ],
)
def test_wrong_choices_are_told_together(project, arguments, expected) -> None:
    """Case 02."""
    project(CHOICES)
    found = compose(arguments).problems
    assert len(found) == len(expected)
    for problem, text in zip(found, expected, strict=True):
        assert text in f"{problem.what}; {problem.fix}"
        assert problem.where == "command line"
        if problem.data:
            assert problem.data["given"] not in list(problem.data["suggestions"])  # type: ignore[call-overload]


def test_an_unknown_choice_that_resembles_nothing_gets_no_guess(project) -> None:
    project(CHOICES)
    (problem,) = compose(["benchmark=gsm8k"]).problems
    assert problem.data["suggestions"] == []
    assert "conf/benchmark/gsm8k.yaml" in problem.fix


def test_adding_what_exists_and_deleting_what_does_not(project) -> None:
    project(TEMPLATE)
    assert problems(["+split=train"]) == [
        "command line  split  `split` exists already; to change it, write split=train"
    ]
    assert problems(["~nothing"]) == ["command line  cannot delete `nothing`: it does not exist"]
