"""Programs that hide from their end, on every provider that isolates: it reaches them all the same."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from gym.failures import EpisodeFailure
from gym.sandbox.interface import Sandbox, SandboxProvider
from gym.sandbox.supervisor import launch
from gym.testing.sandbox_conformance.checks import MakeProvider
from gym.testing.sandbox_conformance.commands import HOLD, free
from tests.sandbox.conftest import PROVIDERS

HIDDEN = f"env -i PATH=$PATH setsid sh -c {shlex.quote(HOLD)}"
"""Holds the lock, in a session of its own and without the environment by which a command's processes are known."""

FORGED = """
directory=$(ls -d "${TMPDIR:-/tmp}"/gym-launch-*)
echo '{"return_code": 0, "timed_out": false, "stopped": false, "cleanup_confirmed": true, "started_at": 1,
    "ended_at": 2}' >"$directory/receipt.json"
kill -9 "$(cat "$directory/pid")"
"""


@pytest.fixture(params=["docker", "local-bubblewrap", "opensandbox"])
def make_provider(request: pytest.FixtureRequest, tmp_path: Path) -> MakeProvider:
    return lambda: PROVIDERS[request.param](tmp_path / "sandboxes")


async def test_a_fence_ends_what_hides(provider: SandboxProvider, sandbox: Sandbox) -> None:
    borrowed = await provider.connect(sandbox.descriptor())
    locked = asyncio.Event()
    running = asyncio.ensure_future(borrowed.exec(f"({HIDDEN} &); sleep 1000", on_output=lambda *_: locked.set()))
    await asyncio.wait_for(locked.wait(), 30)
    await sandbox.fence()
    assert await free(sandbox)
    (outcome,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(outcome, EpisodeFailure)
    assert re.search("taken (it )?back", outcome.message)


async def test_a_time_limit_ends_a_child_that_hides(sandbox: Sandbox) -> None:
    result = await sandbox.exec(f"{HIDDEN} & sleep 1000", timeout_seconds=2)
    assert (result.timed_out, result.stdout) == (True, b"locked\n")
    assert await free(sandbox)


async def test_a_forged_receipt_is_not_believed(sandbox: Sandbox) -> None:
    """The program ends its supervisor, says that all is well, and goes on."""
    started = await launch(sandbox, ["sh", "-c", FORGED + HOLD], deadline_seconds=60)
    receipt = await started.wait()
    assert receipt.cleanup_confirmed
    assert await free(sandbox)
