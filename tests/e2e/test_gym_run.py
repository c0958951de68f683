"""`python -m gym.run` as a user types it, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def gym_run(
    *arguments: str, cwd: Path, check: int | None = 0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-m", "gym.run", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert check is None or run.returncode == check, run.stdout + run.stderr
    return run


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "rollouts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def onboarding(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    cwd = tmp_path_factory.mktemp("onboarding")
    return cwd, gym_run("+experiment=onboarding", cwd=cwd)


def test_onboarding_ends_with_a_table_and_the_path_of_its_results(onboarding) -> None:
    cwd, run = onboarding
    (path,) = (cwd / "results" / "onboarding").iterdir()
    assert (
        f"results         results/onboarding/{path.name}" in " ".join(run.stdout.split("\n")) or path.name in run.stdout
    )
    assert "12 of 12 tasks, 12 of 12 attempts" in run.stdout
    rewards = {row["task_id"]: row["reward"] for row in rows(path)}
    assert len(rewards) == 12
    assert sorted(rewards.values()) == [0.0] + [1.0] * 11
    assert rewards["count-words"] == 0.0
    assert "reward 0" in run.stderr
    assert "sandbox: " in run.stderr


def test_a_row_has_what_the_contract_says(onboarding) -> None:
    cwd, _ = onboarding
    (path,) = (cwd / "results" / "onboarding").iterdir()
    for row in rows(path):
        assert {"rollout_id", "task_id", "taskset", "attempt", "reward", "response", "usage", "timings"} <= set(row)
        assert {"seed_resources", "agent", "verification", "total"} <= set(row["timings"])
    assert (path / "rollouts" / "preprocessed_datasets" / "benchmark.jsonl").is_file()
    metrics = json.loads((path / "metrics.json").read_text())
    assert metrics["mean_reward"] == pytest.approx(11 / 12)
    (segment,) = json.loads((path / "provenance.json").read_text())["segments"]
    assert segment["command"][-1] == "+experiment=onboarding"


BEST = """
    from resources_servers.example_session_state_mgmt.app import ExampleSessionStateMgmt


    class Best(ExampleSessionStateMgmt):
        def aggregate_metrics(self, rows):
            assert all("response" not in row for row in rows), "too much is sent"
            return {"best": max(row["reward"] for row in rows), "verdicts": len(rows)}
    """


def test_a_verifier_with_metrics_of_its_own_is_asked_for_them(project) -> None:
    cwd = project({"resources_servers/best/app.py": BEST})
    target = "++counter.resources_servers.example_session_state_mgmt._target_=resources_servers.best.app.Best"
    run = gym_run("+experiment=onboarding", target, "output=out", cwd=cwd)
    assert "counter says   best 1.0000, verdicts 4\n" in run.stdout
    metrics = json.loads((cwd / "out" / "metrics.json").read_text())
    assert metrics["verifier_metrics"] == {"counter": {"best": 1.0, "verdicts": 4}}


def test_a_finished_run_is_left_alone(onboarding) -> None:
    cwd, _ = onboarding
    (path,) = (cwd / "results" / "onboarding").iterdir()
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    gym_run("+experiment=onboarding", f"output={path}", cwd=cwd)
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == before


def test_more_repeats_run_only_what_is_owed(tmp_path) -> None:
    common = ("+experiment=onboarding", "limit=2", "output=out")
    gym_run(*common, cwd=tmp_path)
    before = (tmp_path / "out" / "rollouts.jsonl").read_bytes()
    gym_run(*common, "num_repeats=3", cwd=tmp_path)
    after = (tmp_path / "out" / "rollouts.jsonl").read_bytes()
    assert after.startswith(before)
    assert len(rows(tmp_path / "out")) == 6
    assert len(json.loads((tmp_path / "out" / "provenance.json").read_text())["segments"]) == 2


def test_a_changed_configuration_is_refused_with_the_difference(tmp_path) -> None:
    common = ("+experiment=onboarding", "limit=1", "output=out")
    gym_run(*common, cwd=tmp_path)
    run = gym_run(*common, "agent.responses_api_agents.simple_agent.max_steps=7", cwd=tmp_path, check=2)
    assert "max_steps" in run.stderr
    assert "was 30" in run.stderr
    assert "now 7" in run.stderr
    assert "Traceback" not in run.stderr
    gym_run(*common, "concurrency=3", cwd=tmp_path)
    gym_run(*common, "agent.responses_api_agents.simple_agent.max_steps=7", "overwrite=true", cwd=tmp_path)
    assert (tmp_path / "out" / "previous-1" / "rollouts.jsonl").is_file()


def test_two_runs_in_one_second_never_share_a_directory(tmp_path) -> None:
    command = [sys.executable, "-m", "gym.run", "+experiment=onboarding", "limit=1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [
        subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in "ab"
    ]
    assert [run.communicate(timeout=120) and run.returncode for run in both] == [0, 0]
    assert len(list((tmp_path / "results" / "onboarding").iterdir())) == 2


def test_wrong_input_leaves_no_directory_behind(tmp_path) -> None:
    run = gym_run("+experiment=onbording", "concurency=3", cwd=tmp_path, check=2)
    assert "closest: `onboarding`" in run.stderr
    assert "closest: `concurrency`" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "results").exists()


SLOW = """
from gym.servers.model import ModelServer
import asyncio
from pathlib import Path

