"""Runs the points of a sweep: all composed and planned before the first one starts, then one after another.

Each point runs in a process of its own (forked, so nothing is imported again), so that one that crashes or is killed
does not take the others with it. Its folder is named by what varies and is continued like any run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym.composition.compose import Composed, compose, experiment_of
from gym.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SOME_FAILED, EXIT_WRONG_INPUT, Problem, UserError, printable
from gym.planning.plan import Plan, plan
from gym.planning.resolve import resolve
from gym.report.table import SweepPoint, sweep_table
from gym.rollouts import rundir
from gym.rollouts.execute import execute
from gym.rollouts.report import warnings_to_stderr

CRASH = "crash.json"


@dataclass(frozen=True)
class Point:
    """One point: its overrides, and what distinguishes it from the others."""

    arguments: list[str]
    varies: dict[str, str]

    @property
    def name(self) -> str:
        """Folder name: what varies, without characters that file systems dislike."""
        text = ",".join(f"{key.lstrip('+').rpartition('.')[2]}={value}" for key, value in self.varies.items())
        return "".join(letter if letter.isalnum() or letter in "=,._-+" else "_" for letter in text)[:200] or "point"


def points(arguments: Sequence[str]) -> list[Point]:
    """Expands sweep overrides (`agent=a,b`, `seed=range(1,4)`) into points, as Hydra's basic sweeper does.

    Raises:
        UserError: An override that cannot be read, or a kind of sweep that is not supported.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from gym.composition import source
    from gym.composition.compose import config_loader

    source.register()
    try:
        parsed = OverridesParser.create(config_loader=config_loader()).parse_overrides(list(arguments))
        (lists,) = BasicSweeper.split_arguments(parsed, None)
        varying = [item.get_key_element() for item in parsed if item.is_sweep_override()]
    except HydraException as error:
        raise UserError(Problem(str(error).splitlines()[0], "write key=a,b for a sweep", "command line")) from error
    found = []
    for line in lists:
        values = dict(argument.partition("=")[::2] for argument in line)
        found.append(Point(list(line), {key: values[key] for key in varying}))
    return found


@dataclass
class Planned:
    """A point that is ready to run."""

    point: Point
    plan: Plan
    path: Path


def plan_all(found: Sequence[Point]) -> tuple[list[Planned], Path]:
    """Composes and plans every point.

    Returns:
        The planned points, and the folder of the sweep.

    Raises:
        UserError: Problems of any point, each with the point's name.
    """
    composed = [(point, _guarded_compose(point)) for point in found]
    problems = [problem for _, result in composed if isinstance(result, list) for problem in result]
    plans: list[tuple[Point, Plan]] = []
    for point, result in composed:
        if isinstance(result, Composed):
            try:
                plans.append((point, plan(resolve(result))))
            except UserError as error:
                problems += [_named(problem, point) for problem in error.problems]
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    base = _base(plans[0][1])
    ready = [Planned(point, _into(made, base / point.name), base / point.name) for point, made in plans]
    return ready, base


def _guarded_compose(point: Point) -> Composed | list[Problem]:
    try:
        return compose(point.arguments)
    except UserError as error:
        return [_named(problem, point) for problem in error.problems]


def _named(problem: Problem, point: Point) -> Problem:
    what = f"[{point.name}] {problem.what}"
    return Problem(what, problem.fix, problem.where, problem.key, problem.order, problem.data)


def _base(first: Plan) -> Path:
    output = first.resolved.settings.output
    return Path(output) if output else rundir.fresh_output(experiment_of(first.resolved.composed))


def _into(made: Plan, path: Path) -> Plan:
    made.resolved.settings = made.resolved.settings.model_copy(update={"output": str(path)})
    return made


def run_all(ready: Sequence[Planned], *, fail_fast: bool) -> int:
    """Runs the points in order and prints the comparison. Returns the exit code."""
    warnings_to_stderr()
    done: list[SweepPoint] = []
    stopped = interrupted = False
    for index, item in enumerate(ready, 1):
        if stopped:
            done.append(SweepPoint(item.point.varies, "not_started"))
            continue
        print(f"point {index} of {len(ready)}: {item.point.name}", file=sys.stderr, flush=True)
        outcome, code = _run_point(item)
        done.append(outcome)
        interrupted = interrupted or code == EXIT_INTERRUPTED
        stopped = interrupted or (fail_fast and code != EXIT_OK)
        print(f"point {index}: {printable(_line(outcome))}", file=sys.stderr, flush=True)
    sweep_table(done, sys.stdout)
    if interrupted:
        return EXIT_INTERRUPTED
    whole = all(point.status == "finished" and not point.failure_kind for point in done)
    return EXIT_OK if whole else EXIT_SOME_FAILED


def _line(point: SweepPoint) -> str:
    if point.status == "finished":
        return f"mean reward {point.mean_reward}, {point.coverage}"
    return f"failed: {point.failure_kind}: {point.message}"


def _run_point(item: Planned) -> tuple[SweepPoint, int]:
    begun = time.monotonic()
    item.path.mkdir(parents=True, exist_ok=True)
    (item.path / CRASH).unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os._exit(_in_child(item))
    status = _wait(child)
    seconds = time.monotonic() - begun
    log = item.path / rundir.LOG
    if os.WIFSIGNALED(status):
        message = f"signal {os.WTERMSIG(status)}"
        return SweepPoint(item.point.varies, "failed", None, "", seconds, "worker_killed", message, log), 1
    code = os.WEXITSTATUS(status)
    crash = item.path / CRASH
    if crash.exists():
        told: dict[str, str] = json.loads(crash.read_text(encoding="utf-8"))
        return SweepPoint(item.point.varies, "failed", None, "", seconds, told["kind"], told["message"], log), code
    return _finished(item, seconds, code, log), code


def _finished(item: Planned, seconds: float, code: int, log: Path) -> SweepPoint:
    metrics: dict[str, Any] = json.loads((item.path / rundir.METRICS).read_text(encoding="utf-8"))
    coverage = metrics["coverage"]
    if coverage["attempts"]["valid"] == 0 or code == EXIT_INTERRUPTED:
        kind = next(iter(coverage["failures"]), metrics.get("stop_reason") or "failed")
        return SweepPoint(item.point.varies, "failed", None, coverage["text"], seconds, kind, coverage["text"], log)
    failed = next(iter(coverage["failures"]), "")
    return SweepPoint(item.point.varies, "finished", metrics["mean_reward"], coverage["text"], seconds, failed)


def _wait(child: int) -> int:
    """Waits for a point. The terminal's interrupt reaches it directly; one sent to this process alone is passed on."""

    def forward(number: int, _frame: object) -> None:
        if os.getpgid(child) != os.getpgrp() or not sys.stdin.isatty():
            os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return os.waitpid(child, 0)[1]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_child(item: Planned) -> int:
    try:
        return asyncio.run(execute(item.plan)).exit_code
    except UserError as error:
        kind, message, code = "wrong_input", str(error.problems[0]), EXIT_WRONG_INPUT
        print(error, file=sys.stderr)
    except BaseException as error:
        kind, message, code = "exception", f"{type(error).__name__}: {error}", EXIT_SOME_FAILED
        with (item.path / rundir.LOG).open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    rundir.write_json(item.path / CRASH, {"kind": kind, "message": message})
    return code
