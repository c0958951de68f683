"""The final tables for people: boxes on a terminal, aligned plain text everywhere else.

Where the output is no terminal nothing is cut or wrapped, and no escape code is written. Text that came from a model,
a server or a configuration is printed as it is, never read as markup.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from gym.errors import in_one_line
from gym.report.metrics import TaskScore

MOST_ON_TERMINAL = 50
_STYLES = {"failed": "red", "not_started": "dim"}


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep.

    Attributes:
        varies: Setting and value, for what differs between the points.
        mean_reward: Headline of the point's run; only of a finished point.
        coverage: How much of the plan the mean stands on.
        seconds: Duration; None where it never started.
        failure_kind: Why a failed point failed, with `message` as its own last line.
        log: The point's log file.
    """

    varies: Mapping[str, object]
    status: Literal["finished", "failed", "not_started"]
    mean_reward: float | None = None
    coverage: str = ""
    seconds: float | None = None
    failure_kind: str = ""
    message: str = ""
    log: Path | None = None


def run_table(summary: Mapping[str, Any], tasks: Iterable[TaskScore], path: Path, file: TextIO) -> None:
    """Print a run: a line a task, then the headline with its coverage. `summary` is that of `Scores`."""
    most = MOST_ON_TERMINAL if file.isatty() else None
    tasks = iter(tasks)
    shown = [_task_row(task) for task in itertools.islice(tasks, most)]
    if shown:
        print_rows(Table(["taskset", "task", "reward", "attempts"], shown, right={"reward"}), file)
        hidden = sum(1 for _ in tasks)
        file.write(f"and {hidden} more tasks, in {path}\n\n" if hidden else "\n")
    parts = [_part_row(name, part) for name, part in summary["tasksets"].items()]
    if len(parts) > 1:
        print_rows(Table(["taskset", "mean reward", "coverage"], parts, right={"mean reward"}), file)
        file.write("\n")
    _print_pairs([*_headline(summary), ("results", str(path))], file)


def sweep_table(points: Sequence[SweepPoint], file: TextIO) -> None:
    """Print a sweep: a line a point, then the mean over the finished ones."""
    names = list(dict.fromkeys(name for point in points for name in point.varies))
    header = [*names, "status", "mean reward", "coverage", "time", "failure", "log"]
    rows = [_point_row(point, names) for point in points]
    styles = [_STYLES.get(point.status, "") for point in points]
    print_rows(Table(header, rows, right={"mean reward", "time"}, styles=styles), file)
    file.write("\n")
    finished = sum(point.status == "finished" for point in points)
    pairs = [("finished", f"{finished} of {len(points)} points")]
    kinds = Counter(point.failure_kind for point in points if point.status == "failed")
    if kinds:
        ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
        pairs.append(("failed", f"{kinds.total()}: " + ", ".join(f"{kind} {count}" for kind, count in ordered)))
    pairs.append(("mean reward", f"{number(sweep_mean(points))} over finished points"))
    _print_pairs(pairs, file)


def sweep_mean(points: Iterable[SweepPoint]) -> float | None:
    """Mean reward over the finished points that have one; a failed point is missing, never 0."""
    means = [p.mean_reward for p in points if p.status == "finished" and p.mean_reward is not None]
    return math.fsum(means) / len(means) if means else None


def number(value: float | None) -> str:
    """Four decimals, or a dash for what is not known."""
    return "-" if value is None else f"{value:.4f}"


def duration(seconds: float | None) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 07 min`, or a dash."""
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def _task_row(task: TaskScore) -> list[str]:
    return [task.taskset, task.task_id, number(task.mean_reward), f"{task.valid} of {task.planned}"]


def _part_row(name: str, part: Mapping[str, Any]) -> list[str]:
    return [name, number(part["mean_reward"]), part["coverage"]["text"]]


def _headline(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    mean, error = number(summary["mean_reward"]), summary["standard_error"]
    yield "mean reward", mean if error is None else f"{mean} (standard error {number(error)}, tasks as clusters)"
    if summary["wilson_95"]:
        yield "95 % interval", "{} to {} (Wilson)".format(*map(number, summary["wilson_95"]))
    yield "coverage", summary["coverage"]["text"]
    attempts = summary["coverage"]["attempts"]
    if attempts["valid"] < attempts["planned"]:
        bounds = summary["bounds"]
        yield "missing as 0 / 1", f"{number(bounds['missing_as_0'])} / {number(bounds['missing_as_1'])}"
    if summary["pass_at"]:
        yield "pass@k", ", ".join(f"pass@{k} {number(value)}" for k, value in summary["pass_at"].items())
    for server, metrics in summary.get("verifier_metrics", {}).items():
        yield f"{server} says", ", ".join(f"{name} {_value(value)}" for name, value in metrics.items())
    yield "usage", _usage(summary["usage"])
    if differing := summary["usage_differs"]:
        noun = "rollout" if differing == 1 else "rollouts"
        yield "usage differs", f"in {differing} {noun} the harness says something else than the model server counted"
    cost = summary.get("cost")
    if cost and (cost["known_usd"] or cost["calls_without_price"]):
        yield "cost", cost["text"]


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _usage(usage: Mapping[str, Any]) -> str:
    return ", ".join(_total(name, usage) for name in usage if name != "unknown")


def _total(name: str, usage: Mapping[str, Any]) -> str:
    label, unknown = name.replace("_", " "), usage["unknown"].get(name, 0)
    if usage[name] is None:
        return f"{label} unknown"
    return f"{label} {usage[name]}" + (f" + unknown of {unknown}" if unknown else "")


def _point_row(point: SweepPoint, names: Sequence[str]) -> list[str]:
    is_finished = point.status == "finished"
    return [
        *(str(point.varies.get(name, "-")) for name in names),
        point.status,
        number(point.mean_reward if is_finished else None),
        point.coverage or "-",
        duration(point.seconds),
        ": ".join(part for part in (point.failure_kind, point.message) if part) or "-",
        str(point.log or "-"),
    ]


@dataclass(frozen=True)
class Table:
    """Rows to print. `right` names the right-aligned columns; `styles` has one style a row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: set[str]
    styles: Sequence[str] = field(default_factory=list)


def print_rows(table: Table, file: TextIO) -> None:
    """Prints a table: boxed on a terminal, aligned plain text elsewhere."""
    rows = [[in_one_line(cell) for cell in row] for row in table.rows]
    if file.isatty():
        _print_boxed(table, rows, file)
    else:
        _print_plain(table, rows, file)


def _print_plain(table: Table, rows: Sequence[Sequence[str]], file: TextIO) -> None:
    lines = [table.header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if name in table.right else cell.ljust(width)
            for name, cell, width in zip(table.header, line, widths, strict=True)
        ]
        file.write("  ".join(cells).rstrip() + "\n")


def _print_boxed(table: Table, rows: Sequence[Sequence[str]], file: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table as Boxed
    from rich.text import Text

    boxed = Boxed()
    for name in table.header:
        boxed.add_column(Text(name), justify="right" if name in table.right else "left", overflow="fold")
    for row, style in itertools.zip_longest(rows, table.styles, fillvalue=""):
        boxed.add_row(*map(Text, row), style=str(style) or None)
    Console(file=file).print(boxed)


def _print_pairs(pairs: Sequence[tuple[str, str]], file: TextIO) -> None:
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        file.write(f"{name:{width}}  {in_one_line(value)}\n")
