"""Settings of the `opensandbox` provider."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from gym.sandbox.config import Cpu, MemoryMib, SandboxProviderConfig

_OPERATIONAL: JsonDict = {"operational": True}


class OpenSandboxConfig(SandboxProviderConfig):
    """How the deployment is reached, and what its sandboxes are like."""

    domain: str = Field(
        pattern=r"^[^\s/]+$",
        description="Host and port of the deployment, without `http://`.",
        json_schema_extra=_OPERATIONAL,
    )
    api_key: str | None = Field(
        default=None, description="Key of the deployment.", json_schema_extra=_OPERATIONAL | {"secret": True}
    )
    protocol: Literal["http", "https"] = Field(
        default="http", description="How the deployment is spoken to.", json_schema_extra=_OPERATIONAL
    )
    use_server_proxy: bool = Field(
        default=True,
        description="Reach into sandboxes through the deployment's own address. False goes to each sandbox directly, "
        "which has to be reachable from here.",
        json_schema_extra=_OPERATIONAL,
    )
    default_image: str | None = Field(default=None, description="Image of a sandbox that names none.")
    default_cpu: Cpu = Field(default=1.0, description="Cores for a sandbox that names none.")
    default_memory_mib: MemoryMib = Field(default=2048, description="Memory in MiB for a sandbox that names none.")
    enforces_egress: bool = Field(
        default=False,
        description="The deployment has an egress sidecar that blocks addresses, not only names (`mode = dns+nft`), "
        "so that it can offer the network `none`.",
    )
    unattended_seconds: float = Field(
        default=3600.0,
        ge=60,
        description="How long a sandbox without a ttl outlives a Gym that was killed. A live one renews it.",
        json_schema_extra=_OPERATIONAL,
    )
    start_timeout_seconds: float = Field(
        default=1200.0,
        gt=0,
        description="Bound for the deployment to make a sandbox, pulling its image included.",
        json_schema_extra=_OPERATIONAL,
    )
    ready_timeout_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Bound for a new sandbox to answer.",
        json_schema_extra=_OPERATIONAL,
    )
    request_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Bound of every other request, but not of commands and files.",
        json_schema_extra=_OPERATIONAL,
    )
    transfer_timeout_seconds: float = Field(
        default=900.0,
        gt=0,
        description="Bound of copying a file or folder in or out.",
        json_schema_extra=_OPERATIONAL,
    )
    max_retries: int = Field(
        default=4,
        ge=0,
        description="Further tries of a request that did not get through, or that the deployment refused for load "
        "(429, 502, 503).",
        json_schema_extra=_OPERATIONAL,
    )
    max_starts: int = Field(
        default=8,
        gt=0,
        description="Sandboxes that are being made at one time; further ones wait.",
        json_schema_extra=_OPERATIONAL,
    )