class Slow(ModelServer):
    scripted = True

    async def respond(self, request, call):
        Path("asked").touch()
        await asyncio.sleep(600)
"""

DONE = """
from gym.apis.responses import ResponsesResponse, message
from gym.servers.model import ModelServer

class Slow(ModelServer):
    scripted = True

    async def respond(self, request, call):
        return ResponsesResponse(output=[message("assistant", "done")])
"""


def make_experiment(cwd: Path, name: str, model: str) -> None:
    """The onboarding experiment with another model provider, as an experiment of its own."""
    folder = cwd / "experiments" / name
    folder.mkdir(parents=True)
    mine = f"experiments/{name}/model-provider.yaml"
    text = (ROOT / "experiments/onboarding/run.yaml").read_text()
    (folder / "run.yaml").write_text(text.replace("experiments/onboarding/model-provider.yaml", mine))
    (folder / "model-provider.yaml").write_text(f"policy_model: {{responses_api_models: {model}}}\n")


def wait_for(check, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def hanging(tmp_path):
    """The onboarding with a model that never answers, running."""
    (tmp_path / "slow.py").write_text(SLOW)
    make_experiment(tmp_path, "hang", "{slow: {_target_: slow.Slow}}")
    run = subprocess.Popen(
        [sys.executable, "-m", "gym.run", "+experiment=hang", "output=out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: (tmp_path / "asked").exists() or run.poll() is not None)
    yield tmp_path, run
    if run.poll() is None:
        run.kill()
    if run.stdout is not None and not run.stdout.closed:
        run.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cleans_up_and_exits_130(hanging, number) -> None:
    cwd, run = hanging
    run.send_signal(number)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert "never retrieved" not in err
    assert "0 of 12 tasks" in out
    metrics = json.loads((cwd / "out" / "metrics.json").read_text())
    assert (metrics["stop_reason"], metrics["usage"]["model_calls"] > 0) == ("interrupted", True)
    assert list(cwd.glob("gym-sandboxes-*/gym-*")) == []


def test_what_was_interrupted_continues(hanging) -> None:
    cwd, run = hanging
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)
    (cwd / "slow.py").write_text(DONE)
    again = gym_run(
        "+experiment=hang", "output=out", cwd=cwd, env={"PYTHONPATH": os.pathsep.join([str(cwd), str(ROOT)])}
    )
    assert "12 of 12 tasks" in again.stdout


def test_a_killed_run_continues_without_loss_or_repeat(hanging) -> None:
    cwd, run = hanging
    run.kill()
    run.communicate()
    (cwd / "slow.py").write_text(SLOW.replace("await asyncio.sleep(600)", "raise RuntimeError('boom')"))
    again = gym_run(
        "+experiment=hang", "output=out", "max_attempts=1", cwd=cwd, check=1,
        env={"PYTHONPATH": os.pathsep.join([str(cwd), str(ROOT)])},
    )  # fmt: skip
    assert "12 attempts failed" in again.stdout
    assert "Traceback" not in again.stderr


def test_hydras_own_views_work_on_the_same_composition(tmp_path) -> None:
    shown = gym_run("+experiment=onboarding", "--cfg", "job", cwd=tmp_path).stdout
    assert "counter_experiment:" in shown
    tree = gym_run("+experiment=onboarding", "agent=simple", "--info", "defaults-tree", cwd=tmp_path).stdout
    assert "agent: simple" in tree
    offered = gym_run("-sc", "query=bash", cwd=tmp_path, env={"COMP_LINE": "gym.run agent=", "COMP_POINT": "14"}).stdout
    assert "agent=simple" in offered


POLICIES = """
import os
from gym.apis.responses import ResponsesResponse, message
from gym.servers.model import ModelServer, ModelServerConfig
from pydantic import Field

