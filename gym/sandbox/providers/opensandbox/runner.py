"""Runs commands in one sandbox: those that somebody asks for, and our own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from gym.failures import EpisodeFailure
from gym.sandbox.providers.opensandbox.command import Command, Terms, run_to_end
from gym.sandbox.providers.opensandbox.remote import Remote
from gym.sandbox.providers.opensandbox.script import Line, clear_script, run_script
from gym.sandbox.spec import DEFAULT_OUTPUT_BYTES, ExecResult
from gym.sandbox.words import unfit


class Runner:
    """Runs commands in one sandbox.

    Args:
        remote: The sandbox.
        ended: Set, with the reason, when it ends.
        seconds: Bound of a command of our own.
        owned: The end of the sandbox ends all processes, so that commands need not be killed then.
    """

    def __init__(self, remote: Remote, ended: asyncio.Future[str], seconds: float, *, owned: bool) -> None:
        self._remote = remote
        self._ended = ended
        self._seconds = seconds
        self._owned = owned

    async def execute(self, line: Line, terms: Terms) -> ExecResult:
        """Run a command; see `Command.run`."""
        mark = self._mark()
        command = Command(self._remote, mark, terms, self._ended, owned=self._owned)
        return await command.run(run_script(mark, line, terms.limits))

    async def run(
        self, words: Sequence[str], *, stdin: bytes | None = None, max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    ) -> ExecResult:
        """Run a command of our own, as the user that OpenSandbox uses unless told otherwise.

        Raises:
            ValueError: a word cannot be passed to a process.
            EpisodeFailure: `sandbox_lost`, also when it does not end.
        """
        if (reason := unfit(words)) is not None:
            raise ValueError(reason)
        result = await self.execute(Line(words, "/", stdin=stdin), Terms(None, self._seconds, max_output_bytes))
        if result.timed_out:
            raise EpisodeFailure("sandbox_lost", f"the sandbox took more than {self._seconds:g} s for its files")
        return result

    async def clear(self, keep: str) -> None:
        """Kill all processes but those in `keep`, which is what `shell.PROCESSES` prints."""
        await run_to_end(self._remote, clear_script(self._mark(), keep))

    def _mark(self) -> str:
        return f"{self._remote.id}:{secrets.token_hex(8)}"
