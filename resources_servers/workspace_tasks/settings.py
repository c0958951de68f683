"""What a workspace task consists of, and which sandbox it gets."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gym.sandbox.interface import Network, Resources, SandboxSpec
from gym.servers.resources import TaskData


class SandboxResources(BaseModel):
    """Upper limits of a sandbox; null leaves a limit to the provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu: float | None = Field(None, gt=0, description="Cores.")
    memory_mib: int | None = Field(None, gt=0, description="Memory, in MiB.")
    pids: int | None = Field(None, gt=0, description="Processes and threads at one time.")
    disk_mib: int | None = Field(None, gt=0, description="Disk space, in MiB.")


class SandboxConfig(BaseModel):
    """The sandbox of a task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = Field(None, description="Image, for providers that start from one.")
    workdir: str = Field("/work", pattern="^/.", description="Where the task's files lie and commands start.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables that every command sees.")
    resources: SandboxResources = Field(default=SandboxResources(), description="Upper limits.")
    network: Network = Field("none", description="open, gym_only (the Gym servers and nothing else) or none.")
    ttl_seconds: float | None = Field(None, gt=0, description="The provider ends the sandbox after this time.")

    def spec(self) -> SandboxSpec:
        """The same as the provider takes it."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        return SandboxSpec(**fields | {"resources": Resources(**self.resources.model_dump())})


class WorkspaceTask(TaskData):
    """The files that a task starts with, and the script that judges what became of them."""

    files: dict[str, str] = Field(default_factory=dict, description="Text of each file, by its path in the workspace.")
    test_script: str = Field(description="Exits 0 where the task is solved and 1 where it is not. Has a `#!` line.")
    timeout_seconds: float | None = Field(None, gt=0, description="Bound of the test script.")

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        for path in files:
            parts = PurePosixPath(path)
            if parts.is_absolute() or ".." in parts.parts or not parts.name:
                raise ValueError(f"`{path}` must be a path below the work directory")
        return files

    @field_validator("test_script")
    @classmethod
    def _has_interpreter(cls, script: str) -> str:
        if not _interpreter(script):
            raise ValueError("must begin with `#!` and an interpreter, such as `#!/bin/sh`")
        return script

    @property
    def interpreter(self) -> list[str]:
        """Program and arguments of the script's first line."""
        return _interpreter(self.test_script)


def _interpreter(script: str) -> list[str]:
    first_line = script.partition("\n")[0]
    return shlex.split(first_line[2:]) if first_line.startswith("#!") else []
