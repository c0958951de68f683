"""A policy behind the Anthropic Messages API."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from gym.apis.upstreams.messages import MessagesUpstream
from gym.responses_api_models.provider_model import SECRET, BaseUrl, ProviderModel, ProviderModelConfig, Stripped
from gym.responses_api_models.upstream import Endpoint
from gym.servers.base import OPERATIONAL, Call

API_VERSION = "2023-06-01"
VERSION, BETA = "anthropic-version", "anthropic-beta"


class AnthropicModelConfig(ProviderModelConfig):
    """Settings of `anthropic_model`."""

    anthropic_base_url: BaseUrl = Field(
        description="Address of the API, with or without `/v1`.", json_schema_extra=OPERATIONAL
    )
    anthropic_api_key: Stripped | None = Field(
        None, repr=False, description="Sent as `x-api-key`; null: none is sent.", json_schema_extra=SECRET
    )
    anthropic_model: str = Field(description="Name of the model at the provider.")
    anthropic_default_headers: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Headers of every request.", json_schema_extra=OPERATIONAL
    )
    max_output_tokens: int = Field(
        16384, ge=1, description="Limit of an answer in tokens, thinking included; used where a request sets none."
    )

    @property
    def served_model(self) -> str:
        """The provider's name of the model."""
        return self.anthropic_model


class AnthropicModel(ProviderModel[AnthropicModelConfig]):
    """A policy that speaks the Messages API."""

    config_type = AnthropicModelConfig

    @property
    def model(self) -> str:
        """The provider's name of the model."""
        return self.config.anthropic_model

    def endpoint(self) -> Endpoint:
        """The provider's Messages."""
        key = self.config.anthropic_api_key
        secret = {**({"x-api-key": key} if key else {}), **self.config.anthropic_default_headers}
        url = f"{self.config.anthropic_base_url.removesuffix('/v1')}/v1/messages"
        return Endpoint(url, secret, {VERSION: API_VERSION})

    def upstream_api(self) -> MessagesUpstream:
        """The Messages API."""
        return MessagesUpstream(self.model)

    def forwarded(self, call: Call) -> Mapping[str, str]:
        """The version that a client of the Messages API speaks, and the beta features that it and we ask for."""
        betas = [headers[BETA] for headers in (self.config.anthropic_default_headers, call.headers) if BETA in headers]
        version = {VERSION: call.headers[VERSION]} if VERSION in call.headers else {}
        return version | ({BETA: ",".join(betas)} if betas else {})
