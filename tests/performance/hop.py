"""What one call between servers costs, in-process and over HTTP: `python -m tests.performance.hop`.

The call carries a typical body (a conversation of a few items) to a model server and gets a response back.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from gym.apis.responses import ResponsesRequest, ResponsesResponse, message
from gym.launch.in_process import Instance, launch
from gym.sandbox.interface import SandboxProvider
from gym.servers.base import Call
from gym.servers.client import Client, Directory
from gym.servers.contract import ServerRef
from gym.servers.model import ModelServer, ModelServerConfig

MODEL = ServerRef(type="responses_api_models", name="model")
REQUEST = ResponsesRequest(input=[message("user", "a question of some length, " * 8)] * 4)
ANSWER = ResponsesResponse(output=[message("assistant", "an answer of some length, " * 8)])


class Instant(ModelServer[ModelServerConfig]):
    """Answers at once."""

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        """Always the same."""
        return ANSWER


def no_sandboxes(name: str) -> SandboxProvider:
    """Nothing here needs a sandbox."""
    raise AssertionError(name)


async def microseconds(client: Client, calls: int, concurrency: int) -> float:
    """Wall time of a call, at so many at once."""

    async def worker() -> None:
        for _ in range(calls // concurrency):
            await client.post(MODEL, "/v1/responses", REQUEST, ResponsesResponse)

    await client.post(MODEL, "/v1/responses", REQUEST, ResponsesResponse)
    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return (time.perf_counter() - started) / (calls // concurrency * concurrency) * 1e6


async def main() -> None:
    """Measures both; client and server share one process and one core over HTTP."""
    instance = Instance(MODEL.name, MODEL.type, Instant, ModelServerConfig())
    async with launch([instance], sandboxes=no_sandboxes) as launched:
        remote = Client(Directory(remote={MODEL.name: launched.directory.url(MODEL.name)}), launched.token)
        rows: list[tuple[str, Client, int, int]] = [
            ("in-process", launched.client, 20_000, 1),
            ("HTTP", remote, 1_000, 1),
            ("HTTP", remote, 2_000, 64),
        ]
        for how, client, calls, concurrency in rows:
            best = min([await microseconds(client, calls, concurrency) for _ in range(3)])
            print(f"{how:<12} concurrency {concurrency:>3}: {best:8.1f} microseconds a call")
        await remote.aclose()


def run() -> Any:
    """Entry of the script."""
    return asyncio.run(main())


if __name__ == "__main__":
    run()
