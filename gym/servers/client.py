"""How servers call each other: by reference, with the same contract in-process and over HTTP.

A call to an instance of this process reaches its typed handler directly; any other goes through httpx on an
aiohttp-backed transport (httpx's own pool scans its connections linearly).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from gym.failures import EpisodeFailure
from gym.servers import deadline
from gym.servers.base import Call, Server, ServerError, describe, one_line, unexpected
from gym.servers.contract import ROLLOUT_HEADER, ServerRef
from gym.servers.rollout_path import split
from gym.servers.wire import dumped

if TYPE_CHECKING:
    import httpx

AnswerT = TypeVar("AnswerT", bound=BaseModel)
log = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
KEEPALIVE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Answer(Generic[AnswerT]):
    """An answer's body, and the cookies that it sets."""

    body: AnswerT
    cookies: dict[str, str]


@dataclass
class Directory:
    """Where the instances are: in this process, or at a base URL.

    Attributes:
        base_url: This process's own address as others reach it, `http://host:port`; set when it is bound.
    """

    local: dict[str, Server[Any]] = field(default_factory=dict)
    remote: dict[str, str] = field(default_factory=dict)
    base_url: str = ""

    def url(self, name: str) -> str:
        """The base URL of an instance, without a trailing slash.

        Raises:
            ServerError: 503 where no such instance runs.
        """
        if name in self.remote:
            return self.remote[name]
        if name in self.local and self.base_url:
            return f"{self.base_url}/{name}"
        raise ServerError(503, f"no address known for the instance `{name}`")

    def serves(self, url: str) -> bool:
        """Whether a URL is one of a Gym server."""
        bases = [*self.remote.values(), self.base_url]
        return any(url == base or url.startswith(f"{base}/") for base in bases if base)

    def split(self, url: str) -> tuple[Server[Any] | None, str]:
        """The local server that a URL points into, and the rest of the path."""
        if self.base_url and url.startswith(self.base_url + "/"):
            name, _, rest = url[len(self.base_url) + 1 :].partition("/")
            return self.local.get(name), "/" + rest
        return None, ""


