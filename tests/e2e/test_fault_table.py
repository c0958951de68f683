"""Each fault in each step of an episode, in real runs: it ends as docs/faults.md says, and nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fault_run import (
    ROOT,
    Project,
    all_ended,
    assert_nothing_left,
    project,
    run,
    seen,
    serving,
    until,
    using,
)
from tests.e2e.fault_wire import server_processes
from tests.tools import fault_table
from tests.tools.fault_table import CONTINUED, EXPECTED, STEPS, Cell, Fault, Outcome

pytestmark = pytest.mark.e2e

EXPERIMENT = "experiment.environment_servers.single_agent_turn"
SHORT = (f"{EXPERIMENT}.default_episode_timeout_seconds=12", f"{EXPERIMENT}.cleanup_timeout_seconds=3")
PATIENT = (f"{EXPERIMENT}.default_episode_timeout_seconds=40", f"{EXPERIMENT}.cleanup_timeout_seconds=10")
"""Bounds that a busy machine keeps, for runs in which nothing may fail."""
SLEEP = f"sleep 600.{os.getpid()}"
GROUPS: dict[tuple[Fault, ...], tuple[str, ...]] = {
    ("dropped_before", "dropped_after", "error", "malformed"): ("concurrency=8",),
    ("killed",): ("concurrency=1",),
    ("late",): SHORT,
}
"""Faults that share a run, and how it is run: a killed server must not take the sessions of others with it."""


def expected(*faults: Fault) -> dict[Cell, Outcome]:
    return {cell: outcome for cell, outcome in EXPECTED.items() if cell.fault in faults}


@pytest.mark.parametrize("faults", GROUPS, ids="-".join)
async def test_an_episode_ends_as_the_table_says(faults: tuple[Fault, ...], tmp_path: Path) -> None:
    params: dict[str, Any] = {"metadata": {"agent_timeout_sec": "5"}} if "late" in faults else {}
    made = project(tmp_path, expected(*faults), **params)
    wire = made.wire()
    async with wire.listening():
        code = await run(made, wire, *GROUPS[faults])
    outcomes = seen(made, wire.asked)
    assert outcomes == expected(*faults)
    assert code == any(outcome.how == "failed" for outcome in outcomes.values())
    assert_nothing_left(made, wire)
    # What a dead server owned is swept meanwhile; everything else is freed before the next try begins.
    swept = {f"faults.{task}.0-a1" for task, cell in made.cells.items() if STEPS[cell.step].server == "benchmark"}
    assert wire.left - (swept if "killed" in faults else set()) == set()


def assert_continued(made: Project) -> None:
    """Everything has a reward, in its first try."""
    assert dict.fromkeys(made.cells.values(), CONTINUED) == expected(*{cell.fault for cell in made.cells.values()})
    assert made.rows("failures.jsonl") == []
    rows = made.rows("rollouts.jsonl")
    assert sorted((row["task_id"], row["try"], row["reward"]) for row in rows) == [
        (task, 0, 1.0) for task in sorted(made.cells)
    ]


async def test_an_interrupted_run_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    made = project(tmp_path, expected("interrupted"))
    wire, again = made.wire(), made.wire(faulty=False)
    async with wire.listening():
        assert await run(made, wire, *PATIENT, end=signal.SIGINT) == 130
    assert made.rows("rollouts.jsonl") == made.rows("failures.jsonl") == []
    assert_nothing_left(made, wire)
    async with again.listening():
        assert await run(made, again, *PATIENT) == 0
    assert_continued(made)
    assert_nothing_left(made, again)


async def test_a_killed_run_is_started_again_at_once(tmp_path: Path) -> None:
    made = project(tmp_path, expected("run_killed"))
    wire, again = made.wire(), made.wire(faulty=False)
    async with wire.listening(), again.listening():
        await run(made, wire, *PATIENT, end=signal.SIGKILL)
        assert made.rows("rollouts.jsonl") == made.rows("failures.jsonl") == []
        assert await run(made, again, *PATIENT) == 0
        await all_ended(made)
    assert_continued(made)
    assert_nothing_left(made, wire, again)


async def test_a_try_that_is_lost_leaves_nothing_in_servers_that_go_on(tmp_path: Path) -> None:
    made = project(tmp_path, [Cell("run", "killed")], policy=[[{"call": "shell", "arguments": {"command": SLEEP}}]])
    async with serving(made):
        for tries, end, code in ((1, None, 1), (2, signal.SIGINT, 130), (2, signal.SIGKILL, -9)):
            async with using(made, f"after-{code}", tries) as losing:
                (lost,) = await until(lambda: made.running(SLEEP))
                (pid,) = server_processes(str(tmp_path).encode(), "experiment")
                os.kill(pid, signal.SIGKILL)
                await until(lambda: made.rows("failures.jsonl", f"after-{code}"))  # noqa: B023
                if end is not None:
                    losing.send_signal(end)
                assert await losing.wait() == code
            if end == signal.SIGKILL:
                async with using(made, f"after-{code}", tries) as again:
                    await until(lambda: lost not in made.running(SLEEP) and len(made.sandboxes()) == 1)  # noqa: B023
                    again.send_signal(signal.SIGINT)
                    assert await again.wait() == 130
            assert made.sandboxes() == []
            assert made.running(SLEEP) == []
    assert_nothing_left(made)


def test_the_page_is_fresh() -> None:
    fix = "docs/faults.md is stale: python -m tests.tools.fault_table > docs/faults.md"
    assert (ROOT / "docs" / "faults.md").read_text(encoding="utf-8") == fault_table.render(), fix
