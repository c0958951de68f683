"""Forwards connections from a sandbox to one server of this machine, and to nothing else."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

CHUNK = 65536
CONNECT_SECONDS = 10.0


class Relay:
    """Accepts connections on a listening socket and joins each with a new one to `target`.

    Args:
        listener: Bound and listening; the relay closes it.
        target: Host and port of the server.
        peers: Who may connect; None for everybody who can.
    """

    def __init__(
        self, listener: socket.socket, target: tuple[str, int], peers: ipaddress.IPv4Network | None = None
    ) -> None:
        self._listener = listener
        self._target = target
        self._peers = peers
        self._connections: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept())

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        port: int = self._listener.getsockname()[1]
        return port

    async def aclose(self) -> None:
        """Stop listening and cut all connections; idempotent."""
        tasks = [self._accepting, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError:
                # Out of file descriptors, or the other side was gone already.
                await asyncio.sleep(0.05)
                continue
            if self._peers is not None and ipaddress.IPv4Address(peer[0]) not in self._peers:
                connection.close()
                continue
            task = asyncio.ensure_future(self._join(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _join(self, connection: socket.socket) -> None:
        writers: list[StreamWriter] = []
        try:
            inner, inner_writer = await asyncio.open_connection(sock=connection)
            writers.append(inner_writer)
            async with asyncio.timeout(CONNECT_SECONDS):
                outer, outer_writer = await asyncio.open_connection(*self._target)
            writers.append(outer_writer)
            for writer in writers:
                # Else a small answer waits for the acknowledgement of what came before it.
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(inner, outer_writer))
                both.create_task(_pump(outer, inner_writer))
        except* OSError:
            pass  # one side is gone, and the other learns it by the close
        finally:
            for writer in writers:
                writer.close()
            for writer in writers:
                with suppress(OSError):
                    await writer.wait_closed()


async def _pump(source: StreamReader, target: StreamWriter) -> None:
    """Copy until the end of `source`, and pass the end on."""
    while chunk := await source.read(CHUNK):
        target.write(chunk)
        await target.drain()
    target.write_eof()
