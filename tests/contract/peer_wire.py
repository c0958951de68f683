"""NeMo Gym's side of the contract, written by hand from its documented shapes: what it sends, and what it accepts.

Unknown fields are refused wherever the documents do not say that a message is open. Nothing here uses our own models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class EpisodeId(Strict):
    rollout_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    attempt: int = Field(ge=0)

    @property
    def capture_key(self) -> str:
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id


class TaskId(Strict):
    taskset: str
    task_id: str


class TaskInput(Loose):
    responses_create_params: dict[str, Any]


class Task(Strict):
    task_id: TaskId
    task_input: TaskInput


class RunRequest(Strict):
    episode_id: EpisodeId
    task: Task


class Response(Loose):
    """An OpenAI response: its envelope is required."""

    id: str
    object: Literal["response"]
    created_at: float
    output: list[dict[str, Any]]


class Failure(Strict):
    failure_reason: str = Field(max_length=2000)
    terminal: bool
    failure_kind: str | None = None
    stage: Literal["admission", "seed", "agent", "verification", "cleanup"] | None = None
    partial_response: Response | None = None


class RunResponse(Strict):
    episode_id: EpisodeId
    task_id: TaskId
    result: dict[str, Any] | None
    failure: Failure | None

    @model_validator(mode="after")
    def _one(self) -> RunResponse:
        assert (self.result is None) != (self.failure is None)
        return self


class SeedSessionRequest(Strict):
    resources_session_id: str
    episode_id: EpisodeId
    task_id: TaskId
    task_data: dict[str, Any]


class ResourcesTools(Strict):
    server_name: str
    url_path: str
    transport: Literal["http"]
    headers: dict[str, str]


class SandboxConnection(Strict):
    kind: Literal["direct"]
    provider_config_ref: str
    descriptor: dict[str, Any]


class SandboxAccess(Strict):
    connection: SandboxConnection
    workdir: str


class SeedSessionResponse(Strict):
    resources_session_id: str
    resources_tools: ResourcesTools | None = None
    sandbox_access: SandboxAccess | None = None


class CloseSessionRequest(Strict):
    resources_session_id: str
    episode_id: EpisodeId | None = None


class CloseSessionResponse(Strict):
    resources_session_id: str


class VerifyRequest(Loose):
    responses_create_params: dict[str, Any]
    response: Response


class VerifyResponse(VerifyRequest):
    reward: float
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


GrantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class DirectHttpGrant(Strict):
    kind: Literal["direct_http"]
    name: GrantName
    required: bool
    base_url: str
    cookies: dict[str, str]
    headers: dict[str, str]


class McpConnection(Strict):
    transport: Literal["streamable_http"]
    url: str
    headers: dict[str, str]


class McpGrant(Strict):
    kind: Literal["mcp"]
    name: GrantName
    required: bool
    connection: McpConnection


class AgentSessionRequest(Strict):
    agent_session_id: str = Field(min_length=1)
    episode_id: EpisodeId
    task_id: TaskId
    tool_accesses: list[Annotated[DirectHttpGrant | McpGrant, Field(discriminator="kind")]]
    sandbox_access: SandboxAccess | None


class AgentSessionResponse(Strict):
    agent_session_id: str


class AgentCloseRequest(Strict):
    agent_session_id: str = Field(min_length=1)
    episode_id: EpisodeId


class ObservationBundle(Strict):
    source: str
    records: list[dict[str, Any]]
    gaps: list[Any]


class AgentCloseResponse(Strict):
    agent_session_id: str
    agent_observations: ObservationBundle | None = None
    resources_cookies: dict[str, str] | None = None
    cleanup_confirmed: bool | None = None
