"""`task.toml`, schema 1.4, as data: every key that the format has, and what it accepts.

These classes say what one value may be. Deprecated spellings are rewritten before (`gym.harbor.legacy`); what
concerns several tables, and what we do not support, is checked after (`gym.harbor.checks`).
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gym.composition.credentials import is_secret_name
from gym.harbor.names import host, package_name, step_name
from gym.harbor.variables import ANYWHERE, ONLY_VARIABLES

NetworkMode = Literal["public", "no-network", "allowlist"]
Transport = Literal["stdio", "sse", "streamable-http"]
EnvironmentMode = Literal["shared", "separate"]
RewardStrategy = Literal["mean", "final"]
User = Annotated[str, Field(min_length=1)] | Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VARIABLE_NAME = re.compile(r"[^=\x00\s]+")

ItemT = TypeVar("ItemT")
Many = Annotated[tuple[ItemT, ...], Strict(False)]
"""An array: TOML gives a list."""


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"wants an absolute path, got `{path}`")
    return path


class Table(BaseModel):
    """A table: unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _env(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not VARIABLE_NAME.fullmatch(name):
            raise ValueError(f"`{name}` is no name of a variable")
    return env


Env = Annotated[dict[str, str], AfterValidator(_env)]
"""Variables; `${VAR}` is kept as text."""


def _policy(hosts: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
    if hosts and info.data.get("network_mode", "allowlist") != "allowlist":
        raise ValueError('is only for network_mode = "allowlist"')
    return hosts


Hosts = Annotated[Many[Annotated[str, AfterValidator(host)]] | None, AfterValidator(_policy)]
"""Hostname, `*.hostname`, IP address or CIDR range; normalised."""


class Author(Table):
    """Who wrote a task or a dataset."""

    name: str
    email: str | None = None


class Package(Table):
    """`[task]`, and `[dataset]` of a dataset.toml."""

    name: Annotated[str, AfterValidator(package_name)]
    version: str | None = Field(None, min_length=1)
    description: str = ""
    authors: Many[Author] = ()
    keywords: Many[str] = ()


class Agent(Table):
    """`[agent]`. Null: as the task (for a step), else no bound, the image's user, the environment's network."""

    timeout_sec: Seconds | None = None
    user: User | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: Hosts = None


class Healthcheck(Table):
    """Run after the environment has started, until it passes."""

    command: str = Field(min_length=1)
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: float = Field(0.0, ge=0)
    start_interval_sec: Seconds = 5.0
    retries: int = Field(3, ge=1)


class Tpu(Table):
    """A TPU slice. Kept as data; no provider has any."""

    type: str = Field(min_length=1)
    topology: str = Field(pattern=r"^[1-9]\d*(x[1-9]\d*)+$")


def _transport(given: Any) -> Any:
    return "streamable-http" if given == "http" else given


def _header(name: str, value: str) -> None:
    if not HEADER_NAME.fullmatch(name):
        raise ValueError(f"`{name}` is no name of a header")
    if "\n" in value or "\r" in value:
        raise ValueError(f"the header {name} has a line break")
    if "${" in ANYWHERE.sub("", value):
        raise ValueError(f"the header {name} has a `${{` that is no ${{VAR}} or ${{VAR:-default}}")
    variables = [(match["name"], match["default"]) for match in ANYWHERE.finditer(value)]
    holds = any(default and is_secret_name(variable) for variable, default in variables)
    is_secret = is_secret_name(name) or "auth" in name.lower()
    if holds or (is_secret and value.strip() and not ONLY_VARIABLES.fullmatch(value)):
        raise ValueError(f"the header {name} holds a credential; write it as ${{VAR}}, such as `Bearer ${{TOKEN}}`")


class McpServer(Table):
    """One MCP server of the agent: a command in the sandbox (stdio), or a URL that the sandbox can reach."""

    name: str = Field(min_length=1)
    transport: Annotated[Transport, BeforeValidator(_transport)] = "sse"
    url: str | None = None
    command: str | None = None
    args: Many[str] = ()
    headers: dict[str, str] = {}

    @field_validator("headers")
    @classmethod
    def _headers(cls, headers: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if headers and info.data.get("transport") == "stdio":
            raise ValueError("is for servers with a url; a stdio server has none")
        for name, value in headers.items():
            _header(name, value)
        return headers

    @model_validator(mode="after")
    def _complete(self) -> McpServer:
        needed, other = ("command", "url") if self.transport == "stdio" else ("url", "command")
        if not getattr(self, needed):
            raise ValueError(f"the {self.transport} server `{self.name}` needs `{needed}`")
        if getattr(self, other) or (self.args and self.transport != "stdio"):
            raise ValueError(f"the {self.transport} server `{self.name}` has a `{needed}`, and no `{other}` or args")
        return self


class Environment(Table):
    """`[environment]`, and `[verifier.environment]`."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = Field(None, min_length=1)
    os: Annotated[
        Literal["linux", "windows"], BeforeValidator(lambda given: given.lower() if isinstance(given, str) else given)
    ] = "linux"
    cpus: float | None = Field(None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(None, gt=0)
    storage_mb: int | None = Field(None, gt=0)
    gpus: int | None = Field(None, ge=0)
    gpu_types: Many[str] | None = None
    tpu: Tpu | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: Hosts = None
    env: Env = {}
    skills_dir: str | None = Field(None, min_length=1)
    workdir: Annotated[str, AfterValidator(_absolute)] | None = None
    mcp_servers: Many[McpServer] = ()
    healthcheck: Healthcheck | None = None


class CollectHook(Table):
    """A command that saves state into files after the agent has ended, before artifacts are taken."""

    command: str = Field(min_length=1)
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None


class Verifier(Table):
    """`[verifier]`."""

    timeout_sec: Seconds = 600.0
    env: Env = {}
    user: User | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: Hosts = None
    environment: Environment | None = None
    environment_mode: EnvironmentMode | None = None
    collect: Many[CollectHook] = ()

    @field_validator("environment_mode")
    @classmethod
    def _mode(cls, mode: EnvironmentMode | None, info: ValidationInfo) -> EnvironmentMode | None:
        if mode == "shared" and info.data.get("environment") is not None:
            raise ValueError('"shared" contradicts [verifier.environment]: leave out one of them')
        return mode

    @property
    def mode(self) -> EnvironmentMode | None:
        """What this table says about where the verifier runs; None: nothing."""
        return self.environment_mode or ("separate" if self.environment is not None else None)


class Artifact(Table):
    """A file or folder of the sandbox that is kept, and given to a separate verifier."""

    source: str = Field(min_length=1)
    destination: str | None = None
    exclude: Many[str] = ()
    service: str = "main"

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, given: Any) -> Any:
        return {"source": given} if isinstance(given, str) else given

    @field_validator("source")
    @classmethod
    def _stays_inside(cls, source: str) -> str:
        if ".." in PurePosixPath(source).parts:
            raise ValueError(f"`{source}` has `..` in it")
        return source

    @field_validator("destination")
    @classmethod
    def _destination(cls, destination: str | None) -> str | None:
        if not destination:
            return None
        path = PurePosixPath(destination)
        if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in destination:
            raise ValueError(f"`{destination}` is no relative path under the artifacts")
        if str(path) == "manifest.json":
            raise ValueError("`manifest.json` is the list of what was collected")
        return destination


class StepTable(Table):
    """`[[steps]]`."""

    name: Annotated[str, AfterValidator(step_name)]
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: Annotated[float, Field(allow_inf_nan=False)] | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: Many[Artifact] = ()


class Solution(Table):
    """`[solution]`."""

    env: Env = {}


class TaskTable(Table):
    """A whole task.toml."""

    schema_version: str = "1.4"
    source: str | None = None
    multi_step_reward_strategy: RewardStrategy | None = None
    task: Package | None = None
    metadata: dict[str, Any] = {}
    agent: Agent = Agent()
    environment: Environment = Environment()
    verifier: Verifier = Verifier()
    solution: Solution = Solution()
    artifacts: Many[Artifact] = ()
    steps: Many[StepTable] = ()
