"""What the model servers over a provider share: settings, and request -> provider -> response."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import from_json

from gym.apis.clients.api import ClientApi
from gym.apis.errors import ProviderFailure, failure_within_stream
from gym.apis.events import Event
from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.apis.sse import Parser
from gym.apis.upstreams.api import UpstreamApi, decoded
from gym.capture.exchange import note_error
from gym.responses_api_models.upstream import Endpoint, Patience, Upstream
from gym.servers.base import OPERATIONAL, Call, ServerContext
from gym.servers.model import MESSAGES, Body, ModelServer, ModelServerConfig

SECRET: dict[str, Any] = {"secret": True, "operational": True}
"""Marks a setting whose value is never shown or saved."""

PATHS = {"chat": "/chat/completions", "responses": "/responses"}
"""Where the OpenAI APIs are, behind `/v1`."""

WHOLE_EVENTS = re.compile(rb".*(?:\n\n|\r\n\r\n|\r\r)", re.DOTALL)
"""What of a stream is complete, up to the last blank line."""

log = logging.getLogger(__name__)


def _http_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an address such as http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("an address has no user, password or query; use a key or headers")
    return url.rstrip("/")


Stripped = Annotated[str, StringConstraints(strip_whitespace=True)]
BaseUrl = Annotated[Stripped, AfterValidator(_http_url)]


class ProviderModelConfig(ModelServerConfig):
    """Settings that every model server over a provider has."""

    temperature: float | None = Field(None, ge=0, description="Used where a request sets none.")
    top_p: float | None = Field(None, gt=0, le=1, description="Used where a request sets none.")
    max_output_tokens: int | None = Field(
        None, ge=1, description="Limit of an answer in tokens, reasoning included; used where a request sets none."
    )
    extra_body: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields that are added to every request as they are. They win over others; null removes one.",
    )
    max_attempts: int = Field(
        3, ge=1, description="Attempts for each request, the first one included.", json_schema_extra=OPERATIONAL
    )
    retry_backoff_seconds: float = Field(
        0.5,
        ge=0,
        description="Wait before the second attempt; doubles with each further one. `Retry-After` wins over it.",
        json_schema_extra=OPERATIONAL,
    )
    request_timeout_seconds: float = Field(
        600, gt=0, description="How long one attempt may take.", json_schema_extra=OPERATIONAL
    )
    max_concurrent_requests: int | None = Field(
        None, ge=1, description="Requests in flight at once; null: no limit.", json_schema_extra=OPERATIONAL
    )


ProviderConfigT = TypeVar("ProviderConfigT", bound=ProviderModelConfig)


class ProviderModel(ModelServer[ProviderConfigT]):
    """A policy at a provider. Subclasses say where it is, and which API it speaks.

    A client of that same API is passed through: its request goes on as it is but for the model's name, the settings
    that it leaves open and the key, and the answer comes back byte for byte. For other clients both are converted.
    """

    def __init__(self, config: ProviderConfigT, context: ServerContext) -> None:
        super().__init__(config, context)
        patience = Patience(config.max_attempts, config.retry_backoff_seconds, config.request_timeout_seconds)
        self.upstream = Upstream(self.endpoint(), patience, config.max_concurrent_requests)
        self.api = self.upstream_api()

    async def start(self) -> None:
        """Says where the policy is."""
        log.info("%s is the model %s at %s", self.name, self.model, self.upstream.endpoint.url)

    async def stop(self) -> None:
        """Closes the connections to the provider."""
        await self.upstream.aclose()

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        """The provider's answer.

        Raises:
            ServerError: 400 for what the provider's API has no place for.
            ProviderFailure: The provider failed or refused.
        """
        with self._clean():
            body, decoder = self.api.ask(self._with_settings(request), stream=False)
            answer = await self.upstream.post(self._finished(body), headers=self.forwarded(call))
            return decoder.whole(answer.body)

    async def events(self, request: ResponsesRequest, call: Call) -> AsyncIterator[list[Event]]:
        """The provider's answer as it comes. Raises as `respond`."""
        body, decoder = self.api.ask(self._with_settings(request), stream=True)
        with self._clean():
            async with aclosing(self.upstream.stream(self._finished(body), headers=self.forwarded(call))) as pieces:
                async for due in decoded(pieces, decoder):
                    yield due

    async def answered(self, api: ClientApi, body: Body, call: Call) -> bytes:
        """The answer for a client: the provider's bytes where both speak one API."""
        if api.name != self.api.name:
            return await super().answered(api, body, call)
        with self._clean():
            answer = await self.upstream.post(self._finished(self._native(body)), headers=self.forwarded(call))
            self.api.check(answer.body)
        return answer.content

    async def streamed(self, api: ClientApi, body: Body, call: Call) -> AsyncGenerator[bytes, None]:
        """The stream for a client: the provider's bytes where both speak one API."""
        if api.name == self.api.name:
            sent = self._finished(self._native(body))
            said = self.upstream.stream(sent, headers=self.forwarded(call))
            pieces = whole_stream(said, api.complete, self.upstream.endpoint.scrub)
        else:
            pieces = super().streamed(api, body, call)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def counted(self, body: Body, call: Call) -> Body:
        """The provider's own count where it speaks the Messages API; else an estimate."""
        if self.api.name != MESSAGES.name:
            return await super().counted(body, call)
        sent = {**body, "model": self.model}
        return (await self.upstream.post(sent, path="/count_tokens", headers=self.forwarded(call))).body

    def forwarded(self, call: Call) -> Mapping[str, str]:  # noqa: ARG002
        """Headers of a client that go on to the provider."""
        return {}

    def _with_settings(self, request: ResponsesRequest) -> ResponsesRequest:
        """The request to the configured model, with the settings that it leaves open."""
        names = ("temperature", "top_p", "max_output_tokens")
        unset = {name: getattr(self.config, name) for name in names if getattr(request, name) is None}
        return request.model_copy(update={"model": self.model, **unset})

    def _native(self, body: Body) -> Body:
        """The same for a body in the provider's own API."""
        limits = [body[name] for name in self.api.limit_fields if body.get(name) is not None]
        limit = limits[0] if limits else self.config.max_output_tokens
        settings = {"temperature": self.config.temperature, "top_p": self.config.top_p, self.api.limit_fields[0]: limit}
        kept = {name: value for name, value in body.items() if name not in self.api.limit_fields[1:]}
        open_ = {name: value for name, value in settings.items() if value is not None and kept.get(name) is None}
        return self.api.native({**kept, "model": self.model, **open_})

    def _finished(self, body: Body) -> Body:
        """The body with what is always added; a field that `extra_body` sets to null is left out."""
        extra = self.config.extra_body
        kept = {name: value for name, value in (body | self.further_fields()).items() if name not in extra}
        return kept | {name: value for name, value in extra.items() if value is not None}

    def further_fields(self) -> Body:
        """Fields that every request to this provider has."""
        return {}

    @contextmanager
    def _clean(self) -> Iterator[None]:
        """Failures that an answer itself tells are cleaned of secrets, as all others are."""
        try:
            yield
        except ProviderFailure as failure:
            raise failure.scrubbed(self.upstream.endpoint.scrub) from failure

    @abstractmethod
    def endpoint(self) -> Endpoint:
        """Where requests go."""

    @abstractmethod
    def upstream_api(self) -> UpstreamApi:
        """The API that the provider speaks."""


