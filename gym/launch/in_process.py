"""Hosts all servers of a run in this process: one event loop, one port, each instance under `/<instance>/`.

The port is bound before anything is built, so that every address is known at once and no other process can take it.
Calls between the servers need no HTTP; the HTTP side is loaded when the first connection arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hmac
import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym.errors import Problem, UserError
from gym.launch.logs import masker
from gym.sandbox.interface import SandboxProvider
from gym.sandbox.waiting import uncancelled
from gym.servers.base import Server, ServerConfig, ServerContext, one_line
from gym.servers.client import Client, Directory
from gym.servers.contract import ServerType
from gym.servers.keys import KeyRing
from gym.servers.sessions import Signer
from gym.servers.waiting import background, ended

if TYPE_CHECKING:
    import uvicorn

STOP_SECONDS = 30.0
"""How long one server may take to stop."""

HTTP_GRACE_SECONDS = 2
"""How long requests that still run at the end may take before they are cancelled."""

ServerClass = type[Server[Any]]
STOP_ORDER: tuple[ServerType, ...] = (
    "environment_servers",
    "responses_api_agents",
    "resources_servers",
    "responses_api_models",
)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Instance:
    """A server to start: its name, and the class and settings that make it."""

    name: str
    type: ServerType
    server_class: ServerClass
    config: ServerConfig


@dataclass(frozen=True)
class Launched:
    """Running servers, as their callers reach them.

    Attributes:
        token: What every HTTP request must carry.
        base_url: `http://host:port`; an instance is at `<base_url>/<name>`.
        keys: The session keys, as this process knows them.
        end_requests: Stops listening and ends the requests that still run, with their cleanups. Happens at exit
            anyway; call it before what the servers of this process need is taken away.
    """

    client: Client
    directory: Directory
    token: str
    base_url: str
    keys: KeyRing
    end_requests: Callable[[], Awaitable[None]]


@asynccontextmanager
async def launch(
    instances: Sequence[Instance],
    *,
    sandboxes: Callable[[str], SandboxProvider],
    bind_host: str = "127.0.0.1",
    advertise_host: str | None = None,
    port: int = 0,
    token: str | None = None,
    listener: socket.socket | None = None,
    remote: Mapping[str, str] | None = None,
    records: Path | None = None,
    redact: Callable[[str], str] = str,
) -> AsyncIterator[Launched]:
    """Starts servers in this process and stops them at exit, whatever happens in between.

    Args:
        instances: The servers.
        sandboxes: Opens the sandbox provider of a top-level block by its name.
        bind_host: Address to listen on.
        advertise_host: Address that others are told; default: `bind_host`, or loopback for a wildcard.
        port: Port to listen on; 0 for a free one.
        token: Token of the run; default: a new random one.
        listener: Socket that listens already, in place of `bind_host` and `port`; closed at exit.
        remote: Base URLs of the instances of other processes.
        records: Folder for the record of model calls; None: there is none.
        redact: Takes the configuration's secrets out of it.

    Raises:
        UserError: The address cannot be bound, or servers refuse their settings; all of them together.
    """
    token = token or secrets.token_urlsafe(32)
    listener = listener or bind(bind_host, port)
    directory = Directory(remote=dict(remote or {}), base_url=base_url(advertise_host or bind_host, listener))
    client = Client(directory, token)
    keys = KeyRing(_derived(token, "session keys"))
    host = _HttpHost(listener, directory, token)
    started: list[Instance] = []
    try:
        directory.local.update(_construct(instances, client, keys, sandboxes, records, redact))
        await _start(instances, directory, started)
        host.listen()
        yield Launched(client, directory, token, directory.base_url, keys, host.close)
    finally:
        await uncancelled(_stop(host, started, directory, client))


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A socket that listens at an address; `reuse_port` lets several of one run share it.

    Raises:
        UserError: The address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048, reuse_port=reuse_port)
    except (OSError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number) if number and number > 0 else str(error)
        raise UserError(
            Problem(f"cannot listen on {host}:{port}: {reason}", "choose another port or `bind_host`")
        ) from error
    # Connections inherit it. asyncio would set it itself, but not where the protocol number is left as 0, as here:
    # then head and body of an answer, written apart, meet a delayed acknowledgement of 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


def base_url(host: str, listener: socket.socket) -> str:
    """The address of a listening socket as others are told it: for a wildcard, loopback."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def calm_collector() -> None:
    """Makes garbage collection rarer: what is loaded now stays, and thousands of episodes are no garbage either.

    At 512 concurrent episodes the default thresholds cost a quarter of the CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _construct(
    instances: Sequence[Instance],
    client: Client,
    keys: KeyRing,
    sandboxes: Callable[[str], SandboxProvider],
    records: Path | None,
    redact: Callable[[str], str],
) -> dict[str, Server[Any]]:
    signer = Signer(_derived(client.token, "cookies"))
    mask = masker(redact, client.token)
    servers: dict[str, Server[Any]] = {}
    problems: list[Problem] = []
    for instance in instances:
        try:
            context = ServerContext(instance.name, client, signer, sandboxes, keys, records, mask)
            servers[instance.name] = instance.server_class(instance.config, context)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return servers


def _derived(token: str, purpose: str) -> bytes:
    """A secret of its own for a purpose: all processes of a run read each other's cookies and session keys."""
    return hmac.digest(token.encode(), purpose.encode(), "sha256")


