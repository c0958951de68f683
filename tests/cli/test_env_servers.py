"""`gym env start`, `status`, `stop`, and `gym eval run --no-serve` on what runs."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import COMMAND, environment, gym

EXPERIMENT = ("+experiment=onboarding", "sandbox.allow_unisolated=true")


def start(cwd: Path, *arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Starts servers, and waits for what they print when they run."""
    process = subprocess.Popen(
        [*COMMAND, "env", "start", *EXPERIMENT, *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, [process.stdout.readline().strip() for _ in range(6)]


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Sends a signal; the exit code and what was written to stderr."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    cwd = tmp_path_factory.mktemp("servers")
    process, lines = start(cwd)
    yield cwd, lines
    if process.poll() is None:
        end(process, signal.SIGTERM)
    process.communicate()


def test_a_line_an_instance_and_a_file_for_this_user_alone(running) -> None:
    cwd, lines = running
    assert [line.split()[1:] for line in lines if "/counter " in line] == [
        ["resources_servers", "example_session_state_mgmt"]
    ]
    file = cwd / ".gym" / "servers.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    told = json.loads(file.read_text())
    assert lines[0].startswith(told["base_url"])
    assert told["token"] not in " ".join(lines)


def test_status_says_that_all_are_up_and_never_tells_the_token(running) -> None:
    cwd, _ = running
    told = json.loads((cwd / ".gym" / "servers.json").read_text())
    run = gym("env", "status", "--json", cwd=cwd)
    assert told["token"] not in run.stdout
    assert json.loads(run.stdout)["answers"] == dict.fromkeys(told["instances"], True)
    table = gym("env", "status", cwd=cwd).stdout.splitlines()
    assert all(line.endswith("  up") for line in table[1:])


def test_a_second_start_is_refused(running) -> None:
    cwd, _ = running
    assert "servers run here already" in gym("env", "start", *EXPERIMENT, cwd=cwd, code=2).stderr


def test_a_run_uses_the_servers(running) -> None:
    cwd, _ = running
    run = gym("eval", "run", "--no-serve", *EXPERIMENT, "--limit", "6", "--output", "out", "--json", cwd=cwd)
    told = json.loads(run.stdout)
    assert (told["exit_code"], told["coverage"]["attempts"]["valid"]) == (0, 6)
    rows = [json.loads(line) for line in (cwd / "out" / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 6


def test_what_the_servers_keep_is_told_once(running) -> None:
    cwd, _ = running
    limit = "++counter_experiment.environment_servers.single_agent_turn.max_concurrent_episodes"
    words = ["--no-serve", *EXPERIMENT, "--limit", "1", "--output", "kept"]
    same = gym("eval", "run", *words, cwd=cwd)
    assert "running servers keep" not in same.stderr
    run = gym("eval", "run", *words, "capture=false", f"{limit}=2", "--overwrite", cwd=cwd)
    (line,) = (line for line in run.stderr.splitlines() if line.startswith("the running servers keep"))
    assert line == (
        "the running servers keep what they were started with: capture (running: (not set), asked for: false), "
        f"{limit.removeprefix('++')} (running: null, asked for: 2)"
    )


def test_a_wrong_token_stops_a_run_with_the_reason(running) -> None:
    cwd, _ = running
    file = cwd / ".gym" / "servers.json"
    right = file.read_text()
    file.write_text(json.dumps({**json.loads(right), "token": "another"}))
    words = ["--no-serve", *EXPERIMENT, "--concurrency", "1", "--output", "wrong"]
    run = gym("eval", "run", *words, cwd=cwd, code=1)
    file.write_text(right)
    assert "stopped early: 3 episodes in a row failed with configuration" in run.stderr
    assert "answered 401: " in run.stderr
    assert "the token of other servers: stop these, and start them again" in run.stderr
    rows = [json.loads(line) for line in (cwd / "wrong" / "failures.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["try"]) for row in rows] == [("configuration", 0)] * 3


def test_a_run_of_another_configuration_is_refused_with_what_differs(running) -> None:
    cwd, _ = running
    steps = "agent.responses_api_agents.simple_agent.max_steps"
    run = gym("eval", "run", "--no-serve", *EXPERIMENT, f"{steps}=3", "--output", "other", cwd=cwd, code=2)
    assert run.stderr.splitlines()[-2:] == [
        ".gym/servers.json  the running servers have another configuration; give both commands the same "
        "configuration, or start the servers again",
        f"{steps}  running: 30  wanted: 3",
    ]
    assert not (cwd / "other").exists()


def test_stop_waits_until_they_are_gone(running) -> None:
    cwd, _ = running
    pid = json.loads((cwd / ".gym" / "servers.json").read_text())["pid"]
    assert json.loads(gym("env", "stop", "--json", cwd=cwd).stdout) == {"outcome": "stopped", "pid": pid}
    assert not (cwd / ".gym" / "servers.json").exists()
    assert json.loads(gym("env", "status", "--json", cwd=cwd, code=1).stdout) == {"running": False}
    assert "no servers run in this folder" in gym("env", "stop", cwd=cwd).stderr


def test_without_servers_a_run_that_needs_them_is_refused(tmp_path) -> None:
    run = gym("eval", "run", "--no-serve", *EXPERIMENT, cwd=tmp_path, code=2)
    assert "no servers run in this folder; start them with `gym env start`" in run.stderr
    assert not (tmp_path / "results").exists()


def test_an_interrupt_stops_them_in_order(tmp_path) -> None:
    process, lines = start(tmp_path)
    assert all(line.startswith("http://127.0.0.1:") for line in lines)
    code, errors = end(process, signal.SIGINT)
    assert (code, errors.splitlines()[-1]) == (0, "stopped")
    assert not (tmp_path / ".gym" / "servers.json").exists()


def test_what_a_killed_process_left_is_seen_and_replaced(tmp_path) -> None:
    killed, _ = start(tmp_path)
    end(killed, signal.SIGKILL)
    assert f"process {killed.pid} is gone" in gym("env", "status", cwd=tmp_path, code=1).stderr
    again, lines = start(tmp_path)
    assert lines[0].startswith("http://")
    assert end(again, signal.SIGTERM)[0] == 0


def test_a_process_that_only_has_the_number_is_left_alone(tmp_path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        state = {"pid": other.pid, "ticks": 1, "started_at": "", "base_url": "http://127.0.0.1:1", "token": "t"}
        (tmp_path / ".gym").mkdir()
        (tmp_path / ".gym" / "servers.json").write_text(
            json.dumps({**state, "instances": {}, "identity": {}, "digest": ""})
        )
        assert json.loads(gym("env", "stop", "--json", cwd=tmp_path).stdout)["outcome"] == "was gone already"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_file_that_is_no_state_is_told(tmp_path) -> None:
    (tmp_path / ".gym").mkdir()
    (tmp_path / ".gym" / "servers.json").write_text("{")
    assert ".gym/servers.json  cannot be read: " in gym("env", "stop", cwd=tmp_path, code=2).stderr
