"""What every server is: a class with typed handlers.

A handler takes a typed body and the `Call` (headers and cookies) and returns a typed answer. The same handler is
reached directly by servers of the same process (`gym.servers.client`) and over HTTP (`gym.servers.http`), so the
contract is one. FastAPI is imported only where something is really served.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.errors import in_one_line
from gym.failures import EpisodeFailure
from gym.servers.contract import ROLLOUT_HEADER, RUN_HEADER
from gym.servers.keys import Identity, KeyRing

if TYPE_CHECKING:
    from gym.sandbox.interface import SandboxProvider
    from gym.servers.client import Client
    from gym.servers.guard import App
    from gym.servers.sessions import Signer

Hosting = Literal["in_process", "process"]
OPERATIONAL: dict[str, Any] = {"operational": True}
"""Marks a setting that may change when a run continues: it changes how a run is made, not what it measures."""


class ServerError(Exception):
    """A request that a server refuses or could not serve, as an HTTP status and one line of text."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class ServerConfig(BaseModel):
    """Settings that every server has. Unknown settings are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    entrypoint: str | None = Field(
        None, description="Accepted for recipes written for NeMo Gym; unused.", json_schema_extra=OPERATIONAL
    )
    host: str | None = Field(
        None,
        description="Address of a server with a process of its own; default: `bind_host`.",
        json_schema_extra=OPERATIONAL,
    )
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of a server with a process of its own; default: a free one.",
        json_schema_extra=OPERATIONAL,
    )
    hosting: Hosting | None = Field(
        None,
        description="Whether it gets a process of its own; null: as the run's `hosting` says.",
        json_schema_extra=OPERATIONAL,
    )
    num_workers: int | None = Field(
        None, ge=1, description="Processes of a model server; sessions need one.", json_schema_extra=OPERATIONAL
    )

    def bounds(self) -> dict[str, tuple[float, bool]]:
        """The longest times that this server may take in one episode: by setting, in seconds.

        The flag says whether the time counts against each cleanup's bound rather than the episode's deadline.
        """
        return {}


@dataclass(slots=True)
class Call:
    """What a request carries beside its body. Header names are lower case.

    Attributes:
        identity: Whose session key the request carries; None for a call of one of our servers.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)
    set_cookies: dict[str, str] = field(default_factory=dict)
    identity: Identity | None = None

    @property
    def rollout(self) -> str | None:
        """Whose call it is. The session key says it; a server of the run, which has none, says it by header."""
        return self.identity.rollout if self.identity else self.headers.get(ROLLOUT_HEADER)

    @property
    def run(self) -> str | None:
        """The run that the rollout belongs to, by its name; None where nobody names it."""
        return self.identity.run if self.identity else self.headers.get(RUN_HEADER)


Handler = Callable[[Any, Call], Awaitable[Any]]
MethodT = TypeVar("MethodT", bound=Callable[..., Awaitable[Any]])
ConfigT = TypeVar("ConfigT", bound=ServerConfig)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer as it goes out, where somebody else's API says what it looks like.

    Attributes:
        content: The body, or its pieces as they come; an iterator with `aclose` is closed when the client has gone.
    """

    content: bytes | AsyncIterator[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """A handler at a path. `body` and `answer` are pydantic models, or None/Any for plain JSON.

    Attributes:
        over_http: Answers HTTP requests in the handler's place, from the bytes of their body.
    """

    path: str
    handler: Handler
    body: type[BaseModel]
    answer: Any
    method: Literal["GET", "POST"] = "POST"
    over_http: Callable[[bytes, Call], Awaitable[Reply]] | None = None

    async def __call__(self, body: BaseModel | Mapping[str, Any], call: Call) -> Any:
        """Validates the body unless it is already of the right type, and calls the handler.

        Raises:
            ServerError: 422 for a body that does not fit; whatever the handler refuses; 500 for its own faults.
            EpisodeFailure: Infrastructure that failed inside the handler.
        """
        try:
            typed = body if isinstance(body, self.body) else self.body.model_validate(_plain(body))
        except ValidationError as error:
            raise ServerError(422, describe(error)) from error
        return await self.handler(typed, call)


def _plain(body: BaseModel | Mapping[str, Any]) -> Any:
    return body.model_dump(mode="json", exclude_unset=True) if isinstance(body, BaseModel) else body


def describe(error: ValidationError) -> str:
    """A validation error in one line, without the input's values."""
    return describe_items(error.errors(include_url=False, include_input=False, include_context=False))


