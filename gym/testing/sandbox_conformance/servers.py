"""Small servers on this machine, and the attempt to reach them from a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gym.sandbox.interface import Sandbox

_PROBE = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=float(sys.argv[2])).read().decode())
except OSError as error:
    print("refused:", error)
"""


@asynccontextmanager
async def greeting(text: str, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """An HTTP server that answers everything with `text`; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + text.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def reached(sandbox: Sandbox, url: str, seconds: float = 5) -> str:
    """What a server says to the sandbox, or `refused: ...`."""
    result = await sandbox.exec(["python3", "-c", _PROBE, url, str(seconds)])
    assert result.exit_code == 0, result.stderr_text
    return result.stdout_text.strip()
