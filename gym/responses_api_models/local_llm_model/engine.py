"""The engine as the model server sees it: a process that is started, says where it serves, and leaves with the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gym.servers.waiting import background, ended

SCRIPT = Path(__file__).with_name("serve.py")
GRACE_SECONDS = 5.0
LINES_KEPT = 20
REASON = re.compile(r"error loading model: (.*)")
"""What llama.cpp says first and best of the lines that tell of one failure."""

log = logging.getLogger(__name__)


class EngineError(Exception):
    """The engine did not start, or not in time; the text says why in one line."""


class Engine:
    """A running engine.

    Attributes:
        url: Where it serves, such as `http://127.0.0.1:40123`.
        pid: Its process.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._listener = background(self._listen())
        self._watcher: asyncio.Task[None] | None = None
        self.url = ""
        self.pid = process.pid

    @classmethod
    async def start(cls, command: Sequence[str], order: Mapping[str, Any], seconds: float) -> Engine:
        """Starts the engine and waits until it serves.

        Args:
            command: The interpreter of its runtime.
            order: What `serve.py` reads.
            seconds: How long it may take.

        Raises:
            EngineError: It ended, or did not serve in time.
        """
        # A session of its own: the terminal's Ctrl-C is for the run, which ends it when the episodes have ended.
        process = await asyncio.create_subprocess_exec(
            *(*command, "-P", str(SCRIPT)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            env={"PATH": os.defpath},
        )
        engine = cls(process)
        try:
            await engine._begin(order, seconds)
        except BaseException:
            await engine.stop()
            raise
        return engine

    async def stop(self) -> None:
        """Ends it; idempotent."""
        await ended(self._watcher)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await ended(self._listener)

    async def _begin(self, order: Mapping[str, Any], seconds: float) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        try:
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise EngineError(f"it did not serve within {seconds:g} s") from error
        if not line:
            await self._process.wait()
            await self._listener
            raise EngineError(self._reason())
        self.url = json.loads(line)["address"]
        self._watcher = background(self._watch())

    async def _listen(self) -> None:
        """Keeps the last lines that it says: an engine that is not heard would stop when its pipe is full."""
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._said.append(line.decode("utf-8", "replace").strip())

    async def _watch(self) -> None:
        await self._process.wait()
        await self._listener
        log.error("the engine ended in the middle of the run: %s", self._reason())

    def _reason(self) -> str:
        """Why it ended, from its own words where it has said any."""
        found = [match.group(1) for line in self._said if (match := REASON.search(line))]
        code = self._process.returncode or 0
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return found[0] if found else f"{how}: {' | '.join(self._said) or 'without a word'}"[:500]
