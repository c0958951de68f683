"""Base of the resources servers: tasks' tools, state, sandbox and verifier.

A server says what a session holds (`seed`), what the agent may do (methods marked `@tool`), what the result is worth
(`verify`), and how to free what the session holds (`close`). Sessions, cookies and argument checks are done here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import typing
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from gym.failures import EpisodeFailure
from gym.sandbox.interface import Sandbox
from gym.sandbox.shared import Shared
from gym.servers.base import (
    OPERATIONAL,
    Call,
    Route,
    Server,
    ServerConfig,
    ServerContext,
    ServerError,
    describe,
    one_line,
    route,
)
from gym.servers.contract import (
    EXTRAS_HEADER,
    AggregateMetricsRequest,
    AggregateMetricsResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    EpisodeId,
    ResourcesTools,
    SandboxAccess,
    SeedSessionRequest,
    SeedSessionResponse,
    TaskId,
    Transport,
    VerifyRequest,
    VerifyResponse,
    Wire,
)
from gym.servers.ledger import Ledger
from gym.servers.lending import take_back
from gym.servers.sessions import SessionCookie, SessionHeader
from gym.servers.tools import MODEL_CAN_FIX, Tool, check_tools, tool_arguments, tools_of
from gym.servers.tools import tool as tool
from gym.servers.tools import tool_schema as tool_schema
from gym.servers.waiting import background, ended, joined
from gym.tasks.datasets import DatasetConfig

if TYPE_CHECKING:
    from gym.servers.guard import App

MCP_PATH = "/mcp"
log = logging.getLogger(__name__)


class TaskData(BaseModel):
    """The benchmark's own fields of a task. Subclasses type them; unknown fields are kept."""

    model_config = ConfigDict(extra="allow")


class ResourcesServerConfig(ServerConfig):
    """Settings that every resources server has."""

    domain: str | None = Field(None, description="Field of the tasks, such as math, coding or agent.")
    description: str | None = Field(None, description="What the tasks are.", json_schema_extra=OPERATIONAL)
    value: str | None = Field(None, description="What a score tells.", json_schema_extra=OPERATIONAL)
    verified: bool | None = Field(
        None, description="Whether the verifier was validated.", json_schema_extra=OPERATIONAL
    )
    datasets: list[DatasetConfig] = Field(
        default_factory=list, description="Datasets whose tasks this server verifies."
    )
    allowed_agents: list[str] | None = Field(
        None, description="Harnesses (implementations) that these tasks support; absent: any."
    )
    allowed_model_types: list[str] | None = Field(
        None, description="Model servers (implementations) that these tasks support; absent: any."
    )


ResourcesConfigT = TypeVar("ResourcesConfigT", bound=ResourcesServerConfig)
TaskT = TypeVar("TaskT", bound=TaskData)


@dataclass
class Session(Generic[TaskT]):
    """One episode's state in a resources server.

    Attributes:
        state: Whatever the server keeps for the episode.
        sandbox: The task's sandbox, where the server made one.
        sandbox_access: Lends the sandbox to the agent, where the server set it in `seed`.
        failure: The first failure of a tool: whatever the harness made of it, the session is not scored.
        verifications: What was asked to be verified, and what comes of it.
        taken_back: The end of the loan, from the first verification on.
    """

    id: str
    task: TaskT
    task_id: TaskId
    episode_id: EpisodeId
    state: dict[str, Any] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    sandbox_access: SandboxAccess | None = None
    failure: EpisodeFailure | None = None
    closed: bool = False
    verifications: list[tuple[VerifyRequest, asyncio.Task[VerifyResponse]]] = field(default_factory=list)
    taken_back: Shared[None] | None = None


class NoArguments(Wire):
    """An empty body."""


class ToolList(BaseModel):
    """The tools of a server as Responses function tools."""

    tools: list[dict[str, Any]]


