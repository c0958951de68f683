"""Base of the agent servers: the session contract around a harness.

seed -> activate -> close. Ids are assigned by the caller; an identical retry gets the stored answer, a conflicting
one a 409; closing an unknown id fences a late seed. An adapter fills in `open`, `run` and `close`: docs/sessions.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.servers import deadline
from gym.servers.activations import Activations
from gym.servers.base import OPERATIONAL, Call, Server, ServerConfig, ServerContext, ServerError, route
from gym.servers.capabilities import Capability
from gym.servers.contract import (
    ACTIVATION_HEADER,
    ACTIVATION_SECONDS,
    EXTRAS_HEADER,
    ROLLOUT_HEADER,
    RUN_HEADER,
    SESSION_HEADER,
    AgentCloseRequest,
    AgentCloseResponse,
    AgentSessionRequest,
    AgentSessionResponse,
    ContinuationMode,
    McpGrant,
    ServerRef,
    StdioConnection,
    Transport,
)
from gym.servers.keys import Identity
from gym.servers.ledger import Ledger
from gym.servers.sessions import SessionCookie
from gym.servers.waiting import joined
from gym.servers.wire import dumped
from gym.tasks.datasets import DatasetConfig

if TYPE_CHECKING:
    from gym.servers.sandbox_access import AgentSandbox

Role = Literal["policy", "oracle", "nop"]
OBSERVATIONS = ("source", "records", "gaps")
"""What NeMo Gym's observations consist of; an adapter may report more."""


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
        run: The run that asked for the episode, by its name; None where the caller has none.
        resources_cookies: Cookies of the tools, as the last tool call left them.
        state: Whatever the adapter keeps.
        sandbox: Where the harness runs, once `take_sandbox` has got it; released when the session is closed.
        cleanup_confirmed: Set by an adapter that knows whether all its processes ended; None: not reported. False
            at the end of `run` fails the activation.
        activations: What the session was asked to do so far.
    """

    request: AgentSessionRequest
    run: str | None = None
    resources_cookies: dict[str, str] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    sandbox: AgentSandbox | None = None
    cleanup_confirmed: bool | None = None
    activations: Activations[ResponsesResponse] = field(init=False)

    def __post_init__(self) -> None:
        """A session continues where its seed asks for it."""
        self.activations = Activations(continues=self.request.continuation is not None)

    @property
    def id(self) -> str:
        """The session id that the caller assigned."""
        return self.request.agent_session_id

    @property
    def headers(self) -> dict[str, str]:
        """Whose a call is that the agent's server makes itself; a harness has a session key for it."""
        named = {} if self.run is None else {RUN_HEADER: self.run}
        which = {SESSION_HEADER: self.id, ACTIVATION_HEADER: str(max(1, self.activation))}
        return {ROLLOUT_HEADER: self.request.episode_id.key, **which, **named}

    @property
    def activation(self) -> int:
        """1-based index of the activation that runs or ran last; 0 before the first."""
        return len(self.activations)


