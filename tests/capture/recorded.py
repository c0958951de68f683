"""Model servers that record, reached over HTTP as harnesses reach them, or from a server of their own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gym.capture.reader import ModelCall, calls
from gym.capture.store import FOLDER
from gym.launch.in_process import Instance, Launched, launch
from gym.servers.contract import ServerRef
from gym.servers.keys import Identity
from tests.responses_api_models.servers import no_sandboxes

POLICY = ServerRef(type="responses_api_models", name="policy_model")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@dataclass(frozen=True)
class Recorded:
    """A running model server, and what it has recorded."""

    launched: Launched
    run: Path
    http: httpx.AsyncClient

    async def post(self, api: str, body: dict[str, Any], *, key: str | None = None, **headers: str) -> httpx.Response:
        """A call with the key of a session, or by default with that of the rollout `task.0`."""
        key = key or self.key()
        url = self.launched.directory.url(POLICY.name) + PATHS[api]
        return await self.http.post(url, json=body, headers={"authorization": f"Bearer {key}", **headers})

    def key(self, rollout: str = "task.0", session: str = "session", activation: int = 1) -> str:
        return self.launched.keys.issue(Identity(rollout, session, activation), [POLICY.name])

    def calls(self) -> list[ModelCall]:
        return list(calls(self.run))


@asynccontextmanager
async def recording(made: Instance, run: Path, redact: Callable[[str], str] = str) -> AsyncIterator[Recorded]:
    """Starts a model server that records into a run's directory."""
    async with (
        launch([made], sandboxes=no_sandboxes, records=run / FOLDER, redact=redact) as launched,
        httpx.AsyncClient(timeout=30) as http,
    ):
        yield Recorded(launched, run, http)
