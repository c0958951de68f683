"""The containers of an episode: started as the task describes them, and checked before anybody works in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harbor.config import Healthcheck, User
from gym.harbor.task import Container
from gym.harbor.variables import fill_env
from gym.sandbox.interface import ExecResult, ImageFacts, Network, Resources, Sandbox, SandboxProvider, SandboxSpec
from gym.sandbox.programs import FIND, SYSTEM_PATH, path_of
from gym.servers.contract import SandboxAccess, SandboxConnection
from gym.servers.lending import take_back

ROOT = "0"
LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
OUR_SECONDS = 60.0
SHOWN_CHARACTERS = 300

# Runs the script $1. A canary line may stand before its `#!`, or nothing: then bash runs it.
RUN_SCRIPT = r"""
IFS= read -r first <"$1"
case $first in "#!"*)
    program=${first#"#!"} program=${program# } program=${program%% *}
    [ ! -x "$program" ] || [ ! -x "$1" ] || exec "$1"
    ;;
esac
for shell in /bin/bash /usr/bin/bash /usr/local/bin/bash; do [ ! -x "$shell" ] || exec "$shell" "$1"; done
exec /bin/sh "$1"
"""

# $1 is the folder, $2 its owner or nothing.
WORKDIR = r"""
[ ! -d "$1" ] || exit 0
rm -f -- "$1"
mkdir -p -- "$1" && { [ -z "$2" ] || chown "$2" "$1"; }
"""

# As Docker Compose starts it for Harbor: the image's own entrypoint, in front of something that waits.
ENTRYPOINT = 'setsid "$@" sh -c "sleep infinity" >/dev/null 2>&1 </dev/null & true'


@dataclass(frozen=True)
class Box:
    """A container of an episode.

    Attributes:
        workdir: Where its commands start.
        provider: Block of its provider.
        name: What messages call it: the rollout that it is of.
        user: Who its commands run as that name nobody; None where that is not known.
        path: PATH of our own scripts; see `gym.sandbox.programs`.
        image_path: PATH of everybody else's, as it was before an agent came.
    """

    sandbox: Sandbox
    workdir: str
    provider: str
    image: ImageFacts
    name: str = ""
    user: str | None = None
    path: str = SYSTEM_PATH
    image_path: str = SYSTEM_PATH

    async def run(
        self,
        argv: list[str],
        *,
        user: User | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float = OUR_SECONDS,
        cwd: str | None = None,
        max_output_bytes: int = 65536,
    ) -> ExecResult:
        """Runs a command where the task's commands start.

        Raises:
            EpisodeFailure: `sandbox_lost`; `configuration` where the image has no such user.
        """
        try:
            return await self.sandbox.exec(
                argv,
                user=None if user is None else str(user),
                env=env,
                cwd=cwd or self.workdir,
                timeout_seconds=timeout_seconds,
                max_output_bytes=max_output_bytes,
            )
        except UserError as error:
            raise EpisodeFailure("configuration", str(error)) from error

    async def as_root(self, script: str, *words: str, max_output_bytes: int = 65536) -> ExecResult:
        """Runs a small script of ours; `words` are its $1, $2, ..."""
        argv = ["/bin/sh", "-c", script, "sh", *words]
        return await self.run(argv, user=ROOT, env={"PATH": self.path}, cwd="/", max_output_bytes=max_output_bytes)

    async def make_workdir(self) -> None:
        """Makes the folder where commands start, if it is gone, or something else has its place."""
        await self.as_root(WORKDIR, self.workdir, self.user or "")

    def lent(self, user: User | None, *, keeps_services: bool) -> SandboxAccess:
        """What an agent gets to work in it."""
        connection = SandboxConnection(provider_config_ref=self.provider, descriptor=self.sandbox.descriptor())
        access = SandboxAccess(connection=connection, workdir=self.workdir)
        more = {"user": None if user is None else str(user), "keeps_services": keeps_services or None}
        # Only what is set goes out: not every agent knows these.
        return access.model_copy(update={name: value for name, value in more.items() if value is not None})

    async def take_back(self) -> None:
        """Ends the loan. What runs goes on: services of the image, and those of the agent's that may be the outcome.

        Raises:
            EpisodeFailure: `sandbox_lost`.
        """
        await take_back(self.sandbox, keep_running=True)

    async def put(self, source: Path | bytes, target: str) -> None:
        """Copies a file or folder into it, readable for all.

        Raises:
            EpisodeFailure: `sandbox_lost`, also where it has no room.
        """
        try:
            await self.sandbox.upload(source, target)
        except OSError as error:
            raise EpisodeFailure("sandbox_lost", f"{target} cannot be written in the sandbox: {error}") from error


async def start(
    provider: SandboxProvider,
    block: str,
    container: Container,
    image: ImageFacts,
    network: Network,
    labels: Mapping[str, str],
    environment: Mapping[str, str],
) -> Box:
    """Starts a container with its image's entrypoint, and folders for logs.

    Args:
        block: Block of the provider.
        environment: Where `${VAR}` gets its values from.

    Raises:
        EpisodeFailure: `configuration`, `sandbox_start`, `sandbox_lost`.
    """
    config = container.config
    workdir = config.workdir or image.workdir
    spec = SandboxSpec(
        image=image.name,
        # Providers give commands a work directory of their own; the whole root is none.
        workdir="/tmp" if workdir == "/" else workdir,
        env=fill_env(config.env, environment).values,
        resources=Resources(cpu=config.cpus, memory_mib=config.memory_mb, disk_mib=config.storage_mb),
        network=network,
        labels=labels,
    )
    try:
        sandbox = await provider.create(spec)
    except UserError as error:
        raise EpisodeFailure("configuration", str(error)) from error
    name = labels.get("rollout", sandbox.id)
    box = Box(sandbox, workdir, block, image, name, (image.user or ROOT) if provider.capabilities.root else None)
    try:
        said = await box.run(["/bin/sh", "-c", f'echo "$PATH"\n{FIND}'], user=ROOT, cwd="/")
        image_path, _, needed = said.stdout_text.partition("\n")
        box = replace(box, path=path_of(needed), image_path=image_path)
        await box.as_root('mkdir -p "$@" && chmod 777 "$@"', *LOGS)
        if image.entrypoint:
            await box.run(["/bin/sh", "-c", ENTRYPOINT, "sh", *image.entrypoint])
    except BaseException:
        await sandbox.stop()
        raise
    return box


async def wait_until_healthy(box: Box, check: Healthcheck, user: User | None) -> None:
    """Asks until the check passes: after the start period, at most `retries` times in a row without success.

    Raises:
        EpisodeFailure: `healthcheck_failed`.
    """
    starts_until = time.monotonic() + check.start_period_sec
    failures = 0
    while True:
        starting = time.monotonic() < starts_until
        result = await box.run(["/bin/sh", "-c", check.command], user=user, timeout_seconds=check.timeout_sec)
        if result.exit_code == 0 and not result.timed_out:
            return
        failures += not starting
        if failures >= check.retries:
            what = f"{_times(failures)}: {' '.join(check.command.split())[:100]}: {told(result)}"
            raise EpisodeFailure("healthcheck_failed", what)
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


def told(result: ExecResult) -> str:
    """How a command ended, with the last line of what it said."""
    ended = "ran out of time" if result.timed_out else f"exit code {result.exit_code}"
    lines = (result.stdout_text + result.stderr_text).strip().splitlines()
    return f"{ended}, {lines[-1][:SHOWN_CHARACTERS]}" if lines else ended


def _times(number: int) -> str:
    return f"the healthcheck failed {number} times in a row" if number > 1 else "the healthcheck failed"
