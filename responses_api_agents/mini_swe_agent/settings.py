"""The settings of mini-SWE-agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator

from gym.harness.config import HarnessAgentConfig, Version
from gym.harness.own import no_mappings, refused_settings

ROOT = (None, "root", "0")
ROOT_ONLY = "mini-SWE-agent runs only where the task runs as root; a task user needs another harness"

OWN_SETTINGS = {
    "model.model_name": "model_name",
    "model.model_kwargs": "request_settings",
    **dict.fromkeys(("model.model_class", "environment.cwd", "environment.environment_class", "agent.cost_limit"), ""),
}
OWN_FIELDS = {"model": "model_name", **dict.fromkeys(("input", "tools", "stream"), "")}


class MiniSweAgentConfig(HarnessAgentConfig):
    """Settings of mini-SWE-agent."""

    free = ("extra_config",)

    mini_swe_version: Version = Field("2.4.6", description="Version of the Python package mini-swe-agent.")
    system_prompt_mode: Literal["append", "replace"] = Field(
        "append", description="Add the system prompts to mini-SWE-agent's own, or put them in its place."
    )
    base_config: str = Field(
        "mini.yaml", description="File of prompts and settings of the package, such as benchmarks/swebench.yaml."
    )
    extra_config: dict[str, Any] = Field(
        default_factory=dict, description="Further settings in the shape of such a file, over those that it has."
    )
    max_turns: int | None = Field(None, gt=0, description="Model calls after which it stops; null: the file's bound.")
    command_timeout_seconds: int | None = Field(
        None, gt=0, description="Bound of one command; null: the file's, or 30."
    )
    max_output_tokens: int | None = Field(
        None, gt=0, description="Bound of one model call, unless the request has its own; null: the model server's."
    )
    request_settings: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of every request to the model, such as temperature."
    )
    request_timeout_seconds: float = Field(600, gt=0, description="Ends a model call that is silent for so long.")

    @field_validator("user")
    @classmethod
    def _root(cls, user: str | None) -> str | None:
        if user not in ROOT:
            raise ValueError(ROOT_ONLY)
        return user

    def problems(self) -> Iterator[str]:
        """Also settings that Gym decides itself."""
        yield from super().problems()
        yield from refused_settings("extra_config", self.extra_config, OWN_SETTINGS)
        yield from no_mappings("extra_config", self.extra_config, ("agent", "environment", "model"))
        yield from refused_settings("request_settings", self.request_settings, OWN_FIELDS)

    @field_validator("extra_args")
    @classmethod
    def _no_arguments(cls, arguments: list[str]) -> list[str]:
        if arguments:
            raise ValueError("mini-SWE-agent takes no further arguments; use `extra_config`")
        return arguments
