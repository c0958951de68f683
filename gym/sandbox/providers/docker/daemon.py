"""The Docker daemon: its SDK in threads of our own, and the raw connection of an exec.

The SDK covers everything but an exec's streams: it has no half-close for standard input, needs a thread for as long as
a command runs, and may lose output that arrives together with the response head.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gym.errors import Problem, UserError

T = TypeVar("T")

HOSTS = ("unix://", "http+unix://", "tcp://", "http://")
SUPPORTED = "unix:// and tcp:// without TLS"
DEFAULT_HOST = "unix:///var/run/docker.sock"
THREADS = 32
CALL_SECONDS = 180
READ_BYTES = 256 * 1024


class DaemonError(Exception):
    """The daemon refused a call, or did not answer.

    Attributes:
        status: HTTP status; 0 when there was no answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status

    @property
    def gone(self) -> bool:
        """Whether the container does not exist or does not run."""
        if "is paused" in str(self):
            return False
        return self.status in (404, 409) or "is not running" in str(self)


class Daemon:
    """One Docker daemon. Nothing is reached before the first call.

    Args:
        host: Its address; None for `DOCKER_HOST` or the local socket.

    Attributes:
        closing: Long calls have to give up.
    """

    def __init__(self, host: str | None) -> None:
        self.closing = threading.Event()
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._opening = threading.Lock()
        self._client: Any = None

    async def call(self, work: Callable[[Any], T]) -> T:
        """Run `work` with the SDK's client in a thread.

        Raises:
            DaemonError: refused, or no answer.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.call_now, work)

    async def call_aside(self, work: Callable[[Any], None]) -> None:
        """The same as `call` for work that may take very long: a cancelled caller, and `close`, leave it to itself."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        def run() -> None:
            failed: Exception | None = None
            try:
                self.call_now(work)
            except Exception as error:
                failed = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, failed)

        threading.Thread(target=run, name="docker-aside", daemon=True).start()
        await done

    def call_now(self, work: Callable[[Any], T]) -> T:
        """The same as `call`, blocking."""
        import docker.errors
        import requests

        try:
            self._knock()
            return work(self._open())
        except docker.errors.APIError as error:
            raise DaemonError(error.status_code or 500, str(error.explanation or error)) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise DaemonError(0, f"the Docker daemon at {self.host} does not answer: {_cause(error)}") from error

    def _open(self) -> Any:
        with self._opening:
            if self._client is None:
                self._client = self.new_client(num_pools=THREADS, max_pool_size=THREADS, timeout=CALL_SECONDS)
        return self._client

    def new_client(self, **settings: Any) -> Any:
        """A client of its own for somebody who closes it; without a bound of a call unless one is given."""
        import docker

        given = docker.utils.kwargs_from_env() if "DOCKER_HOST" in os.environ else {}
        return docker.APIClient(**{"version": "auto", "timeout": None, **given, "base_url": self.host, **settings})

    def _knock(self) -> None:
        """Raises OSError where there is no socket: the SDK's own attempt leaks one, and says less."""
        if not self.host.startswith(HOSTS):
            raise OSError(f"only {SUPPORTED} are supported")
        parts = urlsplit(self.host)
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as tried:
                tried.connect(parts.path)

    def version(self) -> str:
        """The daemon's version; blocks.

        Raises:
            UserError: no daemon answers.
        """
        try:
            return str(self.call_now(lambda api: api.version())["Version"])
        except DaemonError as error:
            fix = "start Docker, set DOCKER_HOST, or choose another sandbox"
            raise UserError(Problem(str(error), fix, key="sandbox.host")) from error

    async def start_exec(self, exec_id: str) -> tuple[StreamReader, StreamWriter]:
        """Start a prepared exec and take over the connection, which then carries its streams.

        Raises:
            DaemonError: refused, or no answer.
        """
        path = await self.call(lambda api: f"/v{api.api_version}/exec/{exec_id}/start")
        body = b'{"Detach":false,"Tty":false}'
        head = (
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            reader, writer = await self._connect()
        except OSError as error:
            raise DaemonError(0, f"the Docker daemon at {self.host} does not answer: {error}") from error
        try:
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(answer.split(" ", 2)[1])
            if status not in (101, 200):
                raise DaemonError(status, await _message(reader, answer))
        except (OSError, asyncio.IncompleteReadError) as error:
            writer.close()
            raise DaemonError(0, f"the Docker daemon at {self.host} does not answer: {error}") from error
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        parts = urlsplit(self.host)
        if parts.scheme in ("unix", "http+unix"):
            return await asyncio.open_unix_connection(parts.path, limit=READ_BYTES)
        if parts.scheme in ("tcp", "http") and parts.hostname and "DOCKER_TLS_VERIFY" not in os.environ:
            return await asyncio.open_connection(parts.hostname, parts.port or 2375, limit=READ_BYTES)
        raise DaemonError(0, f"{self.host}: only {SUPPORTED} are supported")

    def close(self) -> None:
        """End the threads and connections; later calls fail."""
        self.closing.set()
        self._pool.shutdown(wait=True)
        if self._client is not None:
            self._client.close()


async def _message(reader: StreamReader, head: str) -> str:
    length = re.search(r"(?i)content-length: (\d+)", head)
    body = await reader.read(65536) if length is None else await reader.readexactly(int(length[1]))
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")


def _cause(error: BaseException) -> str:
    """The innermost reason of an error that libraries have wrapped several times."""
    found = re.findall(r"(?:Error\(\d+, ')([^']+)'", str(error))
    return found[-1] if found else " ".join(str(error).split())[:300]
