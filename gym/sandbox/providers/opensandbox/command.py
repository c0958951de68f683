"""Run one command in a sandbox, through the SDK, to the certain end of its processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gym.failures import EpisodeFailure
from gym.sandbox.output import Capture
from gym.sandbox.providers.opensandbox.errors import DeploymentError
from gym.sandbox.providers.opensandbox.remote import Identity, Remote
from gym.sandbox.providers.opensandbox.script import Limits, Records, Script, end_script
from gym.sandbox.spec import ExecResult, OnOutput, StreamName
from gym.sandbox.waiting import uncancelled

KILLED = 128 + 9
KILL_SECONDS = 30.0
DRAIN_SECONDS = 3.0


@dataclass(frozen=True)
class Terms:
    """Bounds of one command, and who runs it; see `Sandbox.exec`."""

    identity: Identity | None
    timeout_seconds: float
    max_output_bytes: int
    on_output: OnOutput | None = None

    @property
    def limits(self) -> Limits:
        """What has to come back of the output: all of it where somebody watches."""
        return Limits.of(self.max_output_bytes, everything=self.on_output is not None)


class Command:
    """One command.

    Args:
        remote: The sandbox.
        mark: Of the command's processes.
        terms: Its bounds.
        ended: Set, with the reason, when the sandbox ends.
        owned: The end of the sandbox ends all processes, so that the command need not be killed then.
    """

    def __init__(self, remote: Remote, mark: str, terms: Terms, ended: asyncio.Future[str], *, owned: bool) -> None:
        self._remote = remote
        self._mark = mark
        self._terms = terms
        self._ended = ended
        self._owned = owned
        loop = asyncio.get_running_loop()
        self._complete: asyncio.Future[None] = loop.create_future()
        self._failed: asyncio.Future[None] = loop.create_future()
        self._out = _Stream("stdout", terms, self._closed, self._failed)
        self._err = _Stream("stderr", terms, self._closed, self._failed)

    async def run(self, script: Script) -> ExecResult:
        """Run it. No process of it is left when this returns or raises, unless it had put it into the background.

        Raises:
            EpisodeFailure: `sandbox_lost`: the sandbox ended, or processes could not be started or ended.
            DeploymentError: the sandbox or the deployment cannot be reached.
        """
        began = time.monotonic()
        for path, content in script.files.items():
            await self._remote.upload(path, content)
        call = asyncio.ensure_future(self._call(script))
        try:
            await self._wait(call)
            self._raise(call)
        except BaseException as first:
            try:
                await uncancelled(self._close(call, script))
            except (EpisodeFailure, DeploymentError):
                # A sandbox that is lost anyway, or a cancellation, tells more.
                if not isinstance(first, EpisodeFailure | DeploymentError | asyncio.CancelledError):
                    raise
            raise
        timed_out = not self._complete.done()
        await uncancelled(self._close(call, script))
        return self._result(timed_out, time.monotonic() - began)

    async def _call(self, script: Script) -> None:
        terms = self._terms
        await self._remote.run(script.command, script.env, terms.identity, self._out.feed, self._err.feed)

    def _closed(self) -> None:
        ended = self._out.refused or (self._out.closed and self._err.closed)
        if ended and not self._complete.done():
            self._complete.set_result(None)

    async def _wait(self, call: asyncio.Future[None]) -> None:
        """Wait for the end of the command, of its time, of the sandbox or of the connection."""
        signs: set[asyncio.Future[Any]] = {self._complete, self._failed, self._ended, call}
        await asyncio.wait(signs, timeout=self._terms.timeout_seconds, return_when=asyncio.FIRST_COMPLETED)

    def _raise(self, call: asyncio.Future[None]) -> None:
        """Raise what ended the command too early."""
        if self._failed.done():
            self._failed.result()
        if self._complete.done() and not self._out.refused:
            return
        if self._ended.done():
            raise EpisodeFailure("sandbox_lost", f"{self._ended.result()}, while a command ran in it")
        if self._complete.done() or call.done():
            if call.done():
                call.result()
            why = self._out.refused or self._err.records.other or self._out.records.other
            if not why:
                raise DeploymentError(None, "the connection to a command was lost")
            raise EpisodeFailure("sandbox_lost", f"the sandbox could not run a command: {why}")

    async def _close(self, call: asyncio.Future[None], script: Script) -> None:
        """End the processes if the command has not ended by itself, and then the connection."""
        try:
            if not self._complete.done() and not (self._ended.done() and self._owned):
                await run_to_end(self._remote, end_script(self._mark), self._terms.identity)
                await asyncio.wait({self._complete, call}, timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The daemon may keep the stream of a finished command open for a while.
            await _drop(call)
            self._complete.cancel()
            if not self._failed.cancel() and not self._failed.cancelled():
                self._failed.exception()  # mark as seen, also when another error is on its way
        if script.files:
            await self._remote.delete(list(script.files))

    def _result(self, timed_out: bool, duration_seconds: float) -> ExecResult:
        out, err = self._out.capture, self._err.capture
        code = KILLED if timed_out else self._out.exit_code
        return ExecResult(
            exit_code=code,
            stdout=out.value(),
            stderr=err.value(),
            timed_out=timed_out,
            signal=code - 128 if 128 < code <= 128 + 64 else None,
            oom=self._out.oom,
            stdout_truncated=out.left_out,
            stderr_truncated=err.left_out,
            duration_seconds=duration_seconds,
        )


async def run_to_end(remote: Remote, script: Script, identity: Identity | None = None) -> None:
    """Run a script that ends processes.

    Raises:
        EpisodeFailure: `sandbox_lost`: some are left, or it is not known.
        DeploymentError: the sandbox or the deployment cannot be reached.
    """
    records, texts = Records(), []
    done: list[bool] = []

    def read(text: str) -> None:
        for record in records.feed(text):
            done.append(record.kind == "=")
            texts.append(record.content.decode())
            ended.set()

    ended = asyncio.Event()
    call = asyncio.ensure_future(remote.run(script.command, script.env, identity, read, read))
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({call, waiting}, timeout=KILL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        failed = await _drop(call)
    if not done and failed is not None:
        raise failed
    if done != [True]:
        why = " ".join(texts) or records.other or "no answer"
        raise EpisodeFailure("sandbox_lost", f"processes could not be ended: {why}")


async def _drop(call: asyncio.Future[None]) -> BaseException | None:
    """Give up a call; what it had failed with before, if it had."""
    call.cancel()
    await asyncio.wait({call})
    return None if call.cancelled() else call.exception()


class _Stream:
    """One stream of a command.

    Args:
        name: Which one.
        terms: Of the command.
        on_closed: Called once all of it is here, or will never be.
        failed: Set with what `on_output` raises.
    """

    def __init__(
        self, name: StreamName, terms: Terms, on_closed: Callable[[], None], failed: asyncio.Future[None]
    ) -> None:
        self.closed = False
        self.records = Records()
        self.capture = _Capture(terms.max_output_bytes)
        self.exit_code = 0
        self.oom = False
        self.refused = ""
        self._name = name
        self._on_closed = on_closed
        self._failed = failed
        self._tail = terms.limits.tail
        self._on_output = terms.on_output

    def feed(self, text: str) -> None:
        """Take some of its text."""
        for record in self.records.feed(text):
            content = record.content
            match record.kind:
                case "":
                    self._output(content)
                case "#":
                    self.capture.skip(max(0, int(content) - self._tail))
                case "!":
                    self.refused = content.decode()
                    self._on_closed()
                case _:
                    self.oom = content.endswith(b"+")
                    self.exit_code = int(content.rstrip(b"+") or b"0")
                    self.closed = True
                    self._on_closed()

    def _output(self, chunk: bytes) -> None:
        self.capture.feed(chunk)
        if self._on_output is None or not chunk or self._failed.done():
            return
        try:
            self._on_output(self._name, chunk)
        except Exception as error:  # raised again in the caller of `exec`
            self._failed.set_exception(error)


class _Capture(Capture):
    """One whose middle may never have come here."""

    def skip(self, count: int) -> None:
        """Bytes of the stream that were left out on the way, after the beginning was complete."""
        self._total += count
