"""One run from plan to metrics: directory, tasks, servers, episodes, results.

A directory that has results is continued: what is finished is kept, what failed is tried again. Continuing under
another configuration or with changed tasks is refused with the difference shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gym.composition.compose import experiment_of
from gym.composition.redact import RedactingFilter, Redactor
from gym.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SOME_FAILED, UserError
from gym.launch import images
from gym.launch.planned import started
from gym.launch.supervised import Event
from gym.planning import metering
from gym.planning.plan import Plan
from gym.report.metrics import Scores, score_rows
from gym.rollouts import identity as ids
from gym.rollouts import journal, rundir
from gym.rollouts.aggregate import verifier_metrics
from gym.rollouts.collector import Collector
from gym.rollouts.progress import Display
from gym.rollouts.watch import Watch
from gym.servers.client import Client
from gym.servers.environment import EnvironmentServerConfig
from gym.tasks.collate import TaskFile, collate

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Running:
    """Servers that run already.

    Attributes:
        open: Reaches them.
        images: The digest of each image that they were started with.
    """

    open: Callable[[], contextlib.AbstractAsyncContextManager[Client]]
    images: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a run came to.

    Attributes:
        path: Run directory.
        stop_reason: Why it ended early; None where everything was tried.
        verifier_metrics: What resources servers with metrics of their own say, by server.
        left: Of sandboxes that could not be removed.
    """

    path: Path
    scores: Scores
    seconds: float
    stop_reason: str | None = None
    notes: list[str] = field(default_factory=list)
    verifier_metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Any]:
        """The metrics."""
        own = {"verifier_metrics": self.verifier_metrics} if self.verifier_metrics else {}
        return {**self.scores.summary(), **own}

    @property
    def exit_code(self) -> int:
        """0 all well, 1 some episodes failed or were not tried, or sandboxes are left behind, 130 interrupted."""
        if self.stop_reason == INTERRUPTED:
            return EXIT_INTERRUPTED
        attempts = self.summary["coverage"]["attempts"]
        return EXIT_OK if attempts["valid"] == attempts["planned"] and not self.left else EXIT_SOME_FAILED


def output_directory(plan: Plan) -> tuple[Path, bool]:
    """The run directory, and whether it was made just now under a name of its own.

    `output` is a directory, or a .jsonl file: `DIR/rollouts.jsonl` means DIR, any other file a directory of its name.
    """
    output = plan.resolved.settings.output
    if output is None:
        return rundir.fresh_output(experiment_of(plan.resolved.composed).replace("/", "_")), True
    path = Path(output)
    if path.suffix != ".jsonl":
        return path, False
    return (path.parent, False) if path.name == rundir.ROLLOUTS else (path.with_suffix(""), False)


async def execute(plan: Plan, *, running: Running | None = None) -> Outcome:
    """Runs a plan.

    Args:
        running: Servers that run already; by default they are started in this process.

    Raises:
        UserError: The run cannot start, or cannot write its results.
    """
    begun = time.monotonic()
    path, fresh = output_directory(plan)
    try:
        with rundir.create_run_directory(path, overwrite=plan.resolved.settings.overwrite) as directory:
            _same_configuration(plan, directory)
            tasks = collate(plan, _task_path(plan, path))
            loaded = journal.load(path / rundir.ROLLOUTS, tasks.digests)
            earlier = journal.load_failures(path / rundir.FAILURES, tasks.digests)
            owed = ids.owed(_named(tasks), tasks.repeats, loaded)
            _link_output(plan, path)
            notes = [*plan.notes, *loaded.notes, *owed.notes]
            scores = score_rows(owed.finished(), [], tasks.repeats, owed.planned)
            for usage in earlier.usages:
                scores.used(usage)
            outcome = Outcome(path, scores, 0.0, notes=notes)
            if not len(owed) and (path / rundir.METRICS).exists():
                print("everything was finished before; nothing to run", file=sys.stderr)
                return outcome
            _write_configuration(plan, path)
            with (
                _logging_to(path / rundir.LOG, plan.resolved.redactor),
                journal.Journal(path / rundir.ROLLOUTS) as rollouts,
                journal.Journal(path / rundir.FAILURES) as failed,
            ):
                await _collect(plan, outcome, tasks, owed, rollouts, failed, earlier, running)
            outcome.seconds = time.monotonic() - begun
            rundir.write_json(path / rundir.METRICS, {**outcome.summary, "stop_reason": outcome.stop_reason})
            return outcome
    except UserError as error:
        if fresh:
            shutil.rmtree(path)
        raise UserError([plan.resolved.redactor.problem(problem) for problem in error.problems]) from error


async def _collect(
    plan: Plan,
    outcome: Outcome,
    tasks: TaskFile,
    owed: ids.Plan,
    rollouts: journal.Journal,
    failed: journal.Journal,
    earlier: journal.LoadedFailures,
    running: Running | None,
) -> None:
    settings = plan.resolved.settings
    kept = sum(1 for _ in owed.finished())
    with Display(len(owed), kept) as display:
        for note in outcome.notes:
            display.note(note)

        def told(event: Event) -> None:
            (display.progress if event.kind == "progress" else display.note)(event.text)
            if event.kind == "lost":
                collector.stop(event.text, cancel=True)
            elif event.kind == "left":
                outcome.left.append(event.text)

        rows = (row for row in tasks if owed.attempts(**row["task_id"]))
        digests = await images.prepare(plan, told, rows) if running is None else running.images
        _record_images(outcome.path, digests)
        async with running.open() if running else started(plan, outcome.path / rundir.LOGS, told) as client:
            plan.resolved.redactor.learn(client.token)
            collector = Collector(
                client=client,
                tasks=tasks,
                owed=owed,
                rollouts=rollouts,
                failures=failed,
                earlier=earlier,
                scores=outcome.scores,
                progress=display,
                redact=plan.resolved.redactor,
                routes=plan.routes,
                limits=_admission(plan),
                patience=_patience(plan),
                policies={name: ref for name in plan.routes if (ref := metering.policy_of(plan, name)) is not None},
                watch=None if running is None else Watch(client, list(plan.instances)),
                max_attempts=settings.max_attempts,
                fail_fast=settings.fail_fast,
            )
            with _interruptible(collector, display):
                await collector.run(settings.concurrency)
            if (reason := collector.stop_reason) is None:
                path = outcome.path / rundir.ROLLOUTS
                outcome.verifier_metrics = await verifier_metrics(plan, client, path, display.note)
        outcome.stop_reason = reason


