"""The numbers of a run, from its rows: the live, the final and a recomputed number are this one function.

A failed attempt is never a reward of 0: it is missing, and the coverage says so next to every score. Sums are exact,
so that no number depends on the order of the rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gym.errors import UserError
from gym.report.usage import CostTotals, UsageTotals
from gym.rollouts.rows import Failure, Repeats, Row, repeats_of

Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task in a table: mean reward over its valid attempts."""

    taskset: str
    task_id: str
    mean_reward: float
    valid: int
    planned: int


@dataclass(slots=True)
class _Task:
    seen: int = 0  # bit n: attempt n was counted
    valid: int = 0
    successes: int = 0
    total: Fraction = Fraction()
    mean: float = 0.0
    binary: bool = True


class Scores:
    """Scores of a run that grow by one attempt at a time; a few numbers a task are kept.

    Args:
        num_repeats: Attempts a task, for all or for each taskset. What is beyond is counted as surplus, not scored.
        planned: Number of tasks of each taskset; without it, coverage can only speak of the tasks that were seen.
        success_threshold: Lowest reward that is a success, for pass@k.
    """

    def __init__(
        self, num_repeats: Repeats, planned: Mapping[str, int] | None = None, *, success_threshold: float = 1.0
    ) -> None:
        self.num_repeats = num_repeats
        self.success_threshold = success_threshold
        self.surplus = self.usage_differs = 0
        self.usage = UsageTotals()
        self.cost = CostTotals()
        self._planned = dict(planned or {})
        self._tasks: dict[str, dict[str, _Task]] = {}
        self._failures: dict[str, Counter[str]] = {}

    def used(self, usage: Mapping[str, object], *, differs: bool = False) -> None:
        """Counts what a rollout, or a failed try, used; and whether its harness says something else."""
        self.usage.add(usage)
        self.cost.add(usage)
        self.usage_differs += differs

    def add(self, taskset: str, task_id: str, attempt: int, reward: float) -> None:
        """Count a valid attempt, once.

        Raises:
            ValueError: The attempt was counted before, or the reward is not finite.
        """
        if not math.isfinite(reward):
            raise ValueError(f"reward {reward} of task {task_id} is not a finite number")
        if attempt >= self._repeats(taskset):
            self.surplus += 1
            return
        task = self._tasks.setdefault(taskset, {}).setdefault(task_id, _Task())
        if task.seen >> attempt & 1:
            raise ValueError(f"attempt {attempt} of task {task_id} was counted before")
        task.seen |= 1 << attempt
        task.valid += 1
        task.successes += reward >= self.success_threshold
        task.binary = task.binary and reward in (0.0, 1.0)
        task.total += Fraction(reward)
        task.mean = float(task.total / task.valid)

    def fail(self, kind: str, taskset: str = "") -> None:
        """Count an attempt that failed for good: once an attempt, not once a try."""
        self._failures.setdefault(taskset, Counter())[kind] += 1

    @property
    def mean_reward(self) -> float | None:
        """Mean over tasks of the mean over valid attempts; None before the first one."""
        return _mean([task.mean for task in self._all()])

    def pass_at(self, k: int) -> float:
        """Chance that at least one of k attempts succeeds, as a mean over tasks.

        Raises:
            UserError: Some task has fewer than k valid attempts, or k is below 1.
        """
        tasks = self._all()
        most = min((task.valid for task in tasks), default=0)
        if not 1 <= k <= most:
            raise UserError(f"pass@{k} needs {k} valid attempts of every task; the fewest that a task has is {most}")
        return _pass_at(tasks, k)

    def coverage(self) -> str:
        """How much of the plan the scores stand on, in one line."""
        return coverage_line(self._coverage(self._names(), self._all_failures()))

    def tasks(self) -> Iterator[TaskScore]:
        """Every task with a valid attempt, by taskset and task id."""
        for taskset, tasks in sorted(self._tasks.items()):
            planned = self._repeats(taskset)
            for task_id, task in sorted(tasks.items()):
                yield TaskScore(taskset, task_id, task.mean, task.valid, planned)

    def summary(self) -> dict[str, Any]:
        """Every number, as JSON for `metrics.json`; the same rows give the same bytes, in any order."""
        names = self._names()
        return {
            **self._part(names, self._all_failures()),
            "success_threshold": self.success_threshold,
            "num_repeats": {name: self._repeats(name) for name in names},
            "surplus_attempts": self.surplus,
            "usage": self.usage.summary(),
            "usage_differs": self.usage_differs,
            "cost": self.cost.summary(),
            "tasksets": {name: self._part([name], self._failures.get(name, Counter())) for name in names},
        }

    def _all(self) -> list[_Task]:
        return [task for tasks in self._tasks.values() for task in tasks.values()]

    def _all_failures(self) -> Counter[str]:
        return sum(self._failures.values(), Counter())

    def _names(self) -> list[str]:
        return sorted({*self._planned, *self._tasks} | {name for name in self._failures if name})

    def _part(self, tasksets: Sequence[str], failures: Counter[str]) -> dict[str, Any]:
        tasks = [task for name in tasksets for task in self._tasks.get(name, {}).values()]
        means = [task.mean for task in tasks]
        single = (
            all(task.binary and task.valid == 1 for task in tasks) and max(map(self._repeats, tasksets), default=1) == 1
        )
        coverage = self._coverage(tasksets, failures)
        return {
            "mean_reward": _mean(means),
            "standard_error": clustered_error(means),
            "wilson_95": list(wilson(round(sum(means)), len(means))) if tasks and single else None,
            "pass_at": {str(k): _pass_at(tasks, k) for k in _powers(tasks)},
            "bounds": _bounds(tasks, coverage["attempts"]["planned"]),
            "coverage": {**coverage, "text": coverage_line(coverage)},
        }

    def _coverage(self, tasksets: Sequence[str], failures: Counter[str]) -> dict[str, Any]:
        seen = {name: self._tasks.get(name, {}) for name in tasksets}
        planned = {name: max(self._planned.get(name, 0), len(seen[name])) for name in tasksets}
        attempts = sum(count * self._repeats(name) for name, count in planned.items())
        valid = sum(task.valid for tasks in seen.values() for task in tasks.values())
        return {
            "tasks": {"valid": sum(map(len, seen.values())), "planned": sum(planned.values())},
            "attempts": {"valid": valid, "failed": failures.total(), "planned": attempts},
            "failures": dict(sorted(failures.items(), key=lambda item: (-item[1], item[0]))),
        }

    def _repeats(self, taskset: str) -> int:
        return repeats_of(self.num_repeats, taskset)


