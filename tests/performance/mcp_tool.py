"""What one tool call costs, over MCP and over plain HTTP: `python -m tests.performance.mcp_tool`.

Client and server share one process and one core. The official client keeps a connection and validates what it gets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gym.servers.client import new_http_client
from tests.contract.mcp_agent import connected
from tests.servers.toolbox import Hosted, hosted, request

Call = Callable[[], Awaitable[Any]]
CALLS = 640


async def microseconds(call: Call, concurrency: int) -> float:
    """Wall time of a call, at so many at once; the best of three."""

    async def worker() -> None:
        for _ in range(CALLS // concurrency):
            await call()

    await call()
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        best = min(best, (time.perf_counter() - started) / (CALLS // concurrency * concurrency))
    return best * 1e6


async def measured(box: Hosted) -> None:
    """Prints a line for each way and concurrency."""
    headers, (_, cookies) = await box.headers(), await box.seed()
    direct = {**headers, "cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    body = request("tools/call", name="increment", arguments={"by": 1})
    http = new_http_client(proxies_from_environment=False)
    async with connected(f"{box.url}/mcp", headers) as official:
        ways: dict[str, Call] = {
            "direct HTTP": lambda: http.post(f"{box.url}/increment", json={"by": 1}, headers=direct),
            "MCP": lambda: http.post(f"{box.url}/mcp", json=body, headers=headers),
            "MCP, official client": lambda: official.call_tool("increment", {"by": 1}),
        }
        for way, call in ways.items():
            for concurrency in (1, 32):
                took = await microseconds(call, concurrency)
                print(f"{way:<20} concurrency {concurrency:>3}: {took:8.1f} microseconds a call")
    await http.aclose()


async def main() -> None:
    """Measures all."""
    async with hosted() as box:
        await measured(box)


if __name__ == "__main__":
    asyncio.run(main())