@contextlib.contextmanager
def _logging_to(path: Path, redactor: Redactor) -> Iterator[None]:
    """Keeps the log of the servers in the run directory, without the run's secrets."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.addFilter(RedactingFilter(redactor))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root, gyms = logging.getLogger(), logging.getLogger("gym")
    root.addHandler(handler)
    gyms.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


@contextlib.contextmanager
def _interruptible(collector: Collector, display: Display) -> Iterator[None]:
    """The first interrupt stops the run in order; the second leaves at once."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if collector.stop_reason == INTERRUPTED:
            os.write(2, b"\nleft at once; run again to clean up and continue\n")
            os._exit(EXIT_INTERRUPTED)
        display.note("interrupted: ending the episodes that run (once more to leave at once)")
        collector.stop(INTERRUPTED, cancel=True)

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        # From here on a second interrupt finds the handler of the program again.
        for number in signals:
            loop.remove_signal_handler(number)


def _admission(plan: Plan) -> dict[str, int]:
    return {
        item.name: item.config.max_concurrent_episodes
        for item in plan.of_type("environment_servers")
        if isinstance(item.config, EnvironmentServerConfig) and item.config.max_concurrent_episodes
    }


def _patience(plan: Plan) -> dict[str, float]:
    bounds = {
        item.name: item.config.longest_seconds()
        for item in plan.of_type("environment_servers")
        if isinstance(item.config, EnvironmentServerConfig)
    }
    return {name: seconds for name, seconds in bounds.items() if seconds < math.inf}


def _named(tasks: TaskFile) -> Iterator[tuple[str, str, str]]:
    return ((taskset, task_id, digest) for (taskset, task_id), digest in tasks.digests.items())


def _task_path(plan: Plan, path: Path) -> Path:
    return path / rundir.TASKS / "preprocessed_datasets" / f"{plan.resolved.settings.split}.jsonl"


def identity(plan: Plan) -> dict[str, Any]:
    """What the run measures: the resolved configuration without operational settings and secrets."""
    redactor = plan.resolved.redactor
    shown = redactor.mapping(plan.resolved.values)
    return dict(ids.identity(shown, plan.resolved.is_operational, lambda key, _value: key in redactor.paths))


def _same_configuration(plan: Plan, directory: rundir.RunDirectory) -> None:
    """Refuses to continue a run that was made with another configuration; then records this one."""
    file = directory.path / rundir.IDENTITY
    mine = identity(plan)
    if directory.continued and file.exists():
        differences = ids.compare(json.loads(file.read_text(encoding="utf-8")), mine)
        if differences:
            raise ids.refuse_message(differences)
    rundir.write_json(file, mine)


def _write_configuration(plan: Plan, path: Path) -> None:
    import yaml

    shown = plan.resolved.redactor.mapping(plan.resolved.values)
    (path / rundir.CONFIG).write_text(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True), encoding="utf-8")
    file = path / rundir.PROVENANCE
    known: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    segment = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [plan.resolved.redactor.text(argument) for argument in sys.argv],
        "versions": _versions(),
        "commit": _commit(),
        "operational": _operational(plan),
    }
    rundir.write_json(file, {"segments": [*known.get("segments", []), segment]})


def _record_images(path: Path, digests: Mapping[str, str]) -> None:
    """Adds the digest of each image to what is known of this start."""
    if digests:
        file = path / rundir.PROVENANCE
        known = json.loads(file.read_text(encoding="utf-8"))
        known["segments"][-1]["images"] = dict(digests)
        rundir.write_json(file, known)


def _operational(plan: Plan) -> dict[str, Any]:
    """The settings of this start that are no part of the run's identity."""
    mine = identity(plan)
    return {key: value for key, value in everything(plan).items() if key not in mine}


def everything(plan: Plan) -> dict[str, Any]:
    """All settings by their keys; secrets are masked."""
    values = plan.resolved.redactor.mapping(plan.resolved.values)
    return dict(ids.identity(values, lambda _key: False, lambda _key, _value: False))


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for name in ("hydra-gym", "hydra-core", "omegaconf", "pydantic"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _commit() -> str | None:
    import subprocess

    with contextlib.suppress(OSError):
        run = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else None
    return None


def _link_output(plan: Plan, path: Path) -> None:
    """A file asked for by another name than ours is a link to our file."""
    output = plan.resolved.settings.output
    if output is None or not output.endswith(".jsonl") or Path(output).name == rundir.ROLLOUTS:
        return
    link = Path(output)
    if link.exists() and not link.is_symlink():
        raise UserError(f"{output} exists and is no link of ours; choose another output")
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(path / rundir.ROLLOUTS, link.parent))
