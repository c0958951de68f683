"""Settings of the `docker` provider."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from gym.sandbox.config import LimitedProviderConfig

OPERATIONAL: dict[str, JsonValue] = {"operational": True}


class DockerProviderConfig(LimitedProviderConfig):
    """Settings of the `docker` provider."""

    host: str | None = Field(
        default=None,
        description="Address of the daemon (unix:// or tcp://); by default `DOCKER_HOST`, else the local socket.",
        json_schema_extra=OPERATIONAL,
    )
    default_image: str | None = Field(default=None, description="Image for a sandbox that names none.")
    pull: Literal["missing", "always", "never"] = Field(
        default="missing",
        description="When an image is pulled: where it is `missing`, `always` (once a run), or `never`.",
    )
    user: str | None = Field(
        default=None, description="User of commands that name none, who then owns the work directory; default: image's."
    )
    max_starts: int | None = Field(
        default=None,
        gt=0,
        description="Containers that are started at the same time; by default the number of cores, at least 4.",
        json_schema_extra=OPERATIONAL,
    )
    default_ttl_seconds: float = Field(
        default=86_400,
        gt=0,
        description="Containers of sandboxes without a ttl end after this time, even if nobody stops them.",
        json_schema_extra=OPERATIONAL,
    )
    read_only_root: bool = Field(
        default=False,
        description="The image's files cannot be changed; work directory, /tmp, /var/tmp and /run are kept in memory.",
    )
    tmpfs: dict[str, str] = Field(
        default={}, description="Folders kept in memory, with mount options such as `size=64m,exec`, by path."
    )
    cap_drop: list[str] = Field(default=[], description="Capabilities that root does not have; `ALL` for all of them.")
    no_new_privileges: bool = Field(default=False, description="No program raises its privileges; disables sudo.")
