"""Base of the resources servers: tasks' tools, state, sandbox and verifier.

A server says what a session holds (`seed`), what the agent may do (methods marked `@tool`), what the result is worth
(`verify`), and how to free what the session holds (`close`). Sessions, cookies and argument checks are done here.
"""

from __future__ import annotations

import inspect
import typing
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from gym.failures import EpisodeFailure
from gym.sandbox.interface import Sandbox
from gym.servers.base import OPERATIONAL, Call, Route, Server, ServerConfig, ServerContext, ServerError, describe, route
from gym.servers.contract import (
    CloseSessionRequest,
    CloseSessionResponse,
    EpisodeId,
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
from gym.servers.sessions import SessionCookie
from gym.tasks.datasets import DatasetConfig

ToolT = TypeVar("ToolT", bound=Callable[..., Awaitable[Any]])


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
    """

    id: str
    task: TaskT
    task_id: TaskId
    episode_id: EpisodeId
    state: dict[str, Any] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    sandbox_access: SandboxAccess | None = None
    closed: bool = False


class NoArguments(Wire):
    """An empty body."""


class ToolList(BaseModel):
    """The tools of a server as Responses function tools."""

    tools: list[dict[str, Any]]


def tool(method: ToolT) -> ToolT:
    """Makes `async def name(self, session, **typed arguments)` a tool; its docstring is what the model reads.

    Arguments that do not fit go back to the model as an error; an exception of the tool fails the episode.
    """
    method.__dict__["is_tool"] = True
    return method


@cache
def tool_arguments(function: Callable[..., Any]) -> type[BaseModel]:
    """The argument model of a tool, from its type hints and defaults. Unknown arguments are refused."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[2:]
    fields: dict[str, Any] = {
        item.name: (hints[item.name], ... if item.default is item.empty else item.default) for item in parameters
    }
    return create_model(f"{function.__name__}_arguments", __config__=ConfigDict(extra="forbid"), **fields)


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """A tool as a Responses function tool."""
    schema = tool_arguments(function).model_json_schema()
    schema.pop("title", None)
    for item in schema.get("properties", {}).values():
        item.pop("title", None)
    description = inspect.getdoc(function) or ""
    return {"type": "function", "name": function.__name__, "description": description, "parameters": schema}


class ResourcesServer(Server[ResourcesConfigT], Generic[ResourcesConfigT, TaskT]):
    """A verifier, the tools of its tasks, and their state.

    Attributes:
        task_type: Model of the benchmark's own task fields.
        transports: How the tools can be reached.
    """

    config_type: ClassVar[type[ServerConfig]] = ResourcesServerConfig
    task_type: ClassVar[type[TaskData]] = TaskData
    transports: ClassVar[frozenset[Transport]] = frozenset({"direct_http"})

    def __init__(self, config: ResourcesConfigT, context: ServerContext) -> None:
        self._ledger: Ledger[Session[TaskT], CloseSessionResponse] = Ledger(self._open, self._end)
        self.sessions = self._ledger.sessions
        self.cookie = SessionCookie(context.signer, context.name, "resources")
        super().__init__(config, context)

    @classmethod
    def tools(cls) -> dict[str, Callable[..., Awaitable[Any]]]:
        """The tool functions of this class by name."""
        return {
            name: member
            for name, member in inspect.getmembers(cls, inspect.isfunction)
            if member.__dict__.get("is_tool")
        }

    def build_routes(self) -> list[Route]:
        """The server's own routes, and one for each tool."""
        tools = [
            Route(f"/{name}", partial(self._call_tool, function), tool_arguments(function), Any)
            for name, function in self.tools().items()
        ]
        return super().build_routes() + tools

    def opens_to_keys(self, path: str) -> bool:
        """A session key opens the tools; which session they touch, its cookie or header decides.

        Paths that no route has pass too: that there is no such tool is for the tool's caller to hear.
        """
        return path not in self.routes or path.removeprefix("/") in self.tools()

    def session(self, call: Call) -> Session[TaskT]:
        """The session that a request belongs to.

        Raises:
            ServerError: 401 without a valid cookie, 409 for a session that is closed or unknown.
        """
        return self._ledger.active(self.cookie.read(call.cookies))

    @route("/seed_session")
    async def seed_session(self, body: SeedSessionRequest, call: Call) -> SeedSessionResponse:
        """Opens a session under the caller's id and sets its cookie. A repeated seed gets the same session."""
        session = await self._ledger.open(body.resources_session_id, body, lambda: self._new_session(body))
        self.cookie.issue(call, session.id)
        return SeedSessionResponse(resources_session_id=session.id, sandbox_access=session.sandbox_access)

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
        await self.close(session)
        return CloseSessionResponse(resources_session_id=session.id)

    @route("/verify")
    async def verify_session(self, body: VerifyRequest, call: Call) -> VerifyResponse:
        """Scores the session's outcome."""
        return await self.verify(self.session(call), body)

    @route("/close_session")
    async def close_session(self, body: CloseSessionRequest, call: Call) -> CloseSessionResponse:  # noqa: ARG002
        """Frees the session. Succeeds for a session that is closed already or was never seeded."""
        absent = CloseSessionResponse(resources_session_id=body.resources_session_id)
        return await self._ledger.close(body.resources_session_id, body.episode_id, absent)

    @route("/tools")
    async def list_tools(self, body: NoArguments, call: Call) -> ToolList:  # noqa: ARG002
        """The schemas of the tools."""
        return ToolList(tools=[tool_schema(function) for function in self.tools().values()])

    async def _call_tool(self, function: Callable[..., Awaitable[Any]], arguments: BaseModel, call: Call) -> Any:
        session = self.session(call)
        try:
            return await function(
                self, session, **{name: getattr(arguments, name) for name in arguments.model_fields_set}
            )
        except (EpisodeFailure, ServerError):
            raise
        except Exception as error:
            message = f"tool {function.__name__} of {self.name}: {type(error).__name__}: {error}"
            raise EpisodeFailure("tool_server_error", message) from error

    async def stop(self) -> None:
        """Frees the sessions that nobody closed."""
        await self._ledger.close_all()

    async def seed(self, session: Session[TaskT]) -> None:
        """Prepares what the episode needs. Cancelled by a close that comes meanwhile; `close` follows a failure."""

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
