"""What an agent's sandbox leaves: hooks that save state, files that are kept, and their way to a separate verifier."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Literal

from gym.failures import EpisodeFailure
from gym.harbor.boxes import Box, told
from gym.harbor.config import Artifact, CollectHook
from gym.harbor.phases import ARTIFACTS

MANIFEST = "manifest.json"
LIMIT_BYTES = 256 * 1024 * 1024
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)
"""What is said of something that is neither a file nor a folder, or not there at all."""

log = logging.getLogger(__name__)

# A folder keeps its place, where commands may start; $2 says whether it is to be one.
CLEAR = r"""
if [ "$2" ] && [ -d "$1" ] && [ ! -L "$1" ]; then
    find "$1" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +
else
    rm -rf -- "$1"
fi
"""


@dataclass(frozen=True)
class Entry:
    """A line of the manifest, as Harbor writes it.

    Attributes:
        destination: Below the folder of the trial.
        status: `failed`: it was not there, or could not be read. `empty`: a folder without content. `skipped`: another
            one has its place.
    """

    source: str
    destination: str
    type: Literal["file", "directory"]
    status: Literal["ok", "failed", "empty", "skipped"]
    service: str | None = None
    exclude: list[str] = field(default_factory=list)


async def run_hooks(box: Box, hooks: Sequence[CollectHook]) -> list[str]:
    """Runs the commands that save state; one that fails is told, and the others still run."""
    failed = []
    for hook in hooks:
        result = await box.run(["/bin/sh", "-c", hook.command], user=hook.user, timeout_seconds=hook.timeout_sec)
        if result.timed_out or result.exit_code:
            failed.append(f"collect hook `{hook.command[:100]}`: {told(result)}")
            log.warning("%s: %s", box.name, failed[-1])
    return failed


@dataclass
class Collected:
    """What came of the artifacts of a step.

    Attributes:
        entries: Of each.
        lost: Why those that were there could not be kept, by source.
    """

    entries: list[Entry] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """For people."""
        return [f"the artifact {source} was not kept: {why}" for source, why in self.lost.items()]


async def collect(box: Box, artifacts: Sequence[Artifact], folder: Path) -> Collected:
    """Copies files out of a sandbox, with a manifest beside them. What cannot be had is noted there.

    Args:
        folder: New, or empty.

    Raises:
        EpisodeFailure: `sandbox_lost`.
    """
    collected = Collected()
    entries = collected.entries
    taken: list[Path] = []
    for artifact in artifacts:
        target = folder / place(artifact)
        if any(target == other or target in other.parents or other in target.parents for other in taken):
            entries.append(_entry(artifact, folder, target, "skipped"))
            continue
        taken.append(target)
        entries.append(await _take(box, artifact, folder, target, collected.lost))
    text = json.dumps([asdict(entry) for entry in entries], indent=2)
    await asyncio.to_thread(write, folder / MANIFEST, text)
    return collected


def place(artifact: Artifact) -> Path:
    """Where an artifact lies below the folder of artifacts: as it says, else at its own path."""
    return Path(artifact.destination or artifact.source.lstrip("/"))


async def put_back(box: Box, artifacts: Sequence[Artifact], collected: Collected, folder: Path) -> None:
    """Puts what was collected into another sandbox, each at the path that it came from.

    Args:
        collected: What `collect` said of them.

    Raises:
        EpisodeFailure: `artifact_lost`: one was there, and could not be kept; `sandbox_lost`.
    """
    if collected.lost:
        raise EpisodeFailure("artifact_lost", "; ".join(collected.notes), stage="verification")
    for artifact, entry in zip(artifacts, collected.entries, strict=True):
        if entry.status not in ("ok", "empty"):
            continue
        kept = folder / place(artifact)
        target = str(PurePosixPath(box.workdir) / artifact.source)
        await box.as_root(CLEAR, target, "folder" if kept.is_dir() else "")
        await box.put(kept, target)
        if artifact.source.rstrip("/") == ARTIFACTS:
            await box.as_root('chmod 777 "$1"', target)


async def _take(box: Box, artifact: Artifact, folder: Path, target: Path, lost: dict[str, str]) -> Entry:
    source = str(PurePosixPath(box.workdir) / artifact.source)
    try:
        await box.sandbox.download(source, target, max_bytes=LIMIT_BYTES)
        await asyncio.to_thread(_leave_out, target, artifact.exclude)
    except OSError as error:
        if error.errno not in ABSENT:
            why = f"more than {LIMIT_BYTES} bytes" if error.errno == errno.EFBIG else str(error)
            lost[artifact.source] = why
            log.warning("%s: the artifact %s was not kept: %s", box.name, source, why)
        await asyncio.to_thread(remove, target)
        return _entry(artifact, folder, target, "failed")
    empty = target.is_dir() and not any(target.iterdir())
    return _entry(artifact, folder, target, "empty" if empty else "ok")


def remove(path: Path) -> None:
    """Removes a file or folder of this machine, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _leave_out(target: Path, patterns: Sequence[str]) -> None:
    """Removes what a pattern excludes: of a whole path in the folder, or of a name anywhere, as tar has it."""
    if not patterns or not target.is_dir():
        return
    for path in sorted(target.rglob("*")):
        names = (path.relative_to(target).as_posix(), path.name)
        if any(fnmatch(name, pattern.removeprefix("./")) for pattern in patterns for name in names):
            remove(path)


def _entry(
    artifact: Artifact, folder: Path, target: Path, status: Literal["ok", "failed", "empty", "skipped"]
) -> Entry:
    is_file = target.is_file() or (not target.exists() and PurePosixPath(artifact.source).suffix != "")
    return Entry(
        source=artifact.source,
        destination=f"artifacts/{target.relative_to(folder).as_posix()}",
        type="file" if is_file else "directory",
        status=status,
        service=None if artifact.service == "main" else artifact.service,
        exclude=[] if is_file else list(artifact.exclude),
    )


def write(path: Path, text: str) -> None:
    """Writes a file of this machine, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
