"""Real runs with a task for each fault: servers in processes of their own, sandboxes, and a scripted policy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.e2e.fault_wire import BIND, KNOWN_AS, Wire, processes_of
from tests.launch.parts import assert_free
from tests.tools.fault_table import STEPS, Cell, Outcome

ROOT = Path(__file__).resolve().parents[2]
FoundT = TypeVar("FoundT")
RUN_SECONDS = 100
ORPHAN_SECONDS = 60
SERVERS = {
    "policy_model": "responses_api_models.embedded_model",
    "benchmark": "resources_servers.workspace_tasks",
    "agent": "responses_api_agents.simple_agent",
    "experiment": "environment_servers.single_agent_turn",
}
BENCHMARK = """
config_paths:
  - resources_servers/workspace_tasks/configs/workspace_tasks.yaml
policy_script: policy.jsonl
benchmark:
  _inherit_from: workspace_tasks_resources_server
  resources_servers:
    workspace_tasks:
      verifier_timeout_seconds: 5
      datasets:
        - {name: faults, type: benchmark, taskset: faults, jsonl_fpath: rows.jsonl}
"""
POLICY = [[{"call": "shell", "arguments": {"command": "echo kept >> note"}}], [{"say": "Done."}]]
TASK = {"test_script": '#!/bin/sh\n[ "$(cat note)" = kept ]'}
"""Work that was done twice in one sandbox earns nothing."""


@dataclass
class Project:
    """A project folder with one task for each cell, and the run directory in it."""

    folder: Path
    cells: dict[str, Cell]

    def sandboxes(self) -> list[str]:
        """The rollouts whose sandboxes are there."""
        found = []
        for path in (self.folder / "boxes").glob("*gym-*/sandbox.json"):
            try:
                found.append(json.loads(path.read_text())["labels"]["rollout"])
            except FileNotFoundError:
                continue
        return found

    def running(self, command: str) -> list[int]:
        """The processes that are a command."""
        said = command.encode().replace(b" ", b"\0")
        return [pid for pid in processes_of(said) if (Path("/proc") / str(pid) / "cmdline").read_bytes()[:-1] == said]

    def rows(self, name: str, output: str = "out") -> list[dict[str, Any]]:
        """The rows of a file of the run."""
        path = self.folder / output / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wire(self, *, faulty: bool = True) -> Wire:
        """Proxies for one start of the run."""
        return Wire(self.cells if faulty else {}, list(SERVERS), str(self.folder), self.sandboxes)


def project(folder: Path, cells: Iterable[Cell], policy: Sequence[Any] = POLICY, **params: Any) -> Project:
    """Writes the project. `policy` is what is done in each task; `params` go into the request of each."""
    (folder / "benchmarks" / "faults").mkdir(parents=True)
    (folder / "benchmarks" / "faults" / "benchmark.yaml").write_text(BENCHMARK)
    script = {"task": "note", "match": "Write a note", "turns": policy}
    (folder / "policy.jsonl").write_text(json.dumps(script) + "\n")
    made = Project(folder, {f"{cell.step}-{cell.fault}": cell for cell in cells})
    request = {"input": "Write a note.", **params}
    rows = [{"task_id": task, "responses_create_params": request, **TASK} for task in made.cells]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


async def run(made: Project, wire: Wire, *overrides: str, end: signal.Signals | None = None) -> int:
    """One start of the run behind its proxies, which listen; `end` is sent to it when everything is held.

    Returns:
        The exit code.
    """
    places = [f"{name}.{path}.port={wire.ports[name]}" for name, path in SERVERS.items()]
    settings = [f"bind_host={BIND}", f"default_host={KNOWN_AS}", "hosting=process", f"sandbox.root={made.folder}/boxes"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gym.run", "benchmark=faults", "output=out", *settings, *places, *overrides),
        cwd=made.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GYM_FAULTS": str(made.folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    saying = asyncio.ensure_future(process.communicate())
    held = asyncio.ensure_future(wire.all_held.wait())
    try:
        async with asyncio.timeout(RUN_SECONDS):
            await asyncio.wait({held, saying}, return_when=asyncio.FIRST_COMPLETED)
            if end is not None and not saying.done():
                process.send_signal(end)
            await asyncio.wait({saying})
    except TimeoutError:
        process.kill()
    held.cancel()
    said = (await saying)[0].decode()
    assert process.returncode in (0, 1, 130, -9 if end == signal.SIGKILL else 0), said
    assert "Traceback" not in said
    return process.returncode


@asynccontextmanager
async def serving(made: Project) -> AsyncIterator[None]:
    """Keeps the servers of the project, in processes of their own."""
    async with _command(made, "env", "start", *_settings(made)) as process:
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"http://")
        yield
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


def using(made: Project, output: str, tries: int) -> AbstractAsyncContextManager[Process]:
    """A run on servers that are kept."""
    words = ("--no-serve", "--output", output, "--max-attempts", str(tries))
    return _command(made, "eval", "run", *words, *_settings(made))


def _settings(made: Project) -> list[str]:
    return ["benchmark=faults", "hosting=process", f"sandbox.root={made.folder}/boxes"]


@asynccontextmanager
async def _command(made: Project, *words: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gym.cli.main", *words),
        cwd=made.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GYM_FAULTS": str(made.folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until(check: Callable[[], FoundT]) -> FoundT:
    """Waits for something outside that tells nobody, and returns it."""
    async with asyncio.timeout(RUN_SECONDS):
        while not (found := check()):
            await asyncio.sleep(0.01)
    return found


def seen(made: Project, asked: Counter[Any]) -> dict[Cell, Outcome]:
    """What the run's files say of each cell; each task is in them exactly once."""
    rewards, failures = made.rows("rollouts.jsonl"), made.rows("failures.jsonl")
    ended = Counter(row["task_id"] for row in [*rewards, *(row for row in failures if row["terminal"])])
    assert ended == Counter(list(made.cells))
    assert {row["reward"] for row in rewards} <= {1.0}
    assert len({(row["task_id"], row["try"]) for row in [*rewards, *failures]}) == len(rewards) + len(failures)
    first = {row["task_id"]: row for row in failures if row["try"] == 0}
    assert len(first) == len(failures)
    return {
        cell: _outcome(cell, first.get(task), asked[cell.step, f"faults.{task}.0"]) for task, cell in made.cells.items()
    }


def _outcome(cell: Cell, failure: dict[str, Any] | None, asked: int) -> Outcome:
    if failure is None:
        return Outcome("asked again" if asked > 1 else "reward")
    assert failure["stage"] == STEPS[cell.step].stage
    return Outcome("failed" if failure["terminal"] else "tried again", failure["kind"])


def assert_nothing_left(made: Project, *wires: Wire) -> None:
    """No sandbox, no process and no port."""
    assert made.sandboxes() == []
    assert processes_of(str(made.folder).encode()) == []
    for wire in wires:
        for port in wire.ports.values():
            assert_free(f"http://{BIND}:{port}")


async def all_ended(made: Project) -> None:
    """Waits until the processes of a killed run have ended by themselves."""
    async with asyncio.timeout(ORPHAN_SECONDS):
        await until(lambda: not processes_of(str(made.folder).encode()))
