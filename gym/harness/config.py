"""Settings that every harness has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gym.harness.own import refused_arguments
from gym.servers.contract import ServerRef
from gym.servers.sandbox_access import SandboxedAgentConfig

Version = Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+_-]*$")]
"""An exact version of a package: what registries' clients cannot take for a path, a tag or a range."""


class McpServerConfig(BaseModel):
    """An MCP server that the harness always has, beside the tools of the task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        pattern=r"^https?://[^\s/]", description="Its streamable HTTP endpoint, as the harness reaches it."
    )
    headers: dict[str, str] = Field(default_factory=dict, description="Headers of every request to it.")
    required: bool = Field(True, description="Whether a failed connection fails the episode.")


class HarnessAgentConfig(SandboxedAgentConfig):
    """What all harnesses can be told.

    Attributes:
        own_arguments: Arguments that `extra_args` must not have, as `gym.harness.own.owned` makes them.
        free: Names of settings that only the harness itself can check.
    """

    own_arguments: ClassVar[Mapping[str, str]] = {}
    free: ClassVar[tuple[str, ...]] = ("extra_args",)

    model_server: ServerRef = Field(description="The policy: a model server instance.")
    model_name: str = Field("policy", min_length=1, description="Name of the model that the harness asks for and sees.")
    system_prompt: str | None = Field(
        None, description="Goes before the instructions and system messages of every request; literal text."
    )
    timeout_seconds: float = Field(
        1800,
        gt=0,
        description="Bound of one activation, unless the task has one of its own; what was done until then is graded.",
    )
    execution: Literal["sandbox", "host"] = Field(
        "sandbox",
        description="Where the harness runs: in a sandbox, or on this machine, with a scratch HOME and no isolation.",
    )
    user: str | None = Field(None, description="User of the sandbox that it runs as; null: the sandbox's own.")
    model_retries: int = Field(
        0,
        ge=0,
        description="How often the harness tries a failed model call again, beside the model server's own attempts.",
    )
    mcp_servers: dict[str, McpServerConfig] = Field(
        default_factory=dict, description="MCP servers beside the tools of the task, by name."
    )
    extra_args: list[str] = Field(
        default_factory=list, description="Further arguments of the harness's program, before the prompt."
    )

    @model_validator(mode="after")
    def _refuse_own(self) -> Self:
        if problems := [*self.problems()]:
            raise ValueError("; ".join(problems))
        return self

    def problems(self) -> Iterator[str]:
        """What cannot work or would be lost, one line each."""
        yield from refused_arguments(self.extra_args, self.own_arguments)

    def unchecked(self) -> list[str]:
        """The settings of `free` that are given."""
        return [name for name in self.free if name in self.model_fields_set and getattr(self, name)]

    def bounds(self) -> dict[str, tuple[float, bool]]:
        """One activation is the one step of an agent that takes long."""
        return {"timeout_seconds": (self.timeout_seconds, False)}
