"""Settings that sandbox providers share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from gym.sandbox.spec import Resources


class SandboxProviderConfig(BaseModel):
    """Base of a provider's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    default_metadata: dict[str, str] = Field(
        default={},
        description="Labels that every sandbox gets; the labels of its owner win.",
        json_schema_extra={"operational": True},
    )
    allow_unisolated: bool = Field(
        default=False,
        description="Accept sandboxes that do not keep untrusted code away from this machine.",
    )


class LimitedProviderConfig(SandboxProviderConfig):
    """Settings of a provider that enforces limits itself."""

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

    def limits(self, asked: Resources) -> Resources:
        """`asked`, with its gaps filled from the defaults."""
        return Resources(
            cpu=self.default_cpu if asked.cpu is None else asked.cpu,
            memory_mib=self.default_memory_mib if asked.memory_mib is None else asked.memory_mib,
            pids=self.default_pids if asked.pids is None else asked.pids,
            disk_mib=self.default_disk_mib if asked.disk_mib is None else asked.disk_mib,
        )
