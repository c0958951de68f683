"""A real harness solves an instance in the format of SWE-bench Pro, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.commands import gym
from tests.resources_servers.swebench_instance import IMAGE, instance

RUN = ("benchmark=swebench", "agent=codex", "sandbox=docker", "policy_script=say.jsonl", "output=out")
REPOSITORY = f"benchmark.resources_servers.swebench_pro.image_repository={IMAGE}"
SOLVE = [{"call": "shell", "arguments": {"command": "sed -i 's/a - b/a + b/' calc.py"}}]


def test_codex_solves_an_instance(tmp_path: Path) -> None:
    ask = "Mend the function add in calc.py."
    row = {**instance(), "task_id": "calc", "responses_create_params": {"input": [{"role": "user", "content": ask}]}}
    path = tmp_path / "benchmarks/swebench/data/swebench_pro_benchmark.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(row))
    turns = [SOLVE, [{"say": "It adds now."}]]
    (tmp_path / "say.jsonl").write_text(json.dumps({"task": "calc", "match": ask, "turns": turns}))
    run = gym(*RUN, REPOSITORY, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    (rollout,) = [json.loads(line) for line in (tmp_path / "out/rollouts.jsonl").read_text().splitlines()]
    assert (rollout["reward"], rollout["tests_not_passed"], rollout["grading_network"]) == (1.0, [], "none")
    assert "+    return a + b" in rollout["model_patch"]
