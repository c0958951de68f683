"""The wire contract between the servers of an episode.

Names and shapes follow NeMo Gym's session contract (0.7.0 and the documents of its main branch), so that a server
written for it works behind ours and the other way round.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import Stage

ServerType = Literal["responses_api_models", "resources_servers", "responses_api_agents", "environment_servers"]
SERVER_TYPES: tuple[ServerType, ...] = get_args(ServerType)
Transport = Literal["direct_http", "mcp"]

ROLLOUT_HEADER = "x-ng-rollout-id"
"""Names the rollout that a call belongs to."""

RUN_HEADER = "x-gym-run"
"""Names the run that asks for a rollout: ids of rollouts are those of others, too, that use the same servers."""

ACTIVATION_HEADER = "x-ng-agent-activation"
"""Which activation of a session that continues a request is: 1, 2, ..."""

SESSION_HEADER = "x-gym-session-id"
"""Names the agent session that a server of the run makes a call for; session keys say it themselves."""

INVOCATION_HEADER = "x-gym-invocation-id"
"""Names the start of a harness that a call belongs to, where the harness can send a header; recorded as it is."""

ACTIVATION_SECONDS = "agent_timeout_sec"
"""Metadata of a request that bounds its activation, in seconds: preparation, queueing and staging included."""

EXTRAS_HEADER = "x-gym-extras"
"""Set by a caller that reads what we add to NeMo Gym's answers; every other one gets the shapes that it knows."""


class Wire(BaseModel):
    """A message between servers: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Open(BaseModel):
    """A message that carries a benchmark's own fields beside ours."""

    model_config = ConfigDict(extra="allow")


class Whole(Wire):
    """A message whose defaults are sent too: who reads it may know no defaults."""

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002
        """Counts every field as set, so that leaving out unset fields keeps it."""
        self.model_fields_set.update(type(self).model_fields)


class ServerRef(Wire):
    """Names an instance of a server type: `{type: resources_servers, name: benchmark}`."""

    type: ServerType
    name: str

    def __hash__(self) -> int:
        return hash((self.type, self.name))


class EpisodeId(Whole):
    """Identity of one episode: the rollout, and which try of it (0-based)."""

    rollout_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    attempt: int = Field(default=0, ge=0)

    @field_validator("rollout_id")
    @classmethod
    def _names_no_try(cls, rollout_id: str) -> str:
        if re.search(r"-a\d+$", rollout_id):
            raise ValueError("it cannot end in `-a` and a number: that is how later tries are named")
        return rollout_id

    @property
    def key(self) -> str:
        """The identity as one word: `<rollout_id>`, or `<rollout_id>-a<attempt>` for later tries."""
        return self.rollout_id if self.attempt == 0 else f"{self.rollout_id}-a{self.attempt}"


class TaskId(Wire):
    """Identity of a task: the taskset and the task's id in it."""

    taskset: str
    task_id: str


RESERVED_FIELDS = frozenset({"responses_create_params", "response"})
"""Names that a benchmark's own fields cannot have: a verifier finds them beside these."""


class TaskInput(Open):
    """What a task gives to an episode: the request to the agent, and the benchmark's own fields."""

    responses_create_params: ResponsesRequest
    task_data: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fold(self) -> TaskInput:
        """Flat benchmark fields move into `task_data`; a field given twice with two values is refused."""
        for key, value in (self.model_extra or {}).items():
            if self.task_data.setdefault(key, value) != value:
                raise ValueError(f"`{key}` stands both in task_input and in task_data, with different values")
        if self.__pydantic_extra__:
            self.__pydantic_extra__.clear()
            self.model_fields_set.add("task_data")
        if taken := RESERVED_FIELDS.intersection(self.task_data):
            raise ValueError(f"a field of a task cannot be named `{sorted(taken)[0]}`: rename it")
        return self


class Task(Wire):
    """One task of a benchmark."""

    task_id: TaskId
    task_input: TaskInput


class RunRequest(Wire):
    """`POST /run` of an environment server."""

    episode_id: EpisodeId
    task: Task


class Failure(Wire):
    """Why an episode has no reward. `failure_reason` is one line; `terminal` means that a retry cannot help."""

    failure_reason: str
    terminal: bool
    failure_kind: str | None = None
    stage: Stage | None = None
    partial_response: ResponsesResponse | None = None


class RunResponse(Wire):
    """The outcome of an episode: exactly one of `result` and `failure`.

    To a caller that asks for extras, `timings` are sent (seconds per stage), and of a failed episode what the agent was
    observed to do.
    """

    episode_id: EpisodeId
    task_id: TaskId
    result: VerifyResponse | None = None
    failure: Failure | None = None
    timings: dict[str, float] = Field(default_factory=dict)
    agent_observations: dict[str, Any] | None = None


class CloseLostResponse(Whole):
    """The answer of `POST /close_lost`, which takes what `POST /run` takes: what could not be closed, one line each."""

    cleanup_failures: list[str] = Field(default_factory=list)


class DirectHttpGrant(Whole):
    """Tools that are called as `POST <base_url>/<tool name>` with the arguments as JSON body."""

    kind: Literal["direct_http"] = "direct_http"
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    required: bool = True
    base_url: str
    cookies: dict[str, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)


