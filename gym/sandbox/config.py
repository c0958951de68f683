"""Settings that every sandbox provider has."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SandboxProviderConfig(BaseModel):
    """Base of a provider's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default_metadata: dict[str, str] = Field(
        default={},
        description="Labels that every sandbox gets; the labels of its owner win.",
        json_schema_extra={"operational": True},
    )
    allow_unisolated: bool = Field(
        default=False,
        description="Accept sandboxes that do not keep untrusted code away from this machine.",
    )