def describe_items(items: Iterable[Mapping[str, Any]]) -> str:
    """The items of a validation error (`loc`, `msg`) in one line."""
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg'].removeprefix('Value error, ')}" for item in items
    )


def route(path: str) -> Callable[[MethodT], MethodT]:
    """Marks `async def method(self, body: Model, call: Call) -> Model` as the handler of `POST <path>`."""

    def mark(method: MethodT) -> MethodT:
        method.__dict__["route_path"] = path
        return method

    return mark


@cache
def routes_of(cls: type) -> list[tuple[str, str, type[BaseModel], Any]]:
    """The marked handlers of a class: path, method, body and answer of each."""
    found = {}
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        marks = (getattr(base.__dict__.get(name), "route_path", None) for base in cls.__mro__)
        path = next((mark for mark in marks if mark is not None), None)
        if path is not None:
            hints = typing.get_type_hints(member)
            body = hints.get(list(inspect.signature(member).parameters)[1])
            if not (isinstance(body, type) and issubclass(body, BaseModel)):
                raise TypeError(f"{cls.__name__}.{name} needs a pydantic model as the type of its body")
            found[name] = (path, name, body, hints.get("return"))
    return list(found.values())


@dataclass(frozen=True)
class ServerContext:
    """What a server is given when it starts.

    Attributes:
        name: Instance name.
        client: Calls other servers.
        signer: Signs session cookies with the run's secret.
        sandboxes: Opens the sandbox provider of a top-level block by its name.
        keys: Issues and reads the session keys of the run.
        records: Where model calls are recorded; None: nowhere.
        mask: Takes the run's secrets out of a text that is kept.
    """

    name: str
    client: Client
    signer: Signer
    sandboxes: Callable[[str], SandboxProvider]
    keys: KeyRing = field(default_factory=KeyRing)
    records: Path | None = None
    mask: Callable[[str], str] = str


class Server(Generic[ConfigT]):
    """Base of all servers.

    Attributes:
        config_type: Schema of an instance's settings.
        unavailable: Why it cannot run yet; empty for a server that can. Planning refuses it with this reason.
    """

    unavailable: ClassVar[str] = ""

    config_type: ClassVar[type[ServerConfig]] = ServerConfig

    def __init__(self, config: ConfigT, context: ServerContext) -> None:
        self.config = config
        self.context = context
        self.name = context.name
        self.routes = {route.path: route for route in self.build_routes()}

    def build_routes(self) -> list[Route]:
        """The routes of this server; tools add theirs."""
        return [Route(path, getattr(self, name), body, answer) for path, name, body, answer in routes_of(type(self))]  # type: ignore[arg-type]

    def asgi_routes(self) -> dict[str, App]:
        """Paths that ASGI apps of their own serve, over HTTP only; the guard stands before them too."""
        return {}

    def opens_to_keys(self, path: str) -> bool:  # noqa: ARG002
        """Whether a session key opens this path of the server; without one, only the run's own servers may call it."""
        return False

    async def start(self) -> None:
        """Called once before the first request."""

    async def stop(self) -> None:
        """Called once after the last request; frees what the server holds."""


def unexpected(error: Exception) -> ServerError | EpisodeFailure:
    """An exception of a handler as what its caller sees: refusals and failures as they are, faults as a 500."""
    if isinstance(error, ServerError | EpisodeFailure):
        return error
    return ServerError(500, one_line(error))


def one_line(error: BaseException) -> str:
    """What went wrong, in one line: the text of our own errors as it is, any other with its type."""
    own = isinstance(error, EpisodeFailure | ServerError)
    said = describe(error) if isinstance(error, ValidationError) else str(error)
    text = said if own else f"{type(error).__name__}: {said}".removesuffix(": ")
    return in_one_line(text)
