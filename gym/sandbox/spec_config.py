"""The `sandbox_config` of a server: which sandbox it asks its provider for."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from gym.sandbox.config import Cpu, DiskMib, MemoryMib, Pids, TtlSeconds
from gym.sandbox.interface import Network, Resources, SandboxSpec


class SandboxResources(BaseModel):
    """Upper limits of a sandbox; null leaves a limit to the provider."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    cpu: Cpu | None = Field(None, description="Cores.")
    memory_mib: MemoryMib | None = Field(None, description="Memory, in MiB.")
    pids: Pids | None = Field(None, description="Processes and threads at one time.")
    disk_mib: DiskMib | None = Field(None, description="Disk space, in MiB.")


class SandboxConfig(BaseModel):
    """A sandbox as a configuration describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    image: str | None = Field(None, description="Image, for providers that start from one.")
    workdir: str = Field("/work", pattern="^/.", description="Where the task's files lie and commands start.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables that every command sees.")
    resources: SandboxResources = Field(default=SandboxResources(), description="Upper limits.")
    network: Network = Field("none", description="open, gym_only (the Gym servers and nothing else) or none.")
    ttl_seconds: TtlSeconds | None = Field(
        None,
        validation_alias=AliasChoices("ttl_seconds", "ttl_s"),
        description="The provider ends the sandbox after this time. `ttl_s` is accepted too.",
    )
    metadata: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of the sandbox, over the provider's `default_metadata`; Gym's own labels win.",
        json_schema_extra={"operational": True},
    )

    def spec(self, labels: Mapping[str, str]) -> SandboxSpec:
        """The same as the provider takes it; `labels` say whose it is, and win over `metadata`."""
        return SandboxSpec(
            image=self.image,
            workdir=self.workdir,
            env=self.env,
            resources=Resources(**self.resources.model_dump()),
            network=self.network,
            ttl_seconds=self.ttl_seconds,
            labels={**self.metadata, **labels},
        )
