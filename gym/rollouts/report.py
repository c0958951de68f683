"""Runs a plan and tells the user what came of it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable

from gym.errors import in_one_line, printable
from gym.planning.plan import Plan
from gym.report.table import duration, run_table
from gym.rollouts.execute import INTERRUPTED, Outcome, Running, execute
from gym.servers.base import one_line


def run_and_report(plan: Plan, *, running: Running | None = None) -> int:
    """Runs a plan, prints the table, returns the exit code.

    Raises:
        UserError: As `execute`.
    """
    warnings_to_stderr(plan.resolved.redactor.text)
    outcome = asyncio.run(execute(plan, running=running))
    report(outcome)
    return outcome.exit_code


class _OneLine(logging.Formatter):
    """A log record as one line, without secrets; its traceback stands in the run's log."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            said = one_line(error)
            text = f"{text} (see run.log)" if said in text else f"{text}: {said} (see run.log)"
        return self._mask(in_one_line(text))


def warnings_to_stderr(mask: Callable[[str], str] = str) -> None:
    """Shows warnings; the rest of the log goes to the run directory."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine(mask))
    logging.getLogger().addHandler(handler)


def report(outcome: Outcome) -> None:
    """Prints the table of a run on stdout, and how it ended on stderr."""
    run_table(outcome.summary, outcome.scores.tasks(), outcome.path, sys.stdout)
    print(f"time          {duration(outcome.seconds)}")
    if outcome.stop_reason == INTERRUPTED:
        print("interrupted; the same command with this output continues", file=sys.stderr)
    elif outcome.stop_reason is not None:
        print(f"stopped early: {printable(outcome.stop_reason)}", file=sys.stderr)
