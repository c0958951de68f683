"""Settings of the `local` provider."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from gym.sandbox.config import LimitedProviderConfig


class LocalProviderConfig(LimitedProviderConfig):
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
