"""What a workspace task consists of."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from pydantic import Field, field_validator

from gym.servers.resources import TaskData


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