class Client:
    """Calls servers. One per process; close it with `aclose`."""

    def __init__(self, directory: Directory, token: str) -> None:
        self.directory = directory
        self.token = token
        self.auth = {"authorization": f"Bearer {token}"}
        self._http: httpx.AsyncClient | None = None

    @property
    def http(self) -> httpx.AsyncClient:
        """The HTTP client, made on first use."""
        if self._http is None:
            self._http = new_http_client(proxies_from_environment=False)
        return self._http

    async def aclose(self) -> None:
        """Closes the HTTP connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def post(
        self,
        ref: ServerRef,
        path: str,
        body: BaseModel,
        answer: type[AnswerT],
        *,
        cookies: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Answer[AnswerT]:
        """`POST <instance><path>` and its typed answer.

        Raises:
            ServerError: The server refused the request, or failed to serve it.
            EpisodeFailure: Infrastructure behind the server failed; `server_unreachable` where it did not answer.
            TimeoutError: No answer within `timeout_seconds`.
        """
        work = self._post(ref, path, body, cookies or {}, headers or {})
        if timeout_seconds is None:
            got, set_cookies = await work
        else:
            async with asyncio.timeout(timeout_seconds):
                got, set_cookies = await work
        try:
            typed = got if isinstance(got, answer) else answer.model_validate(_plain(got))
        except ValidationError as error:
            message = f"{ref.name}{path} answered with a malformed body: {describe(error)}"
            raise EpisodeFailure("malformed_answer", message) from error
        return Answer(typed, set_cookies)

    async def _post(
        self, ref: ServerRef, path: str, body: BaseModel, cookies: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[Any, dict[str, str]]:
        server = self.directory.local.get(ref.name)
        if server is not None:
            return await call_local(server, path, body, cookies, headers)
        url = self.directory.url(ref.name) + path
        payload = dumped(body)
        return await self._send(url, payload, cookies, {**self.auth, **deadline.to_headers(), **headers})

    async def post_json(
        self, url: str, body: Mapping[str, Any], *, cookies: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[Any, dict[str, str]]:
        """`POST` of plain JSON to a URL, as tools are called. Returns the JSON answer and the cookies it sets.

        Raises:
            ServerError: As `post`.
            EpisodeFailure: As `post`.
        """
        server, path = self.directory.split(url)
        if server is not None:
            got, set_cookies = await call_local(server, path, body, cookies, headers)
            return to_jsonable_python(_plain(got)), set_cookies
        return await self._send(url, json.dumps(body).encode(), cookies, {**deadline.to_headers(), **headers})

    async def _send(
        self, url: str, payload: bytes, cookies: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[Any, dict[str, str]]:
        import aiohttp
        import httpx

        sent = {"content-type": "application/json", **headers}
        if cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        try:
            response = await self.http.post(url, content=payload, headers=sent)
        except (httpx.TransportError, httpx.InvalidURL, aiohttp.ClientError) as error:
            message = f"no answer from {url}: {one_line(error.__cause__ or error)}"
            raise EpisodeFailure("server_unreachable", message) from error
        if response.is_success:
            try:
                return response.json(), _cookies_set_by(response)
            except ValueError as error:
                raise EpisodeFailure("malformed_answer", f"{url} answered with something that is no JSON") from error
        raise _refusal(response)


def _cookies_set_by(response: httpx.Response) -> dict[str, str]:
    """Names and values exactly as they were sent: they are opaque here, and go back as they came."""
    pairs = [header.partition(";")[0].partition("=") for header in response.headers.get_list("set-cookie")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _plain(got: Any) -> Any:
    return got.model_dump(mode="json", exclude_unset=True) if isinstance(got, BaseModel) else got


def _refusal(response: httpx.Response) -> Exception:
    try:
        content = response.json()
    except ValueError:
        content = {}
    content = content if isinstance(content, dict) else {}
    detail = str(content.get("detail") or _foreign(response))
    failure = content.get("failure")
    if isinstance(failure, dict) and "kind" in failure:
        try:
            return EpisodeFailure(str(failure["kind"]), detail, stage=failure.get("stage"))
        except ValueError:
            return EpisodeFailure("internal", f"{failure['kind']}: {detail}")
    return ServerError(response.status_code, detail)


def _foreign(response: httpx.Response) -> str:
    """What an answer without our form says; of a failure also who said it, which nothing else would tell."""
    text = response.text[:500] or response.reason_phrase
    return text if response.status_code < 500 else f"{response.url} answered {response.status_code}: {text}"


async def call_local(
    server: Server[Any],
    path: str,
    body: BaseModel | Mapping[str, Any],
    cookies: Mapping[str, str],
    headers: Mapping[str, str],
) -> tuple[Any, dict[str, str]]:
    """Calls a handler of this process as HTTP would: same refusals, same cookies, faults as a 500."""
    rollout, own_path = split(path)
    route = server.routes.get(own_path)
    if route is None:
        raise ServerError(404, f"{server.name} has no route {path}")
    named = {} if rollout is None else {ROLLOUT_HEADER: rollout}
    call = Call(headers={**named, **headers}, cookies=cookies)
    try:
        return await route(body, call), call.set_cookies
    except (ServerError, EpisodeFailure):
        raise
    except Exception as error:
        log.exception("%s%s failed", server.name, path)
        raise unexpected(error) from error


def new_http_client(*, proxies_from_environment: bool = True) -> httpx.AsyncClient:
    """An httpx client with an aiohttp transport: no limit on connections, no cookies kept, no bound but on connecting.

    Args:
        proxies_from_environment: Honours `HTTPS_PROXY` and its kind, as services outside need it; between the
            servers of a run there is no proxy.
    """
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    import aiohttp
    import httpx
    from httpx_aiohttp import AiohttpTransport

    def session() -> aiohttp.ClientSession:
        # An idle connection is dropped before the 5 s after which uvicorn's default drops it: the two can't race.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    return httpx.AsyncClient(
        # The session brings its own TLS context; without `verify=False` the transport loads one more for nothing.
        transport=AiohttpTransport(client=session, verify=False),
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        trust_env=proxies_from_environment,
    )
