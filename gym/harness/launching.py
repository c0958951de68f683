"""Runs a harness to its end, and keeps what it leaves: bounded, and without the session's secrets."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gym.harness.adapter import Evidence, Invocation
from gym.harness.placing import run_or_as_root, write_files
from gym.sandbox import supervisor
from gym.sandbox.interface import Sandbox
from gym.sandbox.output import Capture
from gym.sandbox.scratch import scratch
from gym.sandbox.waiting import uncancelled

STDOUT_BYTES = 64 * 1024 * 1024
STDERR_BYTES = 64 * 1024
GRACE_SECONDS = 5
COLLECT_BYTES = 64 * 1024 * 1024
MASK = b"***"
LONGEST_LINE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Site:
    """Where a harness runs.

    Attributes:
        user: User of the sandbox that it runs as; None for the sandbox's own.
        keeps_services: What it has left running as a service goes on after its end.
        secrets: Texts that are masked in all that it leaves.
    """

    sandbox: Sandbox
    folder: str
    workdir: str
    user: str | None = None
    secrets: tuple[str, ...] = ()
    keeps_services: bool = False


class _Lines:
    """Whole lines of standard output; those that begin with a text of `noise` are dropped as they come."""

    def __init__(self, noise: Sequence[str]) -> None:
        self.capture = Capture(STDOUT_BYTES)
        self._noise = tuple(text.encode() for text in noise)
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._keep(line + b"\n")
        if len(self._rest) > LONGEST_LINE_BYTES:
            self._keep(self._rest)
            self._rest = b""

    def value(self) -> bytes:
        self._keep(self._rest)
        self._rest = b""
        return self.capture.value()

    def _keep(self, line: bytes) -> None:
        if not self._noise or not line.startswith(self._noise):
            self.capture.feed(line)


async def launch(site: Site, invocation: Invocation, evidence: Evidence, timeout_seconds: float) -> None:
    """Starts the process of an invocation and waits for its end; then `evidence.ended` tells whether all of it is gone.

    Args:
        evidence: Filled as it comes, so that a cancelled run leaves what there was until then.
        timeout_seconds: After this time it is ended.

    Raises:
        EpisodeFailure: `sandbox_lost`.
    """
    await write_files(site.sandbox, site.folder, dict(invocation.files), site.user)
    out = _Lines(invocation.noise)
    begun = time.monotonic()
    started = await supervisor.launch(
        site.sandbox,
        list(invocation.argv),
        deadline_seconds=timeout_seconds,
        env=invocation.env,
        cwd=site.workdir,
        user=site.user,
        grace_seconds=GRACE_SECONDS,
        stdin=invocation.stdin,
        on_stdout=out.feed,
        keeps_services=site.keeps_services,
    )
    try:
        await started.wait()
    finally:
        evidence.stdout = _masked(out.value(), site.secrets).decode("utf-8", "replace")
        evidence.duration_seconds = time.monotonic() - begun
        await uncancelled(_conclude(site, started, evidence))
    if out.capture.left_out:
        evidence.gaps.append(f"{out.capture.left_out} bytes of the harness's output were not kept")
    if invocation.collect is not None:
        await _collect(site, invocation.collect, evidence)


async def _conclude(site: Site, started: supervisor.Launch, evidence: Evidence) -> None:
    """Ends what still runs, and reads how it ended."""
    receipt = await started.stop()
    evidence.exit_code, evidence.timed_out = receipt.return_code, receipt.timed_out
    evidence.ended = receipt.cleanup_confirmed
    logs = await started.logs(STDERR_BYTES)
    evidence.stderr = _masked(logs.stderr, site.secrets).decode("utf-8", "replace")
    await run_or_as_root(site.sandbox, ["rm", "-rf", "--", started.directory])


async def _collect(site: Site, folder: str, evidence: Evidence) -> None:
    """Copies the harness's own files out. Where they cannot be had, that is a gap and no failure."""
    copy = await asyncio.to_thread(scratch, "evidence")
    try:
        target = Path(copy.name) / "files"
        await site.sandbox.download(f"{site.folder}/{folder}", target, max_bytes=COLLECT_BYTES)
        evidence.files = await asyncio.to_thread(_read, target, site.secrets)
    except FileNotFoundError:
        evidence.gaps.append("the harness left no session files")
    except OSError as error:
        what = f"more than {COLLECT_BYTES} bytes" if error.errno == errno.EFBIG else str(error.strerror or error)
        evidence.gaps.append(f"the harness's session files were not kept: {what}")
    finally:
        await asyncio.to_thread(copy.cleanup)


def _read(folder: Path, secrets: Sequence[str]) -> dict[str, bytes]:
    """The regular files of a folder by their path in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(folder))] = _masked(path.read_bytes(), secrets)
    return found


def _masked(raw: bytes, secrets: Sequence[str]) -> bytes:
    for secret in secrets:
        raw = raw.replace(secret.encode(), MASK)
    return raw