BEHAVIOUR = {("a", 0): 1.0, ("a", 1): 1.0, ("c", 0): 1.0, ("b", 0): "boom-b0", ("b", 1): "boom-b1", ("c", 1): "kill"}

class PointConfig(ModelServerConfig):
    model: str = Field("a", description="Name.")
    seed: int = Field(0, description="Seed.")

class Point(ModelServer):
    config_type = PointConfig
    scripted = True

    async def start(self):
        does = BEHAVIOUR[self.config.model, self.config.seed]
        if does == "kill":
            os.kill(os.getpid(), 9)
        if isinstance(does, str) and not os.environ.get("HEALED"):
            raise ValueError(does)

    async def respond(self, request, call):
        return ResponsesResponse(output=[message("assistant", "done")])
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("sweep")
    (cwd / "point.py").write_text(POLICIES)
    make_experiment(cwd, "points", "{point: {_target_: point.Point, model: a, seed: 0}}")
    return cwd


def swept(cwd: Path, *extra: str, check: int, **env: str) -> subprocess.CompletedProcess[str]:
    return gym_run(
        "-m", "+experiment=points", "limit=1", *extra,
        "policy_model.responses_api_models.point.model=a,b,c", "policy_model.responses_api_models.point.seed=0,1",
        cwd=cwd, check=check, env={"PYTHONPATH": os.pathsep.join([str(cwd), str(ROOT)]), **env},
    )  # fmt: skip


def test_a_sweep_survives_points_that_fail(sweep) -> None:
    """Case 05: every point is tried, failures are shown at once and in the table, the rest is left as it was."""
    run = swept(sweep, "output=out", check=1)
    lines = [line.split() for line in run.stdout.splitlines() if line[:1] in "abc" and line[1:2] == " "]
    status = {(line[0], line[1]): (line[2], *(["killed"] if "worker_killed:" in line else [])) for line in lines}
    assert status == {
        ("a", "0"): ("finished",),
        ("a", "1"): ("finished",),
        ("b", "0"): ("failed",),
        ("b", "1"): ("failed",),
        ("c", "0"): ("finished",),
        ("c", "1"): ("failed", "killed"),
    }
    assert "ValueError: boom-b0" in run.stdout
    assert "signal 9" in run.stdout
    assert "finished     3 of 6 points" in run.stdout
    assert "Traceback" not in run.stderr
    assert "ValueError: boom-b1" in (sweep / "out" / "model=b,seed=1" / "run.log").read_text()
    kept = {path: path.read_bytes() for path in (sweep / "out").glob("model=a*/*") if path.is_file()}
    again = swept(sweep, "output=out", check=1, HEALED="1")
    assert "finished     5 of 6 points" in again.stdout
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_sweep_can_stop_at_the_first_failure(sweep) -> None:
    run = swept(sweep, "output=stopped", "fail_fast=true", check=1)
    assert run.stdout.count("not_started") == 3


def test_no_point_starts_when_one_is_wrong(sweep) -> None:
    run = gym_run(
        "-m", "+experiment=points", "agent=simple,simpel", "output=none", cwd=sweep, check=2,
        env={"PYTHONPATH": os.pathsep.join([str(sweep), str(ROOT)])},
    )  # fmt: skip
    assert "[agent=simpel] no agent `simpel`; closest: `simple`" in run.stderr
    assert not (sweep / "none").exists()


