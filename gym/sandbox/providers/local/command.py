"""Run one command on the host: its start, time limit, and the certain end of all its processes."""

from __future__ import annotations

import asyncio
import errno
import signal
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gym.failures import EpisodeFailure
from gym.sandbox.interface import ExecResult
from gym.sandbox.providers.local.pipes import Streams, Terms
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import refused

# How long output may still flow when all processes that can be found are gone.
DRAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Verdict:
    """Exit code of a command, and the signal that ended it."""

    exit_code: int
    signal: int | None = None


KILLED = Verdict(128 + signal.SIGKILL, signal.SIGKILL)


class ProcessTree(Protocol):
    """All processes that one command started."""

    def started(self, process: Process | None) -> None:
        """Called when the first process runs, or with None when it could not be started."""

    async def entered(self) -> None:
        """Called when the first process runs, before anything is waited for.

        Raises:
            EpisodeFailure: `sandbox_lost`: what the command needs could not be set up.
        """

    async def end(self) -> None:
        """Kill what is left and return when it is gone.

        Raises:
            EpisodeFailure: `sandbox_lost` when something stays.
        """

    def verdict(self, returncode: int) -> Verdict | None:
        """How the command ended, given the exit status of the first process; None when the command never ran."""


@dataclass(frozen=True)
class Launch:
    """What to start on the host for one command.

    Attributes:
        argv: Program with an absolute path, and arguments.
        env: Complete environment.
        tree: Its processes.
        cwd: Where it starts.
        pass_fds: Open files that it inherits.
    """

    argv: Sequence[str | bytes]
    env: Mapping[str, str]
    tree: ProcessTree
    cwd: Path
    pass_fds: tuple[int, ...] = ()


async def run(launch: Launch, terms: Terms, stopped: asyncio.Future[str]) -> ExecResult:
    """Run a command to its end, the end of its time, or until `stopped` tells why it must end.

    When this returns or raises, also by cancellation, no process of the command is left.

    Raises:
        EpisodeFailure: `sandbox_lost`: stopped meanwhile, not started, or not confirmed to be gone.
    """
    began = time.monotonic()
    streams = Streams(terms)
    try:
        try:
            # Cancelled half-way, asyncio would kill the first process before its tree is known.
            process = await uncancelled(_spawn(launch, streams))
            await launch.tree.entered()
            timed_out = await _timed_out(process, terms.timeout_seconds, stopped, streams.failed)
        except OSError as error:
            return _not_started(error)
        finally:
            await uncancelled(launch.tree.end())
        await streams.drained(DRAIN_SECONDS)
    finally:
        streams.close()
    out, err = streams.out.capture, streams.err.capture
    verdict = KILLED if timed_out else launch.tree.verdict(process.returncode or 0)
    if verdict is None:
        words = err.value().decode("utf-8", "replace").strip()[-300:]
        raise EpisodeFailure("sandbox_lost", f"the sandbox could not start a command: {words}")
    return ExecResult(
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        timed_out=timed_out,
        stdout=out.value(),
        stderr=err.value(),
        stdout_truncated=out.left_out,
        stderr_truncated=err.left_out,
        duration_seconds=time.monotonic() - began,
    )


async def _spawn(launch: Launch, streams: Streams) -> Process:
    process: Process | None = None
    try:
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            stdin=DEVNULL if streams.input is None else streams.input.child_fd,
            stdout=streams.out.child_fd,
            stderr=streams.err.child_fd,
            start_new_session=True,
            pass_fds=launch.pass_fds,
        )
        return process
    finally:
        launch.tree.started(process)
        streams.started()


async def _timed_out(
    process: Process, timeout_seconds: float, stopped: asyncio.Future[str], failed: asyncio.Future[None]
) -> bool:
    """Wait for the end of the first process; True when the time was up before."""
    end = asyncio.ensure_future(process.wait())
    signs: set[asyncio.Future[Any]] = {end, stopped, failed}
    try:
        await asyncio.wait(signs, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        end.cancel()
    if failed.done():
        failed.result()
    if stopped.done() and process.returncode is None:
        raise EpisodeFailure("sandbox_lost", f"{stopped.result()}, while a command ran in it")
    return process.returncode is None


def _not_started(error: OSError) -> ExecResult:
    if error.errno == errno.E2BIG:
        return refused("argument list too long")
    raise EpisodeFailure("sandbox_lost", f"could not start a process: {error}") from error
