"""What harnesses cost side by side: `python -m tests.performance.harness_many [--agents codex,pi] [--at-once 16]`.

The onboarding tasks with a shell, as many episodes as run at once, in local sandboxes with a scripted model. Memory is
the highest sum of the proportional set sizes of the run and all that it started. CPU is that of the whole machine
meanwhile, for sandboxed processes are nobody's children: keep it idle.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TASKS = 8


def descendants(pid: int) -> list[int]:
    """A process and all that came of it."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            left += map(int, path.read_text().split())
    return found


def memory(pid: int) -> float:
    """MiB of a tree of processes, shared pages counted once."""
    total = 0
    for one in descendants(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended meanwhile
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def busy() -> float:
    """Seconds that all cores have worked since the machine started."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split(maxsplit=4)[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def measure(agent: str, at_once: int) -> str:
    """One line of the table."""
    words = ["+experiment=onboarding", f"agent={agent}", f"num_repeats={at_once // TASKS}", f"concurrency={at_once}"]
    only = "++limit=8"
    with tempfile.TemporaryDirectory() as folder:
        begun, before = time.perf_counter(), busy()
        command = [sys.executable, "-m", "gym.run", *words, only, "output=out"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        run = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        highest = 0.0
        while run.poll() is None:
            try:
                highest = max(highest, memory(run.pid))
            except OSError:
                continue
            time.sleep(0.2)
        seconds, cpu = time.perf_counter() - begun, busy() - before
        rows = len((Path(folder) / "out/rollouts.jsonl").read_text().splitlines())
    each = f"{cpu / rows:>8.2f} s {highest:>8.0f} MiB {highest / at_once:>8.0f} MiB"
    return f"{agent:>12} {rows:>9} {seconds:>8.1f} s {each}"


def run() -> None:
    """Entry of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", default="simple,codex,mini_swe,pi,claude_code,opencode")
    parser.add_argument("--at-once", type=int, default=16)
    arguments = parser.parse_args()
    print("       agent  rollouts        all   CPU each    memory all      each")
    for agent in arguments.agents.split(","):
        print(measure(agent, arguments.at_once), flush=True)


if __name__ == "__main__":
    run()