def score_rows(
    rows: Iterable[Row],
    failures: Iterable[Failure],
    num_repeats: Repeats,
    planned: Mapping[str, int] | None = None,
    *,
    success_threshold: float = 1.0,
) -> Scores:
    """The scores of what is on disk: finished rows, and the latest failure of each attempt that has none."""
    scores = Scores(num_repeats, planned, success_threshold=success_threshold)
    finished = set()
    for row in rows:
        scores.add(row.taskset, row.task_id, row.attempt, row.reward)
        finished.add(row.key)
        if row.attempt < repeats_of(num_repeats, row.taskset):
            scores.used(row.usage, differs=row.differs)
    for failure in failures:
        if failure.key not in finished and failure.attempt < repeats_of(num_repeats, failure.taskset):
            scores.fail(failure.kind, failure.taskset)
    return scores


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate from n attempts with c successes: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share of successes (Wilson 1927)."""
    share, z2 = successes / n, Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered_error(means: Sequence[float]) -> float | None:
    """Standard error of the mean over tasks, with tasks as clusters: attempts of one task are no independent draws.

    As the headline is a mean of task means, this is the deviation between task means over the root of their number.
    None for fewer than two tasks.
    """
    if len(means) < 2:
        return None
    centre = math.fsum(means) / len(means)
    try:
        variance = math.fsum((mean - centre) ** 2 for mean in means) / (len(means) - 1)
    except OverflowError:  # rewards that no deviation can be told of
        return None
    return math.sqrt(variance / len(means))


def coverage_line(coverage: Mapping[str, Any]) -> str:
    """`4 of 5 tasks, 6 of 10 attempts; 4 attempts failed: ...`, kinds by falling count, then by name."""
    tasks, attempts = coverage["tasks"], coverage["attempts"]
    line = f"{tasks['valid']} of {tasks['planned']} tasks, {attempts['valid']} of {attempts['planned']} attempts"
    if not attempts["failed"]:
        return line
    noun = "attempt" if attempts["failed"] == 1 else "attempts"
    kinds = ", ".join(f"{kind} {count}" for kind, count in coverage["failures"].items())
    return f"{line}; {attempts['failed']} {noun} failed: {kinds}"


def _bounds(tasks: Sequence[_Task], attempts: int) -> dict[str, float] | None:
    """Mean over all planned attempts when every missing one is taken as 0, or as 1."""
    if not attempts:
        return None
    total = sum((task.total for task in tasks), Fraction())
    missing = attempts - sum(task.valid for task in tasks)
    return {"missing_as_0": float(total / attempts), "missing_as_1": float((total + missing) / attempts)}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _pass_at(tasks: Sequence[_Task], k: int) -> float:
    return math.fsum(pass_at_k(task.valid, task.successes, k) for task in tasks) / len(tasks)


def _powers(tasks: Sequence[_Task]) -> Iterator[int]:
    """1, 2, 4, ... up to the fewest valid attempts that a task has."""
    most = min((task.valid for task in tasks), default=0)
    return (1 << power for power in range(most.bit_length()))
