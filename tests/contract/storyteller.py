"""An agent whose sessions continue: it tells back what it hears, and remembers the story. Some words go wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from gym.apis.responses import ResponsesRequest, ResponsesResponse, Usage, message
from gym.failures import EpisodeFailure
from gym.launch.in_process import Instance
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession
from gym.servers.base import ServerContext, ServerError
from gym.servers.contract import ServerRef

TELLER = ServerRef(type="responses_api_agents", name="teller")


class Storyteller(AgentServer[AgentServerConfig]):
    """Answers with what is new; `close` hands back the whole story."""

    continuations = frozenset({"resume_harness_session"})

    def __init__(self, config: AgentServerConfig, context: ServerContext) -> None:
        super().__init__(config, context)
        self.log: list[str] = []
        self.running = asyncio.Event()
        self.gate = asyncio.Event()

    async def open(self, session: AgentSession) -> None:
        self.log.append("open")

    def check_activation(self, session: AgentSession, request: ResponsesRequest) -> None:
        if not request.input:
            raise ServerError(422, "nothing to tell")

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        self.log.append(f"run {session.activation}")
        text = str(request.input)
        match text:
            case "wait":
                self.running.set()
                await self.gate.wait()
            case "break off":
                await self._until_cancelled()
            case "fail":
                raise EpisodeFailure("sandbox_lost", "the story is lost")
            case "leave a process":
                session.cleanup_confirmed = False
        session.state.setdefault("story", []).append(text)
        output = [message("assistant", text.upper())]
        return ResponsesResponse(output=output, usage=Usage(input_tokens=1, output_tokens=1, total_tokens=2))

    async def _until_cancelled(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append("broken off")

    async def close(self, session: AgentSession) -> dict[str, Any] | None:
        self.log.append("close")
        if "leave a process behind" in session.state.get("story", []):
            session.cleanup_confirmed = False
        return {"source": "storyteller", "records": [{"story": session.state.get("story", [])}]}


def teller() -> Instance:
    """The instance of it."""
    return Instance(TELLER.name, TELLER.type, Storyteller, AgentServerConfig())
