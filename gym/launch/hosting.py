"""Starts the servers of a run wherever each belongs: in this process, or in processes of their own.

All addresses are known before anything is started. Callers see no difference; the session keys that a process closes
are closed in all others, those included that are started later.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gym.errors import UserError
from gym.launch.in_process import STOP_ORDER, Instance, Launched, base_url, bind, launch
from gym.launch.logs import ServerLog
from gym.launch.process import Child, Nursery
from gym.launch.slices import CommonPart, Part, Slice, module_places, own_environment
from gym.launch.supervised import Event, ProcessServer, ProcessState, Ways
from gym.sandbox.interface import Common, SandboxProvider
from gym.sandbox.waiting import uncancelled
from gym.servers.keys import LONGEST_SECONDS, KeyRing
from gym.servers.waiting import background

SPIN_UP_SECONDS = 120.0
WILDCARDS = ("0.0.0.0", "::")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Apart:
    """An instance that gets processes of its own.

    Attributes:
        sandboxes: The sandbox provider blocks that it may use, by name.
        requirements: The file that its environment must satisfy; None: this process's environment does.
        common: What all sandboxes of the run have.
    """

    instance: Instance
    sandboxes: Mapping[str, Part]
    requirements: Path | None = None
    common: Common = field(default_factory=Common)


@dataclass(frozen=True)
class Place:
    """Where servers are, and how they behave there.

    Attributes:
        bind_host: Address to listen on.
        advertise_host: Address that others are told; default: `bind_host`.
        port: Port of the servers of this process; 0 for a free one.
        logs: Folder for a log of each instance with processes of its own.
        redact: Takes secrets out of what is logged.
        records: Folder for the record of model calls; None: there is none.
        secrets: What `redact` takes out, for the processes that write this record.
        spin_up_seconds: How long a process may take until it serves.
        tell: Is told what happens to the processes.
    """

    bind_host: str = "127.0.0.1"
    advertise_host: str | None = None
    port: int = 0
    logs: Path | None = None
    redact: Callable[[str], str] = str
    records: Path | None = None
    secrets: Sequence[str] = field(default=(), repr=False)
    spin_up_seconds: float = SPIN_UP_SECONDS
    tell: Callable[[Event], None] = lambda event: log.warning("%s", event.text)


@dataclass(frozen=True)
class Hosted:
    """Running servers.

    Attributes:
        servers: Those with processes of their own, by instance.
    """

    launched: Launched
    servers: Mapping[str, ProcessServer]

    def url(self, name: str) -> str:
        """The base URL of an instance."""
        return self.launched.directory.url(name)

    def processes(self) -> dict[str, list[ProcessState]]:
        """The processes of each instance that has its own, as they are now."""
        return {name: server.states() for name, server in self.servers.items()}


@asynccontextmanager
async def hosted(
    here: Sequence[Instance],
    apart: Sequence[Apart],
    *,
    sandboxes: Callable[[str], SandboxProvider],
    place: Place | None = None,
    token: str | None = None,
) -> AsyncIterator[Hosted]:
    """Starts all servers and stops them at exit, whatever happens in between.

    Args:
        here: The servers of this process.
        apart: Those that get processes of their own.
        sandboxes: Opens the sandbox provider of a top-level block by its name, in this process.
        token: Token of the run; default: a new random one.

    Raises:
        UserError: An address cannot be bound, an environment cannot be built, or servers refuse their settings.
    """
    place = place or Place()
    token = token or secrets.token_urlsafe(32)
    advertised = place.advertise_host or place.bind_host
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(bind(place.bind_host, place.port))
        fleet = Fleet(apart, place, token, sandboxes)
        stack.push_async_callback(lambda: uncancelled(fleet.stop()))
        own_url = base_url(advertised, listener)
        await fleet.begin({item.name: f"{own_url}/{item.name}" for item in here})
        launched = await stack.enter_async_context(
            launch(
                here,
                sandboxes=sandboxes,
                advertise_host=advertised,
                token=token,
                listener=listener,
                remote=fleet.urls,
                records=place.records,
                redact=place.redact,
            )
        )
        stack.push_async_callback(lambda: uncancelled(_leave(launched, fleet)))
        fleet.share(launched.keys)
        await fleet.ready()
        yield Hosted(launched, fleet.servers)


async def _leave(launched: Launched, fleet: Fleet) -> None:
    """What this process still does for others ends before they do; then they stop, and after them its own servers."""
    await launched.end_requests()
    await fleet.stop()


class Fleet:
    """The servers with processes of their own, and what they have in common.

    Attributes:
        servers: By instance. Their sockets are bound.
        urls: Base URL of each.
    """

    def __init__(
        self, apart: Sequence[Apart], place: Place, token: str, sandboxes: Callable[[str], SandboxProvider]
    ) -> None:
        self._apart, self._place, self._token, self._sandboxes = apart, place, token, sandboxes
        self._closed = KeyRing()
        self._rings: list[KeyRing] = [self._closed]
        self._nurseries: dict[Path | None, Nursery] = {}
        self._retired: list[Nursery] = []
        self._sweeping: set[asyncio.Task[None]] = set()
        self.servers: dict[str, ProcessServer] = {}
        self.urls: dict[str, str] = {}
        try:
            for item in apart:
                self._bind(item.instance)
        except BaseException:
            for server in self.servers.values():
                server.free()
            raise

    def _bind(self, instance: Instance) -> None:
        config, logs = instance.config, self._place.logs
        server_log = ServerLog(logs and logs / f"{instance.name}.log", self._place.redact, self._token)
        host = config.host or self._place.bind_host
        server = ProcessServer(instance.name, host, config.port or 0, config.num_workers or 1, server_log)
        self.servers[instance.name] = server
        self.urls[instance.name] = f"{base_url(self._advertised(instance), server.listener)}/{instance.name}"

    def _advertised(self, instance: Instance) -> str:
        own = instance.config.host if instance.config.host not in WILDCARDS else None
        return own or self._place.advertise_host or self._place.bind_host

    async def begin(self, others: Mapping[str, str]) -> None:
        """Starts all processes, once the environments that they need are there; `others` are the URLs of the rest."""
        for item in self._apart:
            python = await self._python(item)
            urls = {name: url for name, url in {**others, **self.urls}.items() if name != item.instance.name}
            self.servers[item.instance.name].begin(self._slice(item, urls), self._ways(item, python))

    async def ready(self) -> None:
        """Waits until all serve.

        Raises:
            UserError: What all of them refuse, together.
        """
        outcomes = await asyncio.gather(*(server.ready() for server in self.servers.values()), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        problems = [problem for error in errors if isinstance(error, UserError) for problem in error.problems]
        if problems:
            raise UserError(problems)
        if errors:
            raise errors[0]

    async def stop(self) -> None:
        """Stops them in the order of who calls whom; idempotent."""
        for kind in STOP_ORDER:
            names = [item.instance.name for item in self._apart if item.instance.type == kind]
            await asyncio.gather(*(self.servers[name].stop() for name in names))
        nurseries = [*self._nurseries.values(), *self._retired]
        await asyncio.gather(*self._sweeping, *(nursery.stop() for nursery in nurseries))

    def share(self, ring: KeyRing) -> None:
        """Makes this process's keys one with those of the others."""
        ring.tell = lambda session, expires_at: self._revoked(None, session, expires_at)
        self._rings.append(ring)

    def _revoked(self, by: Child | None, session: str, expires_at: float) -> None:
        for ring in self._rings:
            ring.learn(session, expires_at)
        for server in self.servers.values():
            for child in server.children():
                if child is not by:
                    child.learn(session, expires_at)

    async def _python(self, item: Apart) -> Path | None:
        if item.requirements is None:
            return None
        from gym.launch import environments

        def tell(text: str) -> None:
            self._place.tell(Event("note", item.instance.name, f"{item.instance.name}: {text}"))

        return await asyncio.to_thread(environments.prepare, item.requirements, tell)

    def _slice(self, item: Apart, urls: Mapping[str, str]) -> Slice:
        instance = item.instance
        server = Part.of(instance.server_class, instance.config, instance.name)
        records = self._place.records if instance.type == "responses_api_models" else None
        return Slice(
            name=instance.name,
            type=instance.type,
            server=server,
            sandboxes=dict(item.sandboxes),
            common=CommonPart.of(item.common),
            host=self._advertised(instance),
            urls=dict(urls),
            token=self._token,
            revoked={},
            records=str(records.resolve()) if records else None,
            secrets=list(self._place.secrets) if records else [],
            path=module_places(),
            environment=own_environment([server, *item.sandboxes.values()]),
        )

    def _ways(self, item: Apart, python: Path | None) -> Ways:
        return Ways(
            nursery=lambda: self._nursery(python),
            spin_up_seconds=self._place.spin_up_seconds,
            heard=self._revoked,
            tell=self._place.tell,
            revoked=self._closed.revoked,
            died=lambda issuer: self._died(item, issuer),
        )

    def _nursery(self, python: Path | None) -> Nursery:
        known = self._nurseries.get(python)
        if known is not None and known.gone:
            self._retired.append(self._nurseries.pop(python))
            known = None
        return known or self._nurseries.setdefault(python, Nursery(python))

    def _died(self, item: Apart, issuer: str) -> None:
        """Nobody is left to close the sessions of a dead process: its keys and its sandboxes go with it."""
        self._revoked(None, issuer, time.time() + LONGEST_SECONDS)
        for name in item.sandboxes:
            task = background(self._swept(name))
            self._sweeping.add(task)
            task.add_done_callback(self._sweeping.discard)

    async def _swept(self, name: str) -> None:
        """Removes the sandboxes that a dead process owned."""
        try:
            await self._sandboxes(name).sweep()
        except Exception as error:
            log.warning("the sandboxes of a dead process are left to the next sweep: %s", error)
