"""Settings that sandbox providers share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gym.sandbox.checks import LIMITS, LONGEST_TTL_SECONDS
from gym.sandbox.spec import Resources

Cpu = Annotated[float, Field(ge=LIMITS["cpu"][0], le=LIMITS["cpu"][1])]
MemoryMib = Annotated[int, Field(ge=LIMITS["memory_mib"][0], le=LIMITS["memory_mib"][1])]
Pids = Annotated[int, Field(ge=LIMITS["pids"][0], le=LIMITS["pids"][1])]
DiskMib = Annotated[int, Field(ge=LIMITS["disk_mib"][0], le=LIMITS["disk_mib"][1])]
TtlSeconds = Annotated[float, Field(gt=0, le=LONGEST_TTL_SECONDS)]


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

    default_cpu: Cpu | None = Field(
        default=None, description="Cores for a sandbox that names none. Holds where control groups are usable."
    )
    default_memory_mib: MemoryMib | None = Field(
        default=None, description="Memory in MiB for a sandbox that names none."
    )
    default_pids: Pids | None = Field(default=4096, description="Processes and threads for a sandbox that names none.")
    default_disk_mib: DiskMib | None = Field(
        default=None, description="Size in MiB of the largest file, for a sandbox that names no disk space."
    )

    def limits(self, asked: Resources) -> Resources:
        """`asked`, with its gaps filled from the defaults."""
        return Resources(
            cpu=self.default_cpu if asked.cpu is None else asked.cpu,
            memory_mib=self.default_memory_mib if asked.memory_mib is None else asked.memory_mib,
            pids=self.default_pids if asked.pids is None else asked.pids,
            disk_mib=self.default_disk_mib if asked.disk_mib is None else asked.disk_mib,
        )