class ResourcesServer(Server[ResourcesConfigT], Generic[ResourcesConfigT, TaskT]):
    """A verifier, the tools of its tasks, and their state.

    Attributes:
        task_type: Model of the benchmark's own task fields.
        transports: How the tools can be reached; a server may restrict it.
        verifies_services: What an agent leaves running in a lent sandbox may be what is verified, so it goes on.
    """

    config_type: ClassVar[type[ServerConfig]] = ResourcesServerConfig
    task_type: ClassVar[type[TaskData]] = TaskData
    transports: ClassVar[frozenset[Transport]] = frozenset({"direct_http", "mcp"})
    verifies_services: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        check_tools(cls, taken=dir(ResourcesServer))

    def __init__(self, config: ResourcesConfigT, context: ServerContext) -> None:
        self._ledger: Ledger[Session[TaskT], CloseSessionResponse] = Ledger(self._open, self._end)
        self.sessions = self._ledger.sessions
        self.cookie = SessionCookie(context.signer, context.name, "resources")
        self.session_header = SessionHeader(context.signer, context.name)
        super().__init__(config, context)

    @classmethod
    def tools(cls) -> dict[str, Tool]:
        """The tool functions of this class by name."""
        return tools_of(cls)  # type: ignore[arg-type]

    def build_routes(self) -> list[Route]:
        """The server's own routes, and one for each tool."""
        if "direct_http" not in self.transports:
            return super().build_routes()
        tools = [
            Route(f"/{name}", partial(self._call_tool, function), tool_arguments(function), Any)
            for name, function in self.tools().items()
        ]
        return super().build_routes() + tools

    def asgi_routes(self) -> dict[str, App]:
        """The tools over MCP."""
        if "mcp" not in self.transports:
            return {}
        from gym.servers.mcp import McpEndpoint

        return {MCP_PATH: McpEndpoint(self)}

    def opens_to_keys(self, path: str) -> bool:
        """A session key opens the tools; which session they touch, its cookie or header decides.

        Paths that no route has pass too: that there is no such tool is for the tool's caller to hear.
        """
        return path not in self.routes or path.removeprefix("/") in self.tools()

    def session(self, call: Call) -> Session[TaskT]:
        """The session that a request belongs to.

        Raises:
            ServerError: 401 without a valid cookie, 403 with the key of another session, 409 for a session that is
                closed or unknown.
        """
        session_id = self.cookie.read(call.cookies)
        if call.identity is not None and call.identity.session != session_id:
            raise ServerError(403, "the session's key and its cookie belong to two sessions")
        return self.session_of(session_id)

    def session_of(self, session_id: str) -> Session[TaskT]:
        """An open session.

        Raises:
            ServerError: 409 for a session that is closed or unknown.
        """
        return self._ledger.active(session_id)

    @route("/seed_session")
    async def seed_session(self, body: SeedSessionRequest, call: Call) -> SeedSessionResponse:
        """Opens a session under the caller's id and sets its cookie. A repeated seed gets the same session."""
        session = await self._ledger.open(body.resources_session_id, body, lambda: self._new_session(body))
        self.cookie.issue(call, session.id)
        answer = SeedSessionResponse(resources_session_id=session.id, sandbox_access=session.sandbox_access)
        if "mcp" in self.transports:
            headers = self.session_header.issue(session.id)
            answer.resources_tools = ResourcesTools(
                server_name=self.name, url_path=MCP_PATH, transport="http", headers=headers
            )
        return answer

    def _new_session(self, body: SeedSessionRequest) -> Session[TaskT]:
        try:
            task = typing.cast(TaskT, self.task_type.model_validate(body.task_data))
        except ValidationError as error:
            message = f"task {body.task_id.task_id} does not fit {self.name}: {describe(error)}"
            raise EpisodeFailure("malformed_task", message, stage="seed") from error
        return Session(body.resources_session_id, task, body.task_id, body.episode_id)

    async def _open(self, session: Session[TaskT]) -> None:
        await self.seed(session)

    async def _end(self, session: Session[TaskT]) -> CloseSessionResponse:
        session.closed = True
        for _, verifying in session.verifications:
            await ended(verifying)
        await self.close(session)
        return CloseSessionResponse(resources_session_id=session.id)

    @route("/verify")
    async def verify_session(self, body: VerifyRequest, call: Call) -> VerifyResponse:
        """Scores the session's outcome; an identical retry joins the verification, or gets its outcome.

        Raises:
            EpisodeFailure: A tool failed; what came of it says nothing about the agent.
        """
        session = self.session(call)
        if session.failure is not None:
            raise session.failure
        verifying = next((task for asked, task in session.verifications if asked == body), None)
        if verifying is None:
            verifying = background(self._verify(session, body))
            session.verifications.append((body, verifying))
        verdict = await joined(verifying)
        return verdict if EXTRAS_HEADER in call.headers else _repeating(verdict, body)

    async def _verify(self, session: Session[TaskT], request: VerifyRequest) -> VerifyResponse:
        digest = session.sandbox and session.sandbox.image_digest
        await self._take_back(session)
        verdict = await self.verify(session, request)
        return verdict if digest is None else verdict.model_copy(update={"image_digest": digest})

    async def _take_back(self, session: Session[TaskT]) -> None:
        """Ends the loan of the session's sandbox, once however often it is verified, before anything is read there."""
        sandbox, access = session.sandbox, session.sandbox_access
        if sandbox is None or access is None:
            return
        if session.taken_back is None:
            keep = access.keeps_services or self.verifies_services
            session.taken_back = Shared(lambda: take_back(sandbox, keep_running=keep))
        await session.taken_back.get()

    @route("/close_session")
    async def close_session(self, body: CloseSessionRequest, call: Call) -> CloseSessionResponse:  # noqa: ARG002
        """Frees the session. Succeeds for a session that is closed already or was never seeded."""
        absent = CloseSessionResponse(resources_session_id=body.resources_session_id)
        return await self._ledger.close(body.resources_session_id, body.episode_id, absent)

    @route("/tools")
    async def list_tools(self, body: NoArguments, call: Call) -> ToolList:  # noqa: ARG002
        """The schemas of the tools."""
        return ToolList(tools=[tool_schema(function) for function in self.tools().values()])

    @route("/aggregate_metrics")
    async def aggregate(self, body: AggregateMetricsRequest, call: Call) -> AggregateMetricsResponse:  # noqa: ARG002
        """Metrics over the verdicts of a run; a verdict whose sample is masked does not count."""
        metrics = self.aggregate_metrics([row for row in body.verify_responses if not row.get("mask_sample")])
        return AggregateMetricsResponse(agent_metrics=metrics, key_metrics=metrics)

    async def _call_tool(self, function: Tool, arguments: BaseModel, call: Call) -> Any:
        return await self.call_tool(self.session(call), function, arguments)

    async def call_tool(self, session: Session[TaskT], function: Tool, arguments: BaseModel) -> Any:
        """Runs a tool and returns plain JSON. A failure is kept in the session, in case the harness passes over it.

        Raises:
            ServerError: The tool refuses the call; the model can mend it.
            EpisodeFailure: The tool failed.
        """
        given = {name: getattr(arguments, name) for name in arguments.model_fields_set}
        try:
            return to_jsonable_python(await function(self, session, **given), inf_nan_mode="null")
        except Exception as error:
            if isinstance(error, ServerError) and error.status in MODEL_CAN_FIX:
                raise
            failure = self._failure(function.__name__, error)
            session.failure = session.failure or failure
            raise failure from error

    def _failure(self, tool_name: str, error: Exception) -> EpisodeFailure:
        if isinstance(error, EpisodeFailure):
            return EpisodeFailure(error.kind, error.message, stage=error.stage or "agent")
        message = f"tool {tool_name} of {self.name}: {one_line(error)}"
        log.error("%s", message, exc_info=error)
        return EpisodeFailure("tool_server_error", message, stage="agent")

    async def stop(self) -> None:
        """Frees the sessions that nobody closed."""
        await self._ledger.close_all()

    async def seed(self, session: Session[TaskT]) -> None:
        """Prepares what the episode needs. Cancelled by a close that comes meanwhile; `close` follows a failure."""

    @classmethod
    def task_images(cls, task: TaskT, config: ResourcesConfigT) -> Iterable[str]:  # noqa: ARG003
        """The images that a task's sandboxes start from, where the task itself names them: had ready before the run."""
        return ()

    @classmethod
    def names_images(cls) -> bool:
        """Whether its tasks name images: it has `task_images` of its own."""
        return cls.task_images.__func__ is not ResourcesServer.task_images.__func__  # type: ignore[attr-defined]

    @abstractmethod
    async def verify(self, session: Session[TaskT], request: VerifyRequest) -> VerifyResponse:
        """The outcome of the episode.

        Raises:
            EpisodeFailure: `verifier_crashed`: nothing can be said about the outcome.
        """

    async def close(self, session: Session[TaskT]) -> None:
        """Frees what the episode held; called again must do no harm."""
        if session.sandbox is not None:
            await session.sandbox.stop()

    def aggregate_metrics(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The metrics of a run, from the verdicts of its rollouts: `mean/<field>` of every field with numbers."""
        columns: dict[str, list[float]] = {}
        for row in rows:
            for name, value in row.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("_"):
                    columns.setdefault(name, []).append(value)
        return {f"mean/{name}": mean for name, values in sorted(columns.items()) if (mean := _mean(values)) is not None}


def _mean(values: Sequence[float]) -> float | None:
    """The mean, also of numbers whose sum is too large for one; None where they have none that can be said."""
    with suppress(OverflowError, ValueError):
        return math.fsum(values) / len(values)
    with suppress(OverflowError, ValueError):
        return float(sum(map(Fraction, values)) / len(values))
    return None


def _repeating(verdict: VerifyResponse, body: VerifyRequest) -> VerifyResponse:
    """A verdict as NeMo Gym's servers give it: with what was verified, and a masked reward where there is none."""
    said = {**body.model_dump(exclude_unset=True), **verdict.model_dump(exclude_unset=True, exclude_none=True)}
    if verdict.failure_kind is not None:
        said |= {"reward": 0.0, "mask_sample": True}
    return VerifyResponse.model_validate(said)