def test_swapping_any_part_by_name(tmp_path) -> None:
    run = gym_run(
        "-m",
        "+experiment=onboarding",
        "agent=onboarding,simple",
        "benchmark=onboarding",
        "limit=1",
        "output=out",
        cwd=tmp_path,
    )
    assert "finished     2 of 2 points" in run.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["agent=onboarding", "agent=simple"]


def test_the_user_sees_the_endpoints_own_words(tmp_path) -> None:
    """A refused key stops the run early, with the provider's text."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = b'{"error": {"message": "no such key, ask the admin"}}'
            self.send_response(401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        run = gym_run(
            "+experiment=onboarding", "model-provider=vllm", f"policy_base_url=http://127.0.0.1:{server.server_port}/v1",
            "policy_model_name=m", "policy_api_key=sk-very-secret-1", "sandbox.allow_unisolated=true", "concurrency=1",
            "output=out", cwd=tmp_path, check=1,
        )  # fmt: skip
        server.shutdown()
    assert "provider_refused" in run.stderr
    assert "no such key, ask the admin" in run.stderr
    assert "stopped early: 3 episodes in a row" in run.stderr
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or b"sk-very-secret-1" not in path.read_bytes(), path
    assert "sk-very-secret-1" not in run.stdout + run.stderr


ODD_VERDICT = """
    from gym.servers.contract import VerifyResponse
    from resources_servers.example_session_state_mgmt.app import ExampleSessionStateMgmt


    class Odd(ExampleSessionStateMgmt):
        async def verify(self, session, request):
            said = f"{self.config.description} gym-abc.{'0' * 64} {self.context.client.token}"
            if session.task_id.task_id == "double-it":
                raise RuntimeError(said)
            return VerifyResponse.model_validate({"reward": 1.0, "task_id": "evil", "attempt": 5, "said": said})
    """


def test_a_verdict_is_no_ones_identity_and_tells_no_secret(project) -> None:
    cwd = project({"resources_servers/odd/app.py": ODD_VERDICT})
    block = "counter.resources_servers.example_session_state_mgmt"
    target = f"++{block}._target_=resources_servers.odd.app.Odd"
    words = ("+experiment=onboarding", target, f"++{block}.description=${{oc.env:HIDDEN_TOKEN}}", "max_attempts=1")
    run = gym_run(*words, "output=out", cwd=cwd, check=1, env={"HIDDEN_TOKEN": "SECRET-7777"})
    kept = [row for row in rows(cwd / "out") if row["taskset"] == "counter"]
    assert sorted(row["task_id"] for row in kept) == ["add-two-numbers", "count-down", "reach-a-target"]
    assert kept[0]["verdict"] == {"task_id": "evil", "attempt": 5}
    assert kept[0]["said"] == "*** *** ***"
    assert "RuntimeError: *** *** ***" in run.stderr
    everything = run.stdout + run.stderr + "".join(path.read_text() for path in (cwd / "out").glob("*.*"))
    assert "SECRET-7777" not in everything
    assert "gym-abc" not in everything


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_no_bound_is_infinite(tmp_path, value: str) -> None:
    key = "counter_experiment.environment_servers.single_agent_turn.default_episode_timeout_seconds"
    run = gym_run("+experiment=onboarding", f"++{key}={value}", cwd=tmp_path, check=2)
    assert f"command line: ++{key}={value}" in run.stderr
    assert "Traceback" not in run.stderr


def test_what_an_agent_did_before_its_episode_failed_is_kept(tmp_path) -> None:
    line = {"task": "any", "match": " ", "turns": [[{"call": "shell", "arguments": {"command": "echo seen"}}]]}
    (tmp_path / "once.jsonl").write_text(json.dumps(line))
    words = ("+experiment=onboarding", "limit=1", "max_attempts=1", "policy_script=once.jsonl", "output=out")
    gym_run(*words, cwd=tmp_path, check=1)
    (failed,) = [json.loads(row) for row in (tmp_path / "out/failures.jsonl").read_text().splitlines()]
    assert failed["kind"] == "script_exhausted"
    assert failed["ng_agent_observations"]["counters"]["tool_calls"] == 1
