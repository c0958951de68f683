"""Runs a harness in a sandbox so that its end is certain, and known, whatever happens to the one who waits.

A small shell script beside this module is put into the sandbox and starts the program in a session of its own. It
bounds the time (TERM, grace, KILL, for the whole tree), leaves a receipt when everything is gone, and keeps the output
in files; so the program outlives a lost connection, and the receipt does not depend on it. Each launch has a private
directory of its own. Where commands in the background end with their command, the script runs as one long command.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gym.failures import EpisodeFailure
from gym.sandbox.interface import ExecResult, Sandbox, StreamName
from gym.sandbox.processes import GONE_SECONDS
from gym.sandbox.receipt import RECEIPT_BYTES, Receipt, parse
from gym.sandbox.words import unfit

SETUP_SECONDS = 60.0
MARGIN_SECONDS = 30.0
RECONNECTS = 5

# $1 is the name of the directory, $2 the script; standard input is the program's.
_SETUP = """
dir=${TMPDIR:-/tmp}/$1
umask 077
mkdir -- "$dir" && mkfifo -- "$dir/control" && printf '%s' "$2" >"$dir/supervise" && cat >"$dir/stdin" || exit 1
printf '%s' "$dir"
"""


@dataclass(frozen=True)
class Logs:
    """What a program wrote: beginning and end, with a mark where bytes are left out."""

    stdout: bytes
    stderr: bytes
    stdout_truncated: int
    stderr_truncated: int


@dataclass(frozen=True)
class _Terms:
    user: str | int | None
    deadline_seconds: float
    grace_seconds: int
    keeps_services: bool

    @property
    def total(self) -> float:
        """When the supervisor must have ended by itself."""
        return self.deadline_seconds + self.grace_seconds + MARGIN_SECONDS


class Launch:
    """A program under supervision. Call `stop` in a `finally`: on one that has ended it does nothing.

    Attributes:
        directory: Its private directory in the sandbox; what lies there is untrusted.
    """

    def __init__(self, sandbox: Sandbox, directory: str, terms: _Terms) -> None:
        self.directory = directory
        self._sandbox = sandbox
        self._terms = terms
        self._supervisor = "none"
        self._taken = 0
        self._receipt: Receipt | None = None
        self._watch: asyncio.Task[None] = asyncio.ensure_future(asyncio.sleep(0))

    async def wait(self) -> Receipt:
        """The receipt, when the program and all its processes have ended. A cancelled caller stops waiting, no more.

        Raises:
            EpisodeFailure: `sandbox_lost`.
            Exception: what `on_stdout` raised; the program goes on until `stop`.
        """
        await asyncio.wait({self._watch})
        if self._receipt is None:
            if not self._watch.cancelled():
                self._watch.result()
            return await self.stop()
        return self._receipt

    async def stop(self) -> Receipt:
        """End it with TERM, grace and KILL if it runs, and return the receipt.

        Raises:
            EpisodeFailure: `sandbox_lost`.
        """
        if self._receipt is None:
            await self._end()
        if self._receipt is None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
            await self._conclude()
        assert self._receipt is not None
        return self._receipt

    async def _end(self) -> None:
        """Ask the supervisor for the end, and wait for it."""
        seconds = self._terms.grace_seconds + MARGIN_SECONDS
        if not self._watch.done():
            await self._script("stop", timeout_seconds=GONE_SECONDS)
            await asyncio.wait({self._watch}, timeout=seconds)
        elif self._sandbox.keeps_background:
            # The watch has failed, in `on_stdout` perhaps, and the program goes on.
            await self._script("stop", timeout_seconds=GONE_SECONDS)
            await self._script("follow", "none", timeout_seconds=seconds)

    async def logs(self, max_bytes: int = 1024 * 1024) -> Logs:
        """What the program has written so far, at most so much of each stream.

        Raises:
            EpisodeFailure: `sandbox_lost`.
        """
        out, err = [
            await self._exec(["cat", f"{self.directory}/{name}"], max_output_bytes=max_bytes)
            for name in ("stdout", "stderr")
        ]
        return Logs(out.stdout, err.stdout, out.stdout_truncated, err.stdout_truncated)

    async def begin(
        self, words: Sequence[str], env: Mapping[str, str], on_stdout: Callable[[bytes], None] | None
    ) -> None:
        """Start a launch with `words`, which run it to its end where the sandbox keeps nothing in the background.

        Raises:
            EpisodeFailure: `sandbox_lost`.
        """
        if self._sandbox.keeps_background:
            began = await self._exec(words, env=env, timeout_seconds=SETUP_SECONDS)
            if began.exit_code:
                raise EpisodeFailure("sandbox_lost", f"nothing can be launched: {began.stderr_text.strip()[-300:]}")
            self._supervisor = began.stdout_text.strip() or "none"

        def take(name: StreamName, chunk: bytes) -> None:
            if name == "stdout" and on_stdout is not None:
                self._taken += len(chunk)
                on_stdout(chunk)

        async def watch() -> None:
            if self._sandbox.keeps_background:
                await self._follow(take, wanted=on_stdout is not None)
            else:
                await self._exec(words, env=env, on_output=take, timeout_seconds=self._terms.total)
            await self._conclude()

        self._watch = asyncio.ensure_future(watch())
        # Where nobody waits any more, its failure is told by the next use of the sandbox.
        self._watch.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _follow(self, take: Callable[[StreamName, bytes], None], *, wanted: bool) -> None:
        """Read its output until it ends; a lost connection is made again."""
        for attempt in range(RECONNECTS + 1):
            offset = str(self._taken) if wanted else "none"
            try:
                await self._script("follow", offset, on_output=take, timeout_seconds=self._terms.total)
                return
            except EpisodeFailure:
                if attempt == RECONNECTS or not await self._sandbox.alive():
                    raise

    async def _conclude(self) -> None:
        """Take the receipt, and see that nothing is left.

        The program could have written the receipt itself, and killed its supervisor. So what it says of the cleanup
        counts only where the end of the supervisor's command has ended all there was; else a look from outside, by a
        script that the program cannot change, has to find nothing.
        """
        receipt = None
        if not self._sandbox.keeps_background:
            try:
                receipt = parse(await self._sandbox.read_file(f"{self.directory}/receipt.json", RECEIPT_BYTES))
            except OSError:
                receipt = None
        if receipt is None:
            left = "keep" if self._terms.keeps_services else "end"
            words = ["sh", "-c", _script(), "sh", "reap", self.directory, left, self._supervisor]
            reaped = await self._exec(words, timeout_seconds=SETUP_SECONDS, max_output_bytes=RECEIPT_BYTES)
            receipt = parse(reaped.stdout) or Receipt(None, cleanup_confirmed=True)
            confirmed = receipt.cleanup_confirmed and reaped.exit_code == 0
            receipt = replace(receipt, cleanup_confirmed=confirmed)
        self._receipt = receipt

    async def _script(self, action: str, *words: str, **settings: Any) -> ExecResult:
        return await self._exec(["sh", f"{self.directory}/supervise", action, self.directory, *words], **settings)

    async def _exec(self, words: Sequence[str], **settings: Any) -> ExecResult:
        return await self._sandbox.exec(words, cwd="/", user=self._terms.user, **settings)


async def launch(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    deadline_seconds: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | int | None = None,
    grace_seconds: float = 10.0,
    stdin: bytes | None = None,
    on_stdout: Callable[[bytes], None] | None = None,
    keeps_services: bool = False,
) -> Launch:
    """Start a program in a sandbox and return at once.

    Args:
        sandbox: Owned or borrowed.
        argv: Program and arguments.
        deadline_seconds: After this time it gets TERM.
        env: Variables on top of the sandbox's own.
        cwd: Where to start, as in `Sandbox.exec`; a missing directory is return code 126.
        user: As in `Sandbox.exec`.
        grace_seconds: How long after TERM whatever is left gets KILL; whole seconds.
        stdin: What it reads; None is an empty input.
        on_stdout: Called in the event loop with what it writes to standard output, as it comes.
        keeps_services: What it has left in sessions of their own, such as a web server, goes on after its end, where
            the sandbox keeps what runs in the background.

    Raises:
        UserError: the sandbox cannot run commands as `user`.
        ValueError: a word of `argv` cannot be passed to a process.
        EpisodeFailure: `sandbox_lost`, also where the private directory cannot be made.
    """
    if (reason := unfit(argv)) is not None:
        raise ValueError(reason)
    name = f"gym-launch-{secrets.token_hex(8)}"
    words = ["sh", "-c", _SETUP, "sh", name, _script()]
    made = await sandbox.exec(words, stdin=stdin, user=user, cwd="/", timeout_seconds=SETUP_SECONDS)
    if made.exit_code:
        raise EpisodeFailure("sandbox_lost", f"nothing can be launched: {made.stderr_text.strip()[-300:]}")
    directory = made.stdout_text
    grace = math.ceil(grace_seconds)
    started = Launch(sandbox, directory, _Terms(user, deadline_seconds, grace, keeps_services))
    place = cwd if cwd and cwd.startswith("/") else f"{sandbox.workdir}/{cwd or ''}"
    words = [
        *("sh", f"{directory}/supervise", "start", directory),
        *("detach" if sandbox.keeps_background else "stay", "none" if on_stdout is None else "0"),
        *(f"{deadline_seconds:f}", str(grace), "keep" if keeps_services else "end", place, *argv),
    ]
    await started.begin(words, env or {}, on_stdout)
    return started


@cache
def _script() -> str:
    return Path(__file__).with_name("supervise.sh").read_text(encoding="utf-8")
