"""Measures whole commands as a user runs them: CPU time, time to the first rollout, episodes a second, memory.

    python tests/performance/command_line.py [--rounds 5] [--tasks 3000]

Prints a Markdown table of medians and ranges. It asserts nothing. PYTHONDONTWRITEBYTECODE is removed from the
environment of what is measured: with it, imports cost two to three times as much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = """
config_paths:
  - resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
policy_script: policy.jsonl
benchmark:
  _inherit_from: example_session_state_mgmt_resources_server
  resources_servers:
    example_session_state_mgmt:
      datasets:
        - {name: perf, type: benchmark, taskset: perf, jsonl_fpath: rows.jsonl}
"""
TASK = {"responses_create_params": {"input": "Add three to the counter."}, "initial_count": 1, "expected_count": 4}
POLICY = {
    "task": "add",
    "match": "Add three",
    "turns": [[{"call": "increment_counter", "arguments": {"count": 3}}], [{"say": "Done."}]],
}


def measured(arguments: Sequence[str], cwd: Path) -> tuple[float, float, int]:
    """Runs a command once: wall seconds, CPU seconds, peak memory in KiB."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def project(folder: Path, tasks: int) -> None:
    """Writes a benchmark of counter tasks, one tool call each."""
    (folder / "benchmarks" / "perf").mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks" / "perf" / "benchmark.yaml").write_text(BENCHMARK)
    rows = (json.dumps({"task_id": f"t{index}", **TASK}) for index in range(tasks))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "policy.jsonl").write_text(json.dumps(POLICY) + "\n")


def first_rollout(folder: Path) -> float:
    """Seconds from the start of the onboarding command to its first finished rollout."""
    output = folder / f"first-{time.time_ns()}"
    begun = time.time()
    measured(["-m", "gym.run", "+experiment=onboarding", f"output={output}"], folder)
    rows = map(json.loads, (output / "rollouts.jsonl").read_text().splitlines())
    return float(min(row["started_at"] + row["timings"]["total"] for row in rows) - begun)


def episodes(folder: Path, concurrency: int, tasks: int) -> float:
    """Episodes a second of a whole run, from its first start of an episode to its last end."""
    output = folder / f"run-{time.time_ns()}"
    measured(["-m", "gym.run", "benchmark=perf", f"concurrency={concurrency}", f"output={output}"], folder)
    rows = list(map(json.loads, (output / "rollouts.jsonl").read_text().splitlines()))
    assert len(rows) == tasks
    ends = [row["started_at"] + row["timings"]["total"] for row in rows]
    return float(tasks / (max(ends) - min(row["started_at"] for row in rows)))


def memory(folder: Path, tasks: int, concurrency: int = 64) -> float:
    """Peak memory of a run with many queued tasks, in MiB."""
    project(folder, tasks)
    output = folder / f"memory-{time.time_ns()}"
    return (
        measured(["-m", "gym.run", "benchmark=perf", f"concurrency={concurrency}", f"output={output}"], folder)[2]
        / 1024
    )


def line(name: str, measure: Callable[[], float], rounds: int, unit: str) -> None:
    """Prints one row of the table: median, and range."""
    values = [measure() for _ in range(rounds)]
    print(f"| {name} | {statistics.median(values):.3g} {unit} | {min(values):.3g} to {max(values):.3g} |", flush=True)


def main() -> None:
    """Measures everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=3000)
    options = parser.parse_args()
    print(f"load average at start: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    print(f"| what | median of {options.rounds} | range |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, options.tasks)
        resolve = ["-m", "gym.cli.main", "env", "resolve", "+experiment=onboarding"]
        line("`gym --help`, CPU", lambda: measured(["-m", "gym.cli.main", "--help"], folder)[1], options.rounds, "s")
        line("`gym env resolve`, CPU", lambda: measured(resolve, folder)[1], options.rounds, "s")
        line("`gym env resolve`, wall", lambda: measured(resolve, folder)[0], options.rounds, "s")
        line("onboarding, to the first rollout", lambda: first_rollout(folder), options.rounds, "s")
        for concurrency in (1, 64, 512):
            measure = partial(episodes, folder, concurrency, options.tasks)
            line(f"episodes a second, concurrency {concurrency}", measure, options.rounds, "/s")
        for tasks in (100, 10_000):
            line(f"peak memory, {tasks} tasks", partial(memory, folder, tasks), 1, "MiB")


if __name__ == "__main__":
    main()