async def _start(instances: Sequence[Instance], directory: Directory, started: list[Instance]) -> None:
    """Starts all concurrently and waits for all; those that started are added to `started`."""

    async def start(instance: Instance) -> None:
        try:
            await directory.local[instance.name].start()
        except UserError:
            raise
        except Exception as error:
            log.exception("%s could not be started", instance.name)
            raise UserError(Problem(f"{instance.name} could not be started: {one_line(error)}", "")) from error
        started.append(instance)

    outcomes = await asyncio.gather(*map(start, instances), return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    problems = [problem for error in errors if isinstance(error, UserError) for problem in error.problems]
    if problems:
        raise UserError(problems)
    if errors:
        raise errors[0]


async def _stop(host: _HttpHost, started: Sequence[Instance], directory: Directory, client: Client) -> None:
    """Stops in the order of who calls whom; nothing here fails or takes for ever."""
    await host.close()
    for kind in STOP_ORDER:
        names = [instance.name for instance in started if instance.type == kind]
        await asyncio.gather(*(_stop_server(name, directory.local[name]) for name in names))
    await client.aclose()


async def _stop_server(name: str, server: Server[Any]) -> None:
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await server.stop()
    except TimeoutError:
        log.warning("%s did not stop within %g s", name, STOP_SECONDS)
    except Exception:
        log.exception("%s failed to stop", name)


class _HttpHost:
    """The HTTP side of the servers. Nothing of it is loaded before the first connection arrives."""

    def __init__(self, listener: socket.socket, directory: Directory, token: str) -> None:
        self._listener = listener
        self._directory = directory
        self._token = token
        self._serving: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._closed = False

    def listen(self) -> None:
        """Waits for a connection. Those that arrive early are answered as soon as the HTTP side is loaded."""
        asyncio.get_running_loop().add_reader(self._listener, self._first_connection)

    def _first_connection(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._serving = background(self._serve())

    async def _serve(self) -> None:
        try:
            server = await asyncio.to_thread(_new_uvicorn, self._directory, self._token, self._leave)
            await server.serve([self._listener])
            if cancelled := server.server_state.tasks:
                await asyncio.wait(cancelled)
        except Exception:
            log.exception("the HTTP server failed; servers cannot be reached from outside this process")
            self._listener.close()

    async def close(self) -> None:
        """Stops listening, gives running requests a moment, and cancels what is left of them; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._leave.set()
        if self._serving is None:
            asyncio.get_running_loop().remove_reader(self._listener)
        else:
            await asyncio.wait([self._serving], timeout=HTTP_GRACE_SECONDS + STOP_SECONDS)
            await ended(self._serving)
        self._listener.close()


def _new_uvicorn(directory: Directory, token: str, leave: asyncio.Event) -> uvicorn.Server:
    import uvicorn

    from gym.servers.http import build_host

    class Guest(uvicorn.Server):
        """Runs in a program of others: leaves the signals alone, and waits to be told instead of looking."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def main_loop(self) -> None:
            await leave.wait()

    config = uvicorn.Config(
        build_host(directory.local, token),
        access_log=False,
        date_header=False,
        log_config=None,
        log_level="warning",
        lifespan="off",
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=HTTP_GRACE_SECONDS,
    )
    config.load()
    return Guest(config)
