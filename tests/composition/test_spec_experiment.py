"""The four files of "Configure an experiment", as the specification prints them, under a folder of their own."""

from __future__ import annotations

from typing import Any

import pytest

from gym.composition.compose import compose
from gym.errors import UserError
from gym.planning.plan import plan
from gym.planning.resolve import resolve

VARIABLES = {
    "GYM_HOST": "10.1.2.3",
    "POLICY_BASE_URL": "http://models.invalid/v1",
    "POLICY_API_KEY": "sk-policy-1",
    "POLICY_MODEL_NAME": "demo",
    "OPENSANDBOX_DOMAIN": "boxes.invalid",
    "OPENSANDBOX_API_KEY": "sk-box-1",
}
RUN = "experiments/swebench_pro_hermes/run.yaml"


@pytest.mark.parametrize(("arguments", "files"), [([], [RUN]), (["+experiment=swebench_pro_hermes"], None)])
def test_it_composes_and_resolves(monkeypatch, arguments, files) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    resolved = resolve(compose(arguments, files))
    resolved.raise_problems()
    assert sorted(resolved.instances) == ["agent", "benchmark", "experiment", "policy_model"]
    agent: Any = resolved.instances["agent"].config
    benchmark: Any = resolved.instances["benchmark"].config
    assert agent.enabled_toolsets == ["terminal"]
    assert agent.model_server.name == "policy_model"
    (dataset,) = benchmark.datasets
    assert (dataset.taskset, dataset.num_repeats) == ("onboarding", 1)
    assert resolved.settings.default_host == "10.1.2.3"
    assert resolved.settings.environment_server_routes == {"onboarding": "experiment"}
    shown = str(resolved.redactor.mapping(resolved.values))
    assert "sk-policy-1" not in shown
    assert "sk-box-1" not in shown


def test_what_cannot_run_yet_is_said_at_planning(monkeypatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        plan(resolve(compose([], [RUN])))
    told = "\n".join(map(str, caught.value.problems))
    assert "swebench_pro cannot" not in told
    assert "hermes_agent cannot run yet" in told


def test_another_harness_in_its_place_waits_for_the_data_only(monkeypatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        plan(resolve(compose(["+experiment=swebench_pro_hermes", "agent=pi"])))
    (problem,) = caught.value.problems
    assert "no such file: benchmarks/swebench/data/swebench_pro_benchmark.jsonl; run `gym eval prepare`" in str(problem)


def test_unset_variables_are_told_together(monkeypatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    resolved = resolve(compose([], [RUN]))
    told = [str(problem) for problem in resolved.problems]
    assert len(told) == len(VARIABLES)
    for name in VARIABLES:
        assert any(name in line for line in told), name


TERMINAL_BENCH = """
    config_paths:
    - resources_servers/terminal_bench_2_1/configs/terminal_bench_2_1.yaml
    benchmark:
      _inherit_from: terminal_bench_2_1_resources_server
      resources_servers:
        terminal_bench_2_1:
          datasets:
          - name: terminal_bench_2_1
            type: benchmark
            taskset: onboarding
            jsonl_fpath: benchmarks/terminal_bench_2_1/data/benchmark.jsonl
            prepare_script: benchmarks/terminal_bench_2_1/prepare.py
            num_repeats: 1
    """


@pytest.mark.parametrize(("agent", "refused"), [("pi", False), ("swebench_pro_hermes", True)])
def test_another_benchmark_in_its_place(monkeypatch, project, agent: str, refused: bool) -> None:
    """Only `benchmark.yaml` is replaced; the benchmark declares Pi and not Hermes."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    project({"experiments/swebench_pro_hermes/benchmark.yaml": TERMINAL_BENCH})
    with pytest.raises(UserError) as caught:
        plan(resolve(compose(["+experiment=swebench_pro_hermes", f"agent={agent}"])))
    told = "\n".join(map(str, caught.value.problems))
    assert ("does not declare hermes_agent in its allowed_agents (pi_agent, " in told) == refused
    if not refused:
        assert told.count("\n") == 0
        assert "no such file: benchmarks/terminal_bench_2_1/data/benchmark.jsonl" in told
