"""A server in processes of its own: started, started again when they die, and stopped.

The parent binds the sockets and keeps them open, so the address never changes and nobody else can take it; a connection
that comes while a process is being started again waits for it.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from gym.errors import Problem, UserError
from gym.launch.in_process import bind
from gym.launch.logs import ServerLog
from gym.launch.process import Child, Died, Nursery
from gym.launch.slices import Slice
from gym.servers.waiting import background, ended

RESTARTS = 5
"""How often in a row a process that dies is started again."""
STEADY_SECONDS = 60.0
"""A process that ran for so long does not count as one in a row."""
FIRST_BACKOFF_SECONDS = 0.5

State = Literal["starting", "running", "died", "given up", "stopped"]


@dataclass(frozen=True)
class Event:
    """Something worth telling while servers run.

    Attributes:
        kind: `note`; `progress`: a line that the next one replaces, empty at the end; `died`: a process ended by
            itself and is started again; `up`: it serves again; `lost`: it is not started any more; `left`: sandboxes
            may be left behind.
    """

    kind: Literal["note", "progress", "died", "up", "lost", "left"]
    name: str
    text: str


@dataclass
class ProcessState:
    """One process of a server, as it is now.

    Attributes:
        pid: None while there is none.
        restarts: How often it was started again.
    """

    state: State = "starting"
    pid: int | None = None
    restarts: int = 0


@dataclass(frozen=True)
class Ways:
    """What the processes of a server need beside their slice.

    Attributes:
        nursery: Where they come from.
        heard: Is told of the sessions whose keys a process has closed, and by which process.
        tell: Is told what happens.
        revoked: The sessions whose keys are closed by now.
        died: Frees what a dead process has left behind, and closes its session keys; is told its `issuer`.
    """

    nursery: Callable[[], Nursery]
    spin_up_seconds: float
    heard: Callable[[Child, str, float], None]
    tell: Callable[[Event], None]
    revoked: Callable[[], dict[str, float]]
    died: Callable[[str], object]


@dataclass
class _Worker:
    listener: socket.socket
    now: ProcessState = field(default_factory=ProcessState)
    issuer: str = ""
    child: Child | None = None
    keeping: asyncio.Task[None] | None = None


class ProcessServer:
    """An instance in processes of its own.

    Attributes:
        name: The instance.
        port: Where it listens, from its construction on.
    """

    def __init__(self, name: str, host: str, port: int, workers: int, server_log: ServerLog) -> None:
        self.name = name
        self._log = server_log
        self._workers = [_Worker(listener) for listener in _listeners(host, port, workers)]
        self._stopping = False
        self._told: Slice
        self._ways: Ways

    @property
    def listener(self) -> socket.socket:
        """The socket, or the first of those that share the address."""
        return self._workers[0].listener

    def states(self) -> list[ProcessState]:
        """Its processes as they are now."""
        return [replace(worker.now) for worker in self._workers]

    def children(self) -> list[Child]:
        """The processes that run."""
        return [worker.child for worker in self._workers if worker.child and not worker.child.ended.done()]

    def begin(self, told: Slice, ways: Ways) -> None:
        """Starts the processes, and waits for nothing."""
        self._told, self._ways = told, ways
        for worker in self._workers:
            self._spawn(worker)

    async def ready(self) -> None:
        """Waits until all serve; from then on those that die are started again.

        Raises:
            UserError: The server refuses its settings, or a process ended or was not ready in time.
        """
        for worker in self._workers:
            try:
                await self._up(worker)
            except Died as error:
                raise self._failed(str(error)) from error
            except TimeoutError as error:
                raise self._failed(f"was not ready within {self._ways.spin_up_seconds:g} s") from error
        for worker in self._workers:
            worker.keeping = background(self._keep(worker))

    async def stop(self) -> None:
        """Ends all processes, whatever state they are in, and frees the address; idempotent."""
        self._stopping = True
        for worker in self._workers:
            await ended(worker.keeping)
        await asyncio.gather(*(worker.child.stop() for worker in self._workers if worker.child))
        for worker in self._workers:
            worker.now.state, worker.now.pid = "stopped", None
        self.free()

    def free(self) -> None:
        """Closes address and log."""
        for worker in self._workers:
            worker.listener.close()
        self._log.close()

    def _spawn(self, worker: _Worker) -> None:
        worker.issuer = f"{self.name}-{secrets.token_hex(8)}"
        told = self._told.model_copy(update={"issuer": worker.issuer, "revoked": self._ways.revoked()})
        worker.child = Child(self._ways.nursery(), told, worker.listener, self._log, self._ways.heard)
        worker.now.state = "starting"

    async def _up(self, worker: _Worker) -> None:
        assert worker.child is not None
        async with asyncio.timeout(self._ways.spin_up_seconds):
            await asyncio.shield(worker.child.ready)
        worker.now.state, worker.now.pid = "running", worker.child.pid

    def _failed(self, how: str) -> UserError:
        said = self._log.tail(3)
        what = self._log.mask(f"{self.name} could not be started: its process {how}") + (f": {said}" if said else "")
        return UserError(Problem(what, f"its log: {self._log.path}" if self._log.path else "", key=self.name))

    async def _keep(self, worker: _Worker) -> None:
        """Starts a process again when it dies, unless it dies too often."""
        in_a_row = 0
        while True:
            begun = time.monotonic()
            assert worker.child is not None
            await asyncio.wait([worker.child.ended])
            how = f"{self.name}: process {worker.child.pid} {worker.child.ended.result()}"
            in_a_row = 1 if time.monotonic() - begun > STEADY_SECONDS else in_a_row + 1
            worker.now.state, worker.now.pid = "died", None
            self._ways.died(worker.issuer)
            if in_a_row > RESTARTS:
                return self._give_up(worker, f"{how}, for the {in_a_row}th time in a row; it is not started any more")
            self._ways.tell(Event("died", self.name, f"{how}; it is started again"))
            await asyncio.sleep(FIRST_BACKOFF_SECONDS * 2 ** (in_a_row - 2) if in_a_row > 1 else 0)
            if not await self._again(worker):
                return None

    async def _again(self, worker: _Worker) -> bool:
        """Whether the process is up again, or may be tried again."""
        worker.now.restarts += 1
        self._spawn(worker)
        try:
            await self._up(worker)
        except Died:
            pass
        except (UserError, TimeoutError) as error:
            reason = str(error) or f"not ready within {self._ways.spin_up_seconds:g} s"
            self._give_up(worker, f"{self.name}: its process died and could not be started again: {reason}")
            return False
        else:
            self._ways.tell(Event("up", self.name, f"{self.name}: process {worker.now.pid} serves in its place"))
        return True

    def _give_up(self, worker: _Worker, reason: str) -> None:
        """Closes the address, so that callers are refused at once."""
        if worker.child is not None:
            worker.child.kill()
        worker.listener.close()
        worker.now.state = "given up"
        self._ways.tell(Event("lost", self.name, reason))


def _listeners(host: str, port: int, number: int) -> list[socket.socket]:
    """Sockets at one address. Each process has its own, so that the kernel spreads the connections."""
    first = bind(host, port)
    if number == 1:
        return [first]
    # Only who is alone here may share: a port that others share already is refused by this first bind.
    port = first.getsockname()[1]
    first.close()
    return [bind(host, port, reuse_port=True) for _ in range(number)]
