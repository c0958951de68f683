"""Base of the agent servers: the session contract around a harness.

seed -> activate -> close. Ids are assigned by the caller; an identical retry gets the stored answer, a conflicting
one a 409; closing an unknown id fences a late seed. An adapter fills in `open`, `run` and `close`.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.servers import deadline
from gym.servers.base import OPERATIONAL, Call, Server, ServerConfig, ServerContext, ServerError, route
from gym.servers.contract import (
    AgentCloseRequest,
    AgentCloseResponse,
    AgentSessionRequest,
    AgentSessionResponse,
    Grant,
    ServerRef,
    Transport,
)
from gym.servers.keys import Identity
from gym.servers.ledger import Ledger
from gym.servers.sessions import SessionCookie
from gym.servers.waiting import background, ended, joined
from gym.tasks.datasets import DatasetConfig


class AgentServerConfig(ServerConfig):
    """Settings that every agent server has."""

    model_server: ServerRef | None = Field(None, description="The policy: a model server instance.")
    resources_server: ServerRef | None = Field(
        None, description="Resources server that owns the dataset; null leaves it to the environment server."
    )
    datasets: list[DatasetConfig] = Field(default_factory=list, description="Datasets of a self-contained agent.")
    session_close_retry_window_seconds: float = Field(
        300, gt=0, description="How long the answer of a close can be asked for again.", json_schema_extra=OPERATIONAL
    )


AgentConfigT = TypeVar("AgentConfigT", bound=AgentServerConfig)


@dataclass
class AgentSession:
    """One episode's agent session.

    Attributes:
        request: The seed that opened it: identities, grants, sandbox access.
        resources_cookies: Cookies of the tools, as the last tool call left them.
        state: Whatever the adapter keeps.
        cleanup_confirmed: Set by an adapter's `close` that knows whether all its processes ended; None: not reported.
    """

    request: AgentSessionRequest
    resources_cookies: dict[str, str] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    cleanup_confirmed: bool | None = None
    activation_digest: bytes = b""
    activation: asyncio.Task[ResponsesResponse] | None = None

    @property
    def id(self) -> str:
        """The session id that the caller assigned."""
        return self.request.agent_session_id


class AgentServer(Server[AgentConfigT]):
    """A harness behind the agent-session contract.

    Attributes:
        transports: How the harness can call tools.
        needs_sandbox: True for a harness that runs inside a sandbox.
        sessions: The sessions that are open, by id.
    """

    config_type: ClassVar[type[ServerConfig]] = AgentServerConfig
    transports: ClassVar[frozenset[Transport]] = frozenset()
    needs_sandbox: ClassVar[bool] = False

    def __init__(self, config: AgentConfigT, context: ServerContext) -> None:
        self._ledger = Ledger(self._open, self._end, config.session_close_retry_window_seconds)
        self.sessions = self._ledger.sessions
        self.cookie = SessionCookie(context.signer, context.name, "agent")
        super().__init__(config, context)

    @route("/v1/agent_sessions")
    async def seed_session(self, body: AgentSessionRequest, call: Call) -> AgentSessionResponse:
        """Opens a session under the caller's id and sets its cookie."""
        was_open = self._has_cookie(call, body.agent_session_id)
        self._refuse_unsupported(body.tool_accesses)
        await self._ledger.open(body.agent_session_id, body, lambda: AgentSession(body), was_open=was_open)
        self.cookie.issue(call, body.agent_session_id)
        return AgentSessionResponse(agent_session_id=body.agent_session_id)

    @route("/v1/responses")
    async def activate(self, body: ResponsesRequest, call: Call) -> ResponsesResponse:
        """Runs the harness once on a request; an identical retry joins the run or gets its outcome."""
        session = self._ledger.active(self.cookie.read(call.cookies))
        digest = hashlib.sha256(body.model_dump_json(exclude_unset=True).encode()).digest()
        if session.activation is None:
            session.activation_digest = digest
            session.activation = background(self.run(session, body))
        elif session.activation_digest != digest:
            raise ServerError(409, "the session was activated with another body")
        return await joined(session.activation)

    @route("/v1/agent_sessions/close")
    async def close_session(self, body: AgentCloseRequest, call: Call) -> AgentCloseResponse:
        """Ends a session: stops what runs, frees what it holds, and hands back what it observed."""
        was_open = self._has_cookie(call, body.agent_session_id)
        absent = AgentCloseResponse(agent_session_id=body.agent_session_id)
        return await self._ledger.close(body.agent_session_id, body.episode_id, absent, was_open=was_open)

    def session_key(self, session: AgentSession, activation: int = 1) -> str:
        """What a harness of this session gets as its API key: it opens the session's model server until close."""
        ref = self.config.model_server
        identity = Identity(session.request.episode_id.key, session.id, activation)
        return self.context.keys.issue(identity, [ref.name] if ref else [], deadline.remaining())

    def _has_cookie(self, call: Call, session_id: str) -> bool:
        """Whether the caller has the session's cookie; one of another session is refused."""
        if self.cookie.name not in call.cookies:
            return False
        if self.cookie.read(call.cookies) != session_id:
            raise ServerError(409, "the cookie belongs to another session")
        return True

    async def _open(self, session: AgentSession) -> None:
        await self.open(session)

    async def _end(self, session: AgentSession) -> AgentCloseResponse:
        self.context.keys.revoke(session.id)
        await ended(session.activation)
        observations = await self.close(session)
        answer = AgentCloseResponse(
            agent_session_id=session.id,
            agent_observations=observations,
            resources_cookies=session.resources_cookies or None,
        )
        if session.cleanup_confirmed is not None:  # omitted when it is not reported
            answer.cleanup_confirmed = session.cleanup_confirmed
        return answer

    def _refuse_unsupported(self, grants: list[Grant]) -> None:
        for grant in grants:
            if grant.required and grant.kind not in self.transports:
                accepted = ", ".join(sorted(self.transports)) or "none"
                raise ServerError(
                    422,
                    f"{self.name} cannot use the required {grant.kind} tools `{grant.name}`; it accepts: {accepted}",
                )

    async def stop(self) -> None:
        """Ends the sessions that nobody closed."""
        await self._ledger.close_all()

    async def open(self, session: AgentSession) -> None:
        """Prepares a session, before the first activation. After a failure `close` is called."""

    @abstractmethod
    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        """Runs the harness on one request and returns what it did as Responses items.

        Cancelled when the session is closed meanwhile.

        Raises:
            EpisodeFailure: Infrastructure failed: the model server, a tool server, the sandbox, the runtime.
        """

    async def close(self, session: AgentSession) -> dict[str, Any] | None:  # noqa: ARG002
        """Frees what the session holds; returns the observations of the harness.

        Also called after an `open` that failed or was cancelled, and again after a failure: must do no harm then.
        """
        return None