class McpConnection(Whole):
    """Where an MCP server is reached."""

    transport: Literal["streamable_http"] = "streamable_http"
    url: str
    headers: dict[str, str] = Field(default_factory=dict)


class StdioConnection(Whole):
    """An MCP server that is a command in the sandbox; only agents that say so (`stdio_tools`) are granted one."""

    transport: Literal["stdio"] = "stdio"
    command: str
    args: list[str] = Field(default_factory=list)


class McpGrant(Whole):
    """Tools of an MCP server."""

    kind: Literal["mcp"] = "mcp"
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    required: bool = True
    connection: McpConnection | StdioConnection


Grant = Annotated[DirectHttpGrant | McpGrant, Field(discriminator="kind")]


class SandboxConnection(Whole):
    """A sandbox that its owner lends: the borrower connects with the same provider block, and never destroys it."""

    kind: Literal["direct"] = "direct"
    provider_config_ref: str
    descriptor: dict[str, Any]


class SandboxAccess(Wire):
    """A lent sandbox, and the directory to work in.

    What only our agents know is left out unless it is set, so that others refuse a task that needs it: `user`, as whom
    the agent is to work, and `keeps_services`: what it leaves running for the verifier goes on after its end.
    """

    connection: SandboxConnection
    workdir: str
    user: str | None = None
    keeps_services: bool = False


class SeedSessionRequest(Wire):
    """`POST /seed_session` of a resources server. The caller assigns the session id."""

    resources_session_id: str = Field(min_length=1)
    episode_id: EpisodeId
    task_id: TaskId
    task_data: dict[str, Any] = Field(default_factory=dict)


class ResourcesTools(Whole):
    """Where the session's tools are served over MCP."""

    server_name: str
    url_path: str = "/mcp"
    transport: Literal["http"] = "http"
    headers: dict[str, str] = Field(default_factory=dict)


class SeedSessionResponse(Open):
    """The answer to a seed: it echoes the id and sets the session cookie."""

    resources_session_id: str
    resources_tools: ResourcesTools | None = None
    sandbox_access: SandboxAccess | None = None


class CloseSessionRequest(Wire):
    """`POST /close_session` of a resources server."""

    resources_session_id: str = Field(min_length=1)
    episode_id: EpisodeId | None = None


class CloseSessionResponse(Open):
    """The answer to a close; also for a session that was closed before, or never seeded."""

    resources_session_id: str


class VerifyRequest(Open):
    """`POST /verify`: the task's own fields lie flat beside the request and the agent's response."""

    responses_create_params: ResponsesRequest
    response: ResponsesResponse


class VerifyResponse(Open):
    """A verifier's outcome: a reward, or (`failure_kind` set) the failure of the verifier itself.

    Benchmarks add fields of their own.
    """

    reward: float | None = Field(None, allow_inf_nan=False)
    failure_kind: str | None = None
    failure_reason: str | None = None
    mask_sample: bool = False
    response: ResponsesResponse | None = None


class AggregateMetricsRequest(Open):
    """`POST /aggregate_metrics` of a resources server: the verdicts of a run."""

    verify_responses: list[dict[str, Any]]


class AggregateMetricsResponse(Wire):
    """Metrics by name: those of each task, of the whole run, and the headline ones among these."""

    group_level_metrics: list[dict[str, Any]] = Field(default_factory=list)
    agent_metrics: dict[str, Any] = Field(default_factory=dict)
    key_metrics: dict[str, Any] = Field(default_factory=dict)


ContinuationMode = Literal["resume_harness_session"]


class Continuation(Wire):
    """Asks for a session of many activations, each going on where the one before it ended."""

    mode: ContinuationMode


class AgentSessionRequest(Wire):
    """`POST /v1/agent_sessions`: opens an agent session. The caller assigns the id, which goes into headers."""

    agent_session_id: str = Field(pattern=r"^[\x21-\x7e]+$")
    episode_id: EpisodeId
    task_id: TaskId
    tool_accesses: list[Grant] = Field(default_factory=list)
    sandbox_access: SandboxAccess | None = None
    continuation: Continuation | None = None

    @model_validator(mode="after")
    def _unique_names(self) -> AgentSessionRequest:
        names = [grant.name for grant in self.tool_accesses]
        if len(names) != len(set(names)):
            raise ValueError("tool_accesses have a name twice")
        return self


class AgentSessionResponse(Wire):
    """The answer to a seed of an agent session; the session cookie comes with it."""

    agent_session_id: str


class AgentCloseRequest(Wire):
    """`POST /v1/agent_sessions/close`."""

    agent_session_id: str = Field(min_length=1)
    episode_id: EpisodeId


class AgentCloseResponse(Wire):
    """What an agent hands back at the end: its observations, and the final cookies of Resources.

    `cleanup_confirmed` says whether all its processes are known to have ended; left out where that is not known.
    """

    agent_session_id: str
    agent_observations: dict[str, Any] | None = None
    resources_cookies: dict[str, str] | None = None
    cleanup_confirmed: bool | None = None


RunResponse.model_rebuild()
