"""Servers that go away while a run uses them: it stops with the reason, and goes on when they are there again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import COMMAND, ROOT, environment, gym
from tests.e2e.test_gym_run import make_experiment

WAIT_SECONDS = 60
EXPERIMENT = ("+experiment=gate", "sandbox.allow_unisolated=true")
GATE = """
import asyncio
from pathlib import Path

from gym.apis.responses import ResponsesResponse, message
from gym.servers.model import ModelServer

class Gate(ModelServer):
    scripted = True

    async def respond(self, request, call):
        Path("asked").touch()
        while not Path("open").exists():
            await asyncio.sleep(0.01)
        return ResponsesResponse(output=[message("assistant", "done")])
"""


@contextmanager
def command(cwd: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A `gym` command that runs meanwhile."""
    path = os.pathsep.join([str(cwd), str(ROOT)])
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=cwd,
        env=environment({"PYTHONPATH": path}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=WAIT_SECONDS)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("how", "hosting"), [("stopped", "in_process"), ("stopped", "process"), ("killed", "process")])
def test_a_run_stops_and_goes_on_when_they_are_back(how: str, hosting: str, tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    make_experiment(tmp_path, "gate", "{gate: {_target_: gate.Gate}}")
    start = ("env", "start", *EXPERIMENT, f"hosting={hosting}")
    run = ("eval", "run", "--no-serve", *EXPERIMENT, "--concurrency", "4", "--output", "out")
    with command(tmp_path, *start) as servers:
        assert servers.stdout is not None
        assert servers.stdout.readline().startswith("http://")
        with command(tmp_path, *run) as running:
            wait_for(tmp_path / "asked", running)
            servers.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
            _, errors = running.communicate(timeout=WAIT_SECONDS)
    assert running.returncode == 1
    assert "stopped early: " in errors
    assert " is gone (" in errors
    assert not [path for path in (tmp_path / "out").glob("*.jsonl") if path.read_text()]
    (tmp_path / "open").touch()
    with command(tmp_path, *start) as servers:
        assert servers.stdout is not None
        assert servers.stdout.readline().startswith("http://")
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        again = gym(*run, cwd=tmp_path, env={"PYTHONPATH": path})
    assert "12 of 12 tasks" in again.stdout
