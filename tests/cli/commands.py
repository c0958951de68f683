"""The `gym` command as a user types it, in a folder of its own.

`gym` runs it in a process of its own; `here` in this one, for the many cases of one verb.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from gym.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "gym.cli.main")

BASE = """
config_paths:
  - responses_api_models/vllm_model/configs/vllm_model.yaml
  - responses_api_agents/simple_agent/configs/simple_agent.yaml
  - nemo_gym/environment_servers/single_agent_turn/configs/single_agent_turn.yaml
  - resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
policy_base_url: http://127.0.0.1:9/v1
policy_api_key: first-key-0123456789
policy_model_name: some-model
agent:
  _inherit_from: simple_agent
  responses_api_agents: {simple_agent: {max_steps: 7}}
tasks:
  _inherit_from: example_session_state_mgmt_resources_server
  resources_servers:
    example_session_state_mgmt:
      datasets:
        - {name: counter, type: benchmark, taskset: counter, jsonl_fpath: data/rows.jsonl, num_repeats: 2}
experiment:
  _inherit_from: single_agent_turn
  environment_servers:
    single_agent_turn:
      queue_timeout_seconds: 60
      resources_server: {type: resources_servers, name: tasks}
      agent_server: {type: responses_api_agents, name: agent}
"""
"""A whole configuration for `--config`, of parts that are installed, with three tasks in `data/rows.jsonl`."""

ROW = '{"id": %d, "responses_create_params": {"input": "count"}, "initial_count": 1, "expected_count": 2}\n'


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: this one's, without what belongs to the user who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLICY_", "GYM_"))}
    return kept | {"PYTHONPATH": str(ROOT)} | dict(more or {})


def gym(
    *arguments: str, cwd: Path, code: int | None = 0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command and checks its exit code."""
    run = subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert code is None or run.returncode == code, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    return run


def here(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process and checks its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        returned = main(arguments)
    assert returned == code, out.getvalue() + err.getvalue()
    return subprocess.CompletedProcess(arguments, returned, out.getvalue(), err.getvalue())


def base_project(folder: Path) -> Path:
    """A project with `base.yaml` and its rows."""
    (folder / "base.yaml").write_text(BASE)
    (folder / "data").mkdir()
    (folder / "data" / "rows.jsonl").write_text("".join(ROW % number for number in range(3)))
    return folder
