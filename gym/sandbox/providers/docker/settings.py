"""Settings of the `docker` provider."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from gym.sandbox.config import LimitedProviderConfig, TtlSeconds
from gym.sandbox.providers.docker.daemon import HOSTS, SUPPORTED

OPERATIONAL: dict[str, JsonValue] = {"operational": True}
CAPABILITIES = """
ALL AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER
FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE
NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE
SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM
"""  # capabilities(7)
LARGEST_ID = 2**31 - 1
_USER = re.compile(r"[\w][\w.-]*\$?(:[\w][\w.-]*\$?)?", re.ASCII)
_OPTION = re.compile(
    r"(no)?(exec|suid|dev|atime|diratime)|relatime|strictatime|ro|rw|a?sync|dirsync|size=\d+[kmg%]?|mode=[0-7]{1,4}"
    r"|[ug]id=\d{1,9}|nr_(inodes|blocks)=\d+[kmg]?",
    re.IGNORECASE,
)


def _host(host: str) -> str:
    if not host.startswith(HOSTS):
        raise ValueError(f"only {SUPPORTED} are supported")
    return host


def _capability(name: str) -> str:
    if name.upper().removeprefix("CAP_") not in CAPABILITIES.split():
        raise ValueError(f"there is no capability `{name}`; see capabilities(7)")
    return name


def _user(user: str) -> str:
    if not _USER.fullmatch(user) or any(part.isdigit() and int(part) > LARGEST_ID for part in user.split(":")):
        raise ValueError(f"`{user}` is no user; use a name or number, with `:` and a group if need be")
    return user


def _number_as_text(user: object) -> object:
    return str(user) if isinstance(user, int) and not isinstance(user, bool) else user


def _tmpfs(folders: dict[str, str]) -> dict[str, str]:
    for path, options in folders.items():
        parts = PurePosixPath(path).parts
        if parts[:1] != ("/",) or len(parts) < 2 or ".." in parts or "\0" in path:
            raise ValueError(f"`{path}` is no folder; use an absolute path below the root, without `..`")
        for option in filter(None, options.split(",")):
            if not _OPTION.fullmatch(option):
                raise ValueError(f"`{option}` is no option of a folder in memory; use `size=64m`, `exec`, `mode=1777`")
    return folders


class DockerProviderConfig(LimitedProviderConfig):
    """Settings of the `docker` provider."""

    host: Annotated[str, AfterValidator(_host)] | None = Field(
        default=None,
        description="Address of the daemon (unix:// or tcp://); by default `DOCKER_HOST`, else the local socket.",
        json_schema_extra=OPERATIONAL,
    )
    default_image: str | None = Field(default=None, description="Image for a sandbox that names none.")
    pull: Literal["missing", "always", "never"] = Field(
        default="missing",
        description="When an image is pulled: where it is `missing`, `always` (once a run), or `never`.",
    )
    user: Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_user)] | None = Field(
        default=None, description="User of commands that name none, who then owns the work directory; default: image's."
    )
    max_starts: int | None = Field(
        default=None,
        gt=0,
        description="Containers that are started at the same time; by default the number of cores, at least 4.",
        json_schema_extra=OPERATIONAL,
    )
    default_ttl_seconds: TtlSeconds = Field(
        default=86_400,
        description="Containers of sandboxes without a ttl end after this time, even if nobody stops them.",
        json_schema_extra=OPERATIONAL,
    )
    read_only_root: bool = Field(
        default=False,
        description="The image's files cannot be changed; work directory, /tmp, /var/tmp and /run are kept in memory.",
    )
    tmpfs: Annotated[dict[str, str], AfterValidator(_tmpfs)] = Field(
        default={}, description="Folders kept in memory, with mount options such as `size=64m,exec`, by path."
    )
    cap_drop: list[Annotated[str, AfterValidator(_capability)]] = Field(
        default=[], description="Capabilities that root does not have; `ALL` for all of them."
    )
    no_new_privileges: bool = Field(default=False, description="No program raises its privileges; disables sudo.")
