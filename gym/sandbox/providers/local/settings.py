"""Settings of the `local` provider."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from gym.sandbox.config import SandboxProviderConfig
from gym.sandbox.interface import Resources


class LocalProviderConfig(SandboxProviderConfig):
    """Settings of the `local` provider."""

    isolation: Literal["auto", "bubblewrap", "none"] = Field(
        default="auto",
        description="What keeps commands apart from this machine: `bubblewrap`; `none`, which needs "
        "`allow_unisolated`; or `auto`, which is bubblewrap where it works and else none.",
    )
    root: Path | None = Field(
        default=None,
        description="Folder for the files of all sandboxes; by default one a user in the temporary directory.",
        json_schema_extra={"operational": True},
    )
    default_cpu: float | None = Field(
        default=None, gt=0, description="Cores for a sandbox that names none. Holds where control groups are usable."
    )
    default_memory_mib: int | None = Field(
        default=None, gt=0, description="Memory in MiB for a sandbox that names none."
    )
    default_pids: int | None = Field(
        default=4096, gt=0, description="Processes and threads for a sandbox that names none."
    )
    default_disk_mib: int | None = Field(
        default=None, gt=0, description="Size in MiB of the largest file, for a sandbox that names no disk space."
    )

    @property
    def default_resources(self) -> Resources:
        """Limits for what a spec leaves open."""
        return Resources(self.default_cpu, self.default_memory_mib, self.default_pids, self.default_disk_mib)
