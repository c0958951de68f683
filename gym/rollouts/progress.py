"""What a user sees while episodes run: a live display on a terminal, plain lines elsewhere. Written to stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from gym.errors import in_one_line, printable
from gym.report.table import duration, number
from gym.servers.contract import Failure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gym.rollouts.job import Job

LINE_EVERY_SECONDS = 5.0
EACH_UP_TO = 50
"""Runs of up to so many attempts get a plain line for each."""


class Display:
    """Counts and shows. Use it as a context manager.

    Args:
        total: Attempts to run now.
        kept: Attempts that an earlier start finished.
    """

    def __init__(self, total: int, kept: int = 0, file: TextIO | None = None) -> None:
        self.total = total
        self.kept = kept
        self.file = file or sys.stderr
        self.done = self.running = self.failures = self.retries = 0
        self.mean: float | None = None
        self.begun = time.monotonic()
        self.doing = ""
        self._live: Any = None
        self._line_at = 0.0

    def __enter__(self) -> Display:
        if self.file.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.file)
            self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def _eta_seconds(self) -> float | None:
        ended = self.done + self.failures
        if not ended:
            return None
        return (time.monotonic() - self.begun) / ended * (self.total - ended)

    def summary(self) -> str:
        """The counts in one line."""
        parts = [f"{self.done + self.kept} of {self.total + self.kept} done", f"{self.running} running"]
        parts.append(f"{self.failures} failed" + (f" ({self.retries} retried)" if self.retries else ""))
        parts.append(f"mean reward {number(self.mean)}")
        parts.append(f"elapsed {duration(time.monotonic() - self.begun)}")
        if self.done + self.failures < self.total:
            parts.append(f"ETA {duration(self._eta_seconds)}")
        return ", ".join(parts)

    def _render(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        ended = self.done + self.failures + self.kept
        if self.doing:
            table.add_row("", Text(self.doing))
        table.add_row(ProgressBar(total=max(1, self.total + self.kept), completed=ended, width=30), self.summary())
        return table

    def note(self, text: str) -> None:
        """A line of words, above the live display."""
        text = printable(text)
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(text))
        else:
            print(text, file=self.file, flush=True)

    def progress(self, text: str) -> None:
        """What is being prepared, in place of what was told before; empty at the end."""
        self.doing = printable(text)
        if self._live is None and text:
            self._seldom(text)

    def started(self) -> None:
        """An episode began."""
        self.running += 1

    def finished(self, job: Job, reward: float, mean_reward: float | None) -> None:
        """An attempt has its reward."""
        self.running -= 1
        self.done += 1
        self.mean = mean_reward
        if self._live is None:
            self._plain(f"{job.label}: reward {reward:g}")

    def failed(self, job: Job, failure: Failure, will_retry: bool) -> None:
        """A try failed; told at once."""
        self.running -= 1
        self.retries += will_retry
        self.failures += not will_retry
        then = "; trying again" if will_retry else ""
        stage = f" in {failure.stage}" if failure.stage else ""
        self.note(f"{job.label}: failed{stage}: {failure.failure_kind}: {in_one_line(failure.failure_reason)}{then}")

    def _plain(self, line: str) -> None:
        if self.total <= EACH_UP_TO:
            self.note(f"{line}  [{self.summary()}]")
            return
        self._seldom(self.summary(), at_once=self.done + self.failures == self.total)

    def _seldom(self, text: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._line_at >= LINE_EVERY_SECONDS:
            self._line_at = now
            self.note(text)
