"""Servers that speak NeMo Gym's side of the contract: a counter, and an agent that increments it. They are strict.

They use cookies as that side does: each server has its own, and that of the counter changes with every tool call, so
that only the last one is good for verification.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response

from tests.contract import peer_wire as wire


def counter(log: list[str]) -> FastAPI:
    """The resources server. `fault` in the task makes its judge fail."""
    app = FastAPI()
    counts: dict[str, int] = {}

    def session(request: Request, response: Response | None = None) -> str:
        name, _, version = request.cookies.get("Counter___counter", "").partition("|")
        if name not in counts or int(version) != counts[name]:
            raise HTTPException(409, "not the last cookie of the session")
        return name

    def cookie(response: Response, name: str) -> None:
        response.set_cookie("Counter___counter", f"{name}|{counts[name]}")

    @app.post("/seed_session")
    async def seed(body: wire.SeedSessionRequest, response: Response) -> wire.SeedSessionResponse:
        log.append("seed")
        counts[body.resources_session_id] = 0
        cookie(response, body.resources_session_id)
        return wire.SeedSessionResponse(resources_session_id=body.resources_session_id)

    @app.post("/increment")
    async def increment(body: dict[str, int], request: Request, response: Response) -> dict[str, int]:
        name = session(request)
        counts[name] += body["by"]
        cookie(response, name)
        return {"count": counts[name]}

    @app.post("/verify")
    async def verify(body: wire.VerifyRequest, request: Request) -> dict[str, Any]:
        log.append("verify")
        row = body.model_dump()
        if row.get("fault"):
            return {**row, "reward": 0.0, "mask_sample": True, "_ng_failure_class": "judge_failed"}
        return {**row, "reward": float(counts[session(request)] == row["expected"]), "count": counts[session(request)]}

    @app.post("/close_session")
    async def close(body: wire.CloseSessionRequest) -> wire.CloseSessionResponse:
        log.append("close")
        counts.pop(body.resources_session_id, None)
        return wire.CloseSessionResponse(resources_session_id=body.resources_session_id)

    return app


def agent(log: list[str]) -> FastAPI:
    """The agent server: one activation increments by 2, over the granted tools."""
    app = FastAPI()
    sessions: dict[str, wire.AgentSessionRequest] = {}
    cookies: dict[str, str] = {}

    @app.post("/v1/agent_sessions")
    async def seed(body: wire.AgentSessionRequest, response: Response) -> wire.AgentSessionResponse:
        log.append("open")
        sessions[body.agent_session_id] = body
        response.set_cookie("Agent___agent", body.agent_session_id)
        return wire.AgentSessionResponse(agent_session_id=body.agent_session_id)

    @app.post("/ng-rollout/{capture_key}/v1/responses")
    async def activate(body: dict[str, Any], capture_key: str, request: Request) -> wire.Response:
        session = sessions[request.cookies["Agent___agent"]]
        if session.episode_id.capture_key != capture_key:
            raise HTTPException(409, "another rollout")
        grant = session.tool_accesses[0]
        assert isinstance(grant, wire.DirectHttpGrant)
        async with httpx.AsyncClient(cookies=grant.cookies, headers=grant.headers) as client:
            called = await client.post(f"{grant.base_url}/increment", json={"by": 2})
            cookies.update(called.raise_for_status().cookies)
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
        return wire.Response(id="resp_1", object="response", created_at=1.0, output=[message])

    @app.post("/v1/agent_sessions/close", response_model_exclude_unset=True)
    async def close(body: wire.AgentCloseRequest) -> wire.AgentCloseResponse:
        log.append("close agent")
        sessions.pop(body.agent_session_id, None)
        seen = wire.ObservationBundle(source="peer", records=[], gaps=[])
        return wire.AgentCloseResponse(
            agent_session_id=body.agent_session_id, agent_observations=seen, resources_cookies=dict(cookies)
        )

    return app


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Serves an app on a free port of this machine; its base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()
