"""What the model servers over a provider share: settings, and request -> provider -> response."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from gym.apis.clients.api import ClientApi, Encoder
from gym.apis.ending import BROKEN_OFF, Ending
from gym.apis.errors import ProviderFailure
from gym.apis.events import Event
from gym.apis.fields import told
from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.apis.upstreams.api import TITLES, Decoder, UpstreamApi, decoded
from gym.capture.exchange import limit_in, note_error
from gym.responses_api_models.upstream import Endpoint, Patience, Upstream
from gym.servers.base import OPERATIONAL, Call, ServerContext
from gym.servers.model import MESSAGES, Body, ModelServer, ModelServerConfig
from gym.servers.understood import understood

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

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """As it is sent: a limit in `extra_body` wins, and the configured one is used where there is none."""
        if any(name in self.config.extra_body for name in self.api.limit_fields):
            return limit_in(self.config.extra_body)
        return limit_in(body) or self.config.max_output_tokens

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        """The provider's answer.

        Raises:
            ServerError: 400 for what the provider's API has no place for.
            ProviderFailure: The provider failed or refused.
        """
        with self._clean():
            body, decoder = self._asked(request, stream=False)
            answer = await self.upstream.post(body, headers=self.forwarded(call))
            return decoder.whole(answer.body)

    async def events(self, request: ResponsesRequest, call: Call) -> AsyncIterator[list[Event]]:
        """The provider's answer as it comes. Raises as `respond`."""
        body, decoder = self._asked(request, stream=True)
        with self._clean():
            async with aclosing(self.upstream.stream(body, headers=self.forwarded(call))) as pieces:
                async for due in decoded(pieces, decoder):
                    yield due

    async def answered(self, api: ClientApi, body: Body, call: Call) -> bytes:
        """The answer for a client: the provider's bytes where both speak one API."""
        if api.name != self.api.name:
            return await super().answered(api, body, call)
        with self._clean():
            answer = await self.upstream.post(self._native(body), headers=self.forwarded(call))
            self.api.check(answer.body)
        return answer.content

    async def streamed(self, api: ClientApi, body: Body, call: Call) -> AsyncGenerator[bytes, None]:
        """The stream for a client: the provider's bytes where both speak one API."""
        if api.name == self.api.name:
            said = self.upstream.stream(self._native(body), headers=self.forwarded(call))
            pieces = self._passed(said, api)
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

    async def _passed(self, pieces: AsyncGenerator[bytes, None], api: ClientApi) -> AsyncGenerator[bytes, None]:
        """The bytes as they are, event by event; a stream that ends before its answer does fails: it is no short one.

        Of an event that was broken off nothing is passed on: clients would stumble over it, and not see why.
        """
        rest, ending = b"", Ending(api.ends)
        with self._clean():
            async with aclosing(pieces):
                async for piece in pieces:
                    rest += piece
                    if whole := WHOLE_EVENTS.match(rest):
                        rest = rest[whole.end() :]
                        ending.feed(whole[0])
                        yield whole[0]
            broken = None if rest else ending.malformed
            ending.feed(rest + b"\n\n")
            if not (ending.complete or ending.failure):
                raise broken or ProviderFailure("provider_error", BROKEN_OFF)
        if rest:
            yield rest
        if (noted := ending.failure or ending.malformed) is not None:
            note_error(noted.scrubbed(self.upstream.endpoint.scrub))

    def forwarded(self, call: Call) -> Mapping[str, str]:  # noqa: ARG002
        """Headers of a client that go on to the provider."""
        return {}

    def _asked(self, request: ResponsesRequest, *, stream: bool) -> tuple[Body, Decoder]:
        """What is sent for a request, and what reads the answer."""

        def ask(given: ResponsesRequest) -> tuple[Body, Decoder]:
            body, decoder = self.api.ask(self._with_settings(given), stream=stream)
            return self._finished(body), decoder

        return understood(ask, request)

    def _understood(self, api: ClientApi, body: Body) -> tuple[ResponsesRequest, Encoder]:
        """As in the base; what the API of the provider has no place for is refused in its name."""
        with told(TITLES[self.api.name]):
            return super()._understood(api, body)

    def _native(self, body: Body) -> Body:
        """What is sent for a body in the provider's own API."""
        return understood(lambda given: self._finished(self._with_own_settings(given)), body)

    def _with_settings(self, request: ResponsesRequest) -> ResponsesRequest:
        """The request to the configured model, with the settings that it leaves open."""
        names = ("temperature", "top_p", "max_output_tokens")
        unset = {name: getattr(self.config, name) for name in names if getattr(request, name) is None}
        return request.model_copy(update={"model": self.model, **unset})

    def _with_own_settings(self, body: Body) -> Body:
        """The same for a body in the provider's own API."""
        limits = [body[name] for name in self.api.limit_fields if body.get(name) is not None]
        limit = min(limits, default=self.config.max_output_tokens)
        settings = {"temperature": self.config.temperature, "top_p": self.config.top_p, self.api.limit_fields[0]: limit}
        kept = {name: value for name, value in body.items() if name not in self.api.limit_fields[1:]}
        if len(limits) > 1:
            kept[self.api.limit_fields[0]] = limit
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


def bearer(api_key: str | None) -> dict[str, str]:
    """The authorization header of OpenAI-compatible providers; none without a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
