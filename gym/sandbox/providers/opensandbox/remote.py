"""What this provider uses of the OpenSandbox SDK: each call with a bound, and with one class of error.

The SDK is imported inside of functions, since most runs do without it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from io import IOBase
from typing import TYPE_CHECKING, Any, TypeVar

from gym.sandbox.providers.opensandbox.errors import DeploymentError, answer
from gym.sandbox.providers.opensandbox.settings import OpenSandboxConfig

if TYPE_CHECKING:
    from opensandbox import Sandbox as SdkSandbox
    from opensandbox import SandboxManager
    from opensandbox.config import ConnectionConfig
    from opensandbox.models.sandboxes import SandboxInfo

T = TypeVar("T")

BEING_REMOVED = "already in progress"
"""How Docker puts it that somebody else removes the container now."""

FIRST_RETRY_SECONDS = 0.1
POLL_SECONDS = 0.1
PAGE_SIZE = 100


@dataclass(frozen=True)
class Start:
    """A sandbox that is to be made."""

    image: str
    env: Mapping[str, str]
    cpu: float
    memory_mib: int
    ttl_seconds: float
    metadata: Mapping[str, str]
    deny_egress: bool


@dataclass(frozen=True)
class Identity:
    """Whom a command runs as."""

    uid: int
    gid: int


class Deployment:
    """One OpenSandbox, as the settings describe it."""

    def __init__(self, config: OpenSandboxConfig) -> None:
        self.config = config

    async def start(self, start: Start) -> Remote:
        """Make a sandbox and wait until it answers."""
        from opensandbox import Sandbox
        from opensandbox.models.sandboxes import NetworkPolicy

        config = self.config
        work = Sandbox.create(
            start.image,
            timeout=timedelta(seconds=math.ceil(start.ttl_seconds)),
            ready_timeout=timedelta(seconds=config.ready_timeout_seconds),
            env=dict(start.env),
            metadata=dict(start.metadata),
            resource={"cpu": f"{math.ceil(start.cpu * 1000)}m", "memory": f"{start.memory_mib}Mi"},
            network_policy=NetworkPolicy(default_action="deny") if start.deny_egress else None,
            connection_config=self._connection(),
            health_check_polling_interval=timedelta(seconds=POLL_SECONDS),
        )
        async with answer(config.start_timeout_seconds + config.ready_timeout_seconds):
            return Remote(await work, config)

    async def attach(self, sandbox_id: str) -> Remote:
        """Reach a sandbox that is there."""
        from opensandbox import Sandbox

        async with answer(self.config.request_timeout_seconds):
            found = await Sandbox.connect(sandbox_id, connection_config=self._connection(), skip_health_check=True)
            return Remote(found, self.config)

    async def find(self, metadata: Mapping[str, str]) -> list[SandboxInfo]:
        """All sandboxes with this metadata."""
        from opensandbox.models.sandboxes import SandboxFilter

        found: list[SandboxInfo] = []
        async with self._manager() as manager:
            page = 1
            while True:
                wanted = SandboxFilter(metadata=dict(metadata), page=page, page_size=PAGE_SIZE)
                answered = await manager.list_sandbox_infos(wanted)
                found += answered.sandbox_infos
                if not answered.pagination.has_next_page:
                    return found
                page += 1

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """State and metadata of one sandbox."""
        async with self._manager() as manager:
            return await manager.get_sandbox_info(sandbox_id)

    async def explain(self, sandbox_id: str, error: DeploymentError) -> str:
        """Why a sandbox could not be reached, in one line."""
        try:
            status = (await self.info(sandbox_id)).status
        except DeploymentError as second:
            if second.status == HTTPStatus.NOT_FOUND:
                return f"sandbox {sandbox_id} is gone: its owner has stopped it, or its time was up"
            return f"sandbox {sandbox_id} cannot be reached: {error}; nor can its deployment: {second}"
        if status.state == "Running":
            return f"sandbox {sandbox_id} cannot be reached: {error}"
        return f"sandbox {sandbox_id} is {status.state.lower()}: {status.message or error}"

    async def destroy(self, sandbox_id: str) -> None:
        """End a sandbox that perhaps is gone already."""
        try:
            async with self._manager() as manager:
                await manager.kill_sandbox(sandbox_id)
        except DeploymentError as error:
            if error.status != HTTPStatus.NOT_FOUND and BEING_REMOVED not in str(error):
                raise

    @asynccontextmanager
    async def _manager(self) -> AsyncIterator[SandboxManager]:
        from opensandbox import SandboxManager

        manager = await SandboxManager.create(self._connection())
        try:
            async with answer(self.config.request_timeout_seconds):
                yield manager
        finally:
            await manager.close()

    def _connection(self) -> ConnectionConfig:
        from opensandbox.config import ConnectionConfig
        from opensandbox.transport import RetryPolicy

        _quiet()
        config = self.config
        return ConnectionConfig(
            api_key=config.api_key,
            domain=config.domain,
            protocol=config.protocol,
            request_timeout=timedelta(seconds=config.start_timeout_seconds),
            use_server_proxy=config.use_server_proxy,
            disable_metrics=True,
            retry_policy=RetryPolicy(
                max_retries=config.max_retries,
                initial_backoff=timedelta(seconds=FIRST_RETRY_SECONDS),
                # Neither of these has done anything yet.
                retryable_status_codes_non_idempotent=frozenset(
                    {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
                ),
            ),
        )


class Remote:
    """One sandbox, as the SDK reaches it."""

    def __init__(self, sandbox: SdkSandbox, config: OpenSandboxConfig) -> None:
        self._sandbox = sandbox
        self._config = config

    @property
    def id(self) -> str:
        """Its name in the deployment."""
        return self._sandbox.id

    async def run(
        self,
        command: str,
        env: Mapping[str, str],
        identity: Identity | None,
        on_stdout: Callable[[str], None],
        on_stderr: Callable[[str], None],
    ) -> None:
        """Run a shell command until its stream ends; without a bound, and without another try."""
        from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts

        async def stdout(message: Any) -> None:
            on_stdout(message.text)

        async def stderr(message: Any) -> None:
            on_stderr(message.text)

        options = RunCommandOpts(envs=dict(env))
        if identity is not None:
            options = RunCommandOpts(envs=dict(env), uid=identity.uid, gid=identity.gid)
        handlers = ExecutionHandlers(on_stdout=stdout, on_stderr=stderr, skip_accumulation=True)
        async with answer(None):
            await self._sandbox.commands.run(command, opts=options, handlers=handlers)

    async def upload(self, path: str, content: bytes | IOBase) -> None:
        """Write a file that everybody in the sandbox can read."""
        async with answer(self._config.transfer_timeout_seconds):
            await self._sandbox.files.write_file(path, content, mode=644)

    async def download(self, path: str, sink: Callable[[bytes], object]) -> None:
        """Pass the content of a file to `sink`, in chunks; what that raises ends the download."""
        async with answer(self._config.transfer_timeout_seconds):
            async for chunk in await self._sandbox.files.read_bytes_stream(path):
                sink(chunk)

    async def delete(self, paths: list[str]) -> None:
        """Remove files."""
        async with answer(self._config.request_timeout_seconds):
            await self._sandbox.files.delete_files(paths)

    async def renew(self, seconds: float) -> None:
        """Let it end `seconds` from now."""
        async with answer(self._config.request_timeout_seconds):
            await self._sandbox.renew(timedelta(seconds=seconds))

    async def label(self, metadata: Mapping[str, str]) -> None:
        """Add metadata."""
        async with answer(self._config.request_timeout_seconds):
            await self._sandbox.patch_metadata(dict(metadata))

    async def close(self) -> None:
        """Close our connections; the sandbox stays."""
        await self._sandbox.close()


def _quiet() -> None:
    """The SDK logs, with tracebacks, every error that it raises as well."""
    logger = logging.getLogger("opensandbox")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