class AgentServer(Server[AgentConfigT]):
    """A harness behind the agent-session contract.

    Attributes:
        transports: How the harness can call tools.
        continuations: How the harness can go on where an activation ended; empty: one activation a session.
        needs_sandbox: True for a harness that runs inside a sandbox.
        task_users: It can work as the user that a task names.
        stdio_tools: It can start MCP servers that are a command in the sandbox.
        skills: It reads the skills in `~/.agents/skills` of the sandbox.
        role: `policy`, an agent that is evaluated; `oracle` and `nop` check tasks: all done, nothing done.
        sessions: The sessions that are open, by id.
    """

    config_type: ClassVar[type[ServerConfig]] = AgentServerConfig
    transports: ClassVar[frozenset[Transport]] = frozenset()
    continuations: ClassVar[frozenset[ContinuationMode]] = frozenset()
    needs_sandbox: ClassVar[bool] = False
    task_users: ClassVar[bool] = False
    stdio_tools: ClassVar[bool] = False
    skills: ClassVar[bool] = False
    role: ClassVar[Role] = "policy"

    def __init__(self, config: AgentConfigT, context: ServerContext) -> None:
        self._ledger = Ledger(self._open, self._end, config.session_close_retry_window_seconds)
        self.sessions = self._ledger.sessions
        self.cookie = SessionCookie(context.signer, context.name, "agent")
        super().__init__(config, context)

    @classmethod
    def asks_of_model(cls, config: AgentConfigT) -> dict[Capability, str]:  # noqa: ARG003
        """What the harness cannot do without in its model, and why, as in `works with tools of its own`."""
        return {}

    @route("/v1/agent_sessions")
    async def seed_session(self, body: AgentSessionRequest, call: Call) -> AgentSessionResponse:
        """Opens a session under the caller's id and sets its cookie."""
        was_open = self._has_cookie(call, body.agent_session_id)
        self._refuse_unsupported(body)
        run = call.headers.get(RUN_HEADER)
        await self._ledger.open(body.agent_session_id, body, lambda: AgentSession(body, run), was_open=was_open)
        self.cookie.issue(call, body.agent_session_id)
        return AgentSessionResponse(agent_session_id=body.agent_session_id)

    @route("/v1/responses")
    async def activate(self, body: ResponsesRequest, call: Call) -> ResponsesResponse:
        """Runs the harness on a request; an identical retry joins the run or gets its outcome."""
        session = self._ledger.active(self.cookie.read(call.cookies))
        if call.rollout not in (None, session.request.episode_id.key):
            raise ServerError(409, f"the session is not of the rollout {call.rollout}")
        digest = hashlib.sha256(dumped(body)).digest()
        index = session.activations.index(call.headers)
        work = session.activations.known(index, digest)
        if work is None:
            seconds = activation_seconds(body)
            self.check_activation(session, body)
            work = session.activations.begin(digest, lambda: self._run(session, body, seconds))
        return await joined(work)

    @route("/v1/agent_sessions/close")
    async def close_session(self, body: AgentCloseRequest, call: Call) -> AgentCloseResponse:
        """Ends a session: stops what runs, frees what it holds, and hands back what it observed."""
        was_open = self._has_cookie(call, body.agent_session_id)
        absent = AgentCloseResponse(agent_session_id=body.agent_session_id)
        answer = await self._ledger.close(body.agent_session_id, body.episode_id, absent, was_open=was_open)
        return answer if EXTRAS_HEADER in call.headers else _known_to_all(answer)

    def session_key(self, session: AgentSession) -> str:
        """What a harness of this session gets as its API key: it opens the session's model server until close."""
        ref = self.config.model_server
        identity = Identity(session.request.episode_id.key, session.id, max(1, session.activation), session.run)
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
        await session.activations.end()
        observations = await self.close(session)
        if session.sandbox is not None:
            await session.sandbox.release()
        answer = AgentCloseResponse(
            agent_session_id=session.id,
            agent_observations=observations,
            resources_cookies=session.resources_cookies or None,
        )
        if session.cleanup_confirmed is not None:  # omitted when it is not reported
            answer.cleanup_confirmed = session.cleanup_confirmed
        return answer

    async def _run(self, session: AgentSession, request: ResponsesRequest, seconds: float | None) -> ResponsesResponse:
        """An activation within its own bound, and within what is left of the episode's."""
        try:
            with deadline.within(seconds):
                async with asyncio.timeout(seconds) as bound:
                    response = await self.run(session, request)
        except TimeoutError as error:
            if not bound.expired():
                raise
            what = f"metadata.{ACTIVATION_SECONDS} ({seconds:g} s) ran out, preparation and queueing included"
            raise EpisodeFailure("agent_timeout", f"{self.name}: {what}", stage="agent") from error
        if session.cleanup_confirmed is False:
            message = f"{self.name} could not confirm that all its processes have ended"
            raise EpisodeFailure("termination_unconfirmed", message, stage="agent")
        return response

    def _refuse_commands(self, body: AgentSessionRequest) -> None:
        for grant in body.tool_accesses:
            if isinstance(grant, McpGrant) and isinstance(grant.connection, StdioConnection) and not self.stdio_tools:
                raise ServerError(422, f"{self.name} cannot start the MCP server `{grant.name}`, which is a command")

    def _refuse_unsupported(self, body: AgentSessionRequest) -> None:
        """Refuses what the harness cannot do, before anything is prepared."""
        if body.continuation is not None and body.continuation.mode not in self.continuations:
            raise ServerError(422, f"{self.name} cannot {body.continuation.mode}: it takes one activation a session")
        self._refuse_commands(body)
        for grant in body.tool_accesses:
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

    def check_activation(self, session: AgentSession, request: ResponsesRequest) -> None:
        """Refuses a request that the harness cannot take, before it counts as an activation.

        Raises:
            ServerError: 422 with the reason. The caller may send another request at the same index.
        """

    @abstractmethod
    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        """Runs the harness on one request and returns what it did as Responses items.

        In a session that continues, the answer has what is new since the activation before: output, usage, evidence.
        Cancelled when the session is closed meanwhile, or the activation's time is up.

        Raises:
            EpisodeFailure: Infrastructure failed: the model server, a tool server, the sandbox, the runtime.
        """

    async def close(self, session: AgentSession) -> dict[str, Any] | None:  # noqa: ARG002
        """Frees what the session holds; returns the observations of the harness, of all activations together.

        Also called after an `open` that failed or was cancelled, and again after a failure: must do no harm then.
        """
        return None


def activation_seconds(request: ResponsesRequest) -> float | None:
    """The bound of an activation as its request gives it; None for none.

    Raises:
        ServerError: 422 for one that is no positive number, or a text that is none.
    """
    given = (request.metadata or {}).get(ACTIVATION_SECONDS)
    if given is None:
        return None
    try:
        seconds = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        shown = str(given)[:40]
        raise ServerError(422, f"metadata.{ACTIVATION_SECONDS} is a positive number of seconds, not `{shown}`")
    return seconds


def _known_to_all(answer: AgentCloseResponse) -> AgentCloseResponse:
    """The answer without what we add to the observations."""
    if answer.agent_observations is None:
        return answer
    kept = {"source": "", "records": [], "gaps": []} | answer.agent_observations
    return answer.model_copy(update={"agent_observations": {name: kept[name] for name in OBSERVATIONS}})
