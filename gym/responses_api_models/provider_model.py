"""What the model servers over a provider share: settings, and request -> provider -> response."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.responses_api_models.upstream import Endpoint, Patience, Upstream
from gym.servers.base import OPERATIONAL, Call, ServerContext
from gym.servers.model import ModelServer, ModelServerConfig

SECRET: dict[str, Any] = {"secret": True, "operational": True}
"""Marks a setting whose value is never shown or saved."""

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
        default_factory=dict, description="Fields that are added to every request as they are; they win over others."
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
    """A policy at a provider. Subclasses say where it is, and convert to and from its API."""

    def __init__(self, config: ProviderConfigT, context: ServerContext) -> None:
        super().__init__(config, context)
        patience = Patience(config.max_attempts, config.retry_backoff_seconds, config.request_timeout_seconds)
        self.upstream = Upstream(self.endpoint(), patience, config.max_concurrent_requests)

    async def start(self) -> None:
        """Says where the policy is."""
        log.info("%s is the model %s at %s", self.name, self.model, self.upstream.endpoint.url)

    async def stop(self) -> None:
        """Closes the connections to the provider."""
        await self.upstream.aclose()

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:  # noqa: ARG002
        """The provider's answer.

        Raises:
            ServerError: 400 for what the provider's API has no place for.
            EpisodeFailure: The provider failed or refused.
        """
        body = self.encode(self._with_settings(request)) | self.config.extra_body
        return self.decode(await self.upstream.post(body))

    def _with_settings(self, request: ResponsesRequest) -> ResponsesRequest:
        """The request to the configured model, with the settings that it leaves open."""
        names = ("temperature", "top_p", "max_output_tokens")
        unset = {name: getattr(self.config, name) for name in names if getattr(request, name) is None}
        return request.model_copy(update={"model": self.model, **unset})

    @property
    @abstractmethod
    def model(self) -> str:
        """The model's name at the provider; a request's own `model` is not used."""

    @abstractmethod
    def endpoint(self) -> Endpoint:
        """Where requests go."""

    @abstractmethod
    def encode(self, request: ResponsesRequest) -> dict[str, Any]:
        """The request in the provider's API."""

    @abstractmethod
    def decode(self, answer: dict[str, Any]) -> ResponsesResponse:
        """The provider's answer as a response."""


def bearer(api_key: str | None) -> dict[str, str]:
    """The authorization header of OpenAI-compatible providers; none without a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