async def whole_stream(
    pieces: AsyncGenerator[bytes, None], complete: re.Pattern[bytes], scrub: Callable[[str], str] = str
) -> AsyncGenerator[bytes, None]:
    """The bytes as they are, event by event; a stream that ends before its answer does is a failure, no short answer.

    Of an event that was broken off nothing is passed on: clients would stumble over it, and not see why it broke off.
    """
    rest, passed = b"", []
    async with aclosing(pieces):
        async for piece in pieces:
            rest += piece
            if whole := WHOLE_EVENTS.match(rest):
                rest = rest[whole.end() :]
                passed.append(whole[0])
                yield whole[0]
    answer = b"".join([*passed, rest])
    if not complete.search(answer):
        raise ProviderFailure("provider_error", "the stream ended before the answer did")
    if rest:
        yield rest
    if (failure := failure_in(answer)) is not None:
        note_error(failure.scrubbed(scrub))


def failure_in(stream: bytes) -> ProviderFailure | None:
    """What the events of a stream tell that went wrong: an error, or an event that is none."""
    for sent in Parser().feed(stream):
        if sent.data == "[DONE]":
            continue
        try:
            said = from_json(sent.data)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            return ProviderFailure("malformed_answer", f"an event is no JSON object: {sent.data[:200]}")
        if said.get("type") == "response.failed":
            return failure_within_stream(said.get("response"))
        if said.get("type") == "error" or said.get("error"):
            return failure_within_stream({"error": said.get("error") or said})
    return None


def bearer(api_key: str | None) -> dict[str, str]:
    """The authorization header of OpenAI-compatible providers; none without a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
