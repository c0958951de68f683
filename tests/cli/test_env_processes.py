"""`gym env start` and `gym eval run` with servers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import COMMAND, environment, gym
from tests.cli.test_env_servers import EXPERIMENT, end, start
from tests.launch.parts import is_alive

WAIT_SECONDS = 60
MODEL = "+policy_model.responses_api_models.embedded_model"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    cwd = tmp_path_factory.mktemp("processes")
    process, _ = start(cwd, "hosting=process", f"{MODEL}.num_workers=2")
    yield cwd
    if process.poll() is None:
        end(process, signal.SIGTERM)
    process.communicate()


def instances(cwd: Path) -> dict[str, Any]:
    return dict(json.loads(gym("env", "status", "--json", cwd=cwd).stdout)["instances"])


def test_status_shows_the_processes(running) -> None:
    found = instances(running)
    pids = [one["pid"] for item in found.values() for one in item["processes"]]
    assert len(pids) == len(set(pids)) == len(found) + 1
    assert all(is_alive(pid) for pid in pids)
    table = [line.split() for line in gym("env", "status", cwd=running).stdout.splitlines()]
    assert table[0] == ["instance", "type", "implementation", "process", "url", "state"]
    (agent,) = (line for line in table if line[0] == "agent")
    assert agent[3] == str(found["agent"]["processes"][0]["pid"])
    assert agent[4] == found["agent"]["url"]


def test_a_run_uses_them_wherever_they_are(running) -> None:
    run = gym("eval", "run", "--no-serve", *EXPERIMENT, "--limit", "6", "--output", "out", "--json", cwd=running)
    told = json.loads(run.stdout)
    assert (told["exit_code"], told["coverage"]["attempts"]["valid"]) == (0, 6)


def test_one_that_was_killed_is_shown_with_its_new_process(running) -> None:
    before = instances(running)["agent"]["processes"][0]["pid"]
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + WAIT_SECONDS
    while (now := instances(running)["agent"]["processes"][0])["state"] != "running" or now["pid"] == before:
        assert time.monotonic() < deadline
    assert now["restarts"] == 1
    assert f"{now['pid']} (1x again)" in gym("env", "status", cwd=running).stdout
    assert (running / ".gym" / "logs" / "agent.log").exists()


def test_stop_leaves_no_process(running) -> None:
    pids = [one["pid"] for item in instances(running).values() for one in item["processes"]]
    assert json.loads(gym("env", "stop", "--json", cwd=running).stdout)["outcome"] == "stopped"
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_run_with_a_server_of_each_kind_gives_what_one_process_gives(tmp_path) -> None:
    rewards = []
    for name, more in (
        ("one", []),
        ("many", ["hosting=process", "+benchmark.resources_servers.workspace_tasks.hosting=in_process"]),
    ):
        gym("eval", "run", *EXPERIMENT, *more, "--limit", "6", "--output", name, cwd=tmp_path)
        rows = [json.loads(line) for line in (tmp_path / name / "rollouts.jsonl").read_text().splitlines()]
        rewards.append({row["task_id"]: row["reward"] for row in rows})
    assert rewards[0] == rewards[1]
    assert {path.stem for path in (tmp_path / "many" / "logs").iterdir()} == {
        "agent", "policy_model", "counter", "experiment", "counter_experiment"
    }  # fmt: skip
    assert not (tmp_path / "one" / "logs").exists()


def test_what_a_server_refuses_is_one_problem(tmp_path) -> None:
    script = f"{MODEL}.script=nowhere.jsonl"
    run = gym("eval", "run", *EXPERIMENT, "hosting=process", script, "--output", "out", cwd=tmp_path, code=2)
    assert "nowhere.jsonl" in run.stderr


@pytest.mark.e2e
def test_a_run_goes_on_when_its_servers_are_killed(tmp_path) -> None:
    words = ["eval", "run", *EXPERIMENT, "hosting=process", "--num-repeats", "8", "--concurrency", "4", "--json"]
    process = subprocess.Popen(
        [*COMMAND, *words, "--output", "out"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    rollouts = tmp_path / "out" / "rollouts.jsonl"
    seen: set[int] = set()
    for killed, name in enumerate(("agent", "benchmark", "policy_mode"), 1):
        deadline = time.monotonic() + WAIT_SECONDS
        while not rollouts.exists() or rollouts.read_text().count("\n") < 8 * killed:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        seen |= {*servers_of(process.pid).values()}
        os.kill(servers_of(process.pid)[name], signal.SIGKILL)
    output, _ = process.communicate(timeout=WAIT_SECONDS)
    told = json.loads(output)
    assert (told["exit_code"], told["coverage"]["attempts"]["valid"]) == (0, 12 * 8)
    rows = [json.loads(line) for line in rollouts.read_text().splitlines()]
    assert len({(row["task_id"], row["attempt"]) for row in rows}) == len(rows) == 12 * 8
    failures = [json.loads(line) for line in (tmp_path / "out" / "failures.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in failures} <= {"server_unreachable", "session_lost"}
    assert not [pid for pid in seen if is_alive(pid)]


def servers_of(run: int) -> dict[str, int]:
    """The server processes of a run by instance; a name is cut as the kernel does."""

    def children(pid: int) -> list[int]:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    names = {
        pid: Path(f"/proc/{pid}/comm").read_text().strip() for nursery in children(run) for pid in children(nursery)
    }
    return {name.removeprefix("gym "): pid for pid, name in names.items()}
