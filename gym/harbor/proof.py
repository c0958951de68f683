"""Is a task sound? Its own solution must get the full reward, and doing nothing must get none.

Both are runs through the same door as any evaluation, with the agents `oracle` and `nop`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from gym.cli.flags import quoted
from gym.composition.compose import compose
from gym.errors import Problem
from gym.harbor import rows, run_config
from gym.harbor.dataset import Dataset
from gym.harbor.planning import unfit
from gym.planning.plan import Plan, plan
from gym.planning.resolve import resolve
from gym.rollouts import rundir
from gym.rollouts.execute import INTERRUPTED, execute
from gym.rollouts.rows import Failure, Reader, Row
from gym.tasks.rows import write_rows

FOLDER = "validate"
"""Of the runs, beside the other files of the taskset."""


@dataclass(frozen=True)
class Tried:
    """What came of one agent on a task: a reward, or the kind of failure and what it said."""

    reward: float | None = None
    kind: str = ""
    message: str = ""

    @property
    def text(self) -> str:
        """For a table."""
        return "-" if self.reward is None else f"{self.reward:g}"


@dataclass(frozen=True)
class Proof:
    """What a task gives to its own solution, and to an agent that does nothing.

    Attributes:
        reason: Why it was not tried; empty where it was.
    """

    task_id: str
    oracle: Tried = Tried()
    nop: Tried = Tried()
    reason: str = ""

    @property
    def verdict(self) -> str:
        """`sound`, or what is wrong."""
        if self.reason:
            return self.reason
        wrong = [f"oracle: {self.oracle.kind or 'not 1'}"] if self.oracle.reward != 1 else []
        wrong += [f"nop: {self.nop.kind or 'not 0'}"] if self.nop.reward != 0 else []
        return "; ".join(wrong) or "sound"

    @property
    def is_sound(self) -> bool:
        """Whether the task is proven."""
        return self.verdict == "sound"

    def as_dict(self) -> dict[str, object]:
        """As JSON data."""
        told: dict[str, object] = {"task": self.task_id, "sound": self.is_sound, "verdict": self.verdict}
        for name, tried in (("oracle", self.oracle), ("nop", self.nop)):
            told[name] = {"reward": tried.reward, "kind": tried.kind or None, "message": tried.message or None}
        return told


def prove(dataset: Dataset, *, sandbox: str, concurrency: int | None = None) -> tuple[list[Proof], list[Problem]]:
    """Runs oracle and nop on the tasks that have a solution and can run here.

    Returns:
        A proof for each task, and why the others cannot run.

    Raises:
        UserError: Nothing can run.
        KeyboardInterrupt: The user stopped it.
    """
    path = run_config.place(dataset) / FOLDER / "tasks.jsonl"
    settings = [f"concurrency={concurrency}"] if concurrency else []
    ready = _planned(dataset, run_config.Choice("oracle", sandbox), path, settings, datasets=False)
    misfits = {task.task_id: unfit(ready, task) for task in dataset.tasks if task.has_solution}
    reasons = {task.task_id: "has no solution" for task in dataset.tasks if not task.has_solution}
    reasons |= {name: "cannot run here" for name, problems in misfits.items() if problems}
    made = rows.rows(dataset, dataset.taskset, lambda task: task.task_id not in reasons)
    write_rows(path, made)
    oracle, nop = (
        _run(dataset, run_config.Choice(agent, sandbox), path, settings) if made else {}
        for agent in run_config.WITHOUT_MODEL
    )
    names = [task.task_id for task in dataset.tasks]
    proofs = [Proof(name, oracle.get(name, Tried()), nop.get(name, Tried()), reasons.get(name, "")) for name in names]
    return proofs, [problem for problems in misfits.values() for problem in problems]


def _planned(
    dataset: Dataset, choice: run_config.Choice, path: Path, settings: list[str], *, datasets: bool = True
) -> Plan:
    file = run_config.write(dataset, choice, path)
    return plan(resolve(compose(settings, [str(file)])), datasets=datasets)


def _run(dataset: Dataset, choice: run_config.Choice, path: Path, settings: list[str]) -> dict[str, Tried]:
    output = path.parent / choice.agent
    own = [f"output={quoted(str(output))}", "overwrite=true", "num_repeats=1"]
    outcome = asyncio.run(execute(_planned(dataset, choice, path, [*settings, *own])))
    if outcome.stop_reason == INTERRUPTED:
        raise KeyboardInterrupt
    return tried(output)


def tried(output: Path) -> dict[str, Tried]:
    """What a run came to, by task."""
    failed = Reader(output / rundir.FAILURES, Failure)
    graded = Reader(output / rundir.ROLLOUTS, Row)
    found = {row.task_id: Tried(kind=row.kind, message=row.message) for row in failed}
    return {**found, **{row.task_id: Tried(row.reward) for row in graded}}
