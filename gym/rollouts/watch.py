"""Whether the servers are still there that a run uses and has not started: without them no further episode can succeed.

Only a refused connection shows that a server is gone. One that is being started again, or is busy, keeps its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from gym.servers.base import one_line
from gym.servers.client import Client

REFUSALS = 5
"""How often in a row a server that is gone refuses."""
PAUSE_SECONDS = 0.5
STARTING_SECONDS = 30.0
"""How long an answer is waited for; a server that has given none by then is not taken to be gone."""


@dataclass
class Watch:
    """Looks after servers of others. Many may ask at once; one of them looks.

    Attributes:
        names: The instances that the run needs.
    """

    client: Client
    names: Sequence[str]
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def gone(self) -> str | None:
        """Which server is gone, and what to do, in one line; None where none is."""
        async with self._looking:
            for name in self.names:
                if (reason := await self._refusal(name)) is not None:
                    url = self.client.directory.url(name)
                    return f"{name} at {url} is gone ({reason}); start the servers again, and the same command goes on"
        return None

    async def _refusal(self, name: str) -> str | None:
        import aiohttp
        import httpx

        url = f"{self.client.directory.url(name)}/livez"
        reason: str | None = None
        try:
            async with asyncio.timeout(STARTING_SECONDS):
                for number in range(REFUSALS):
                    await asyncio.sleep(PAUSE_SECONDS if number else 0)
                    try:
                        await self.client.http.get(url)
                    except (httpx.TransportError, aiohttp.ClientError) as error:
                        reason = one_line(error.__cause__ or error)
                    else:
                        return None
        except TimeoutError:
            return None
        return reason
