"""A policy behind the OpenAI API, or a service that offers the same API."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gym.apis.upstreams.api import UpstreamApi
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.chat_request import ChatDialect, LimitField
from gym.apis.upstreams.responses import ResponsesUpstream
from gym.responses_api_models.provider_model import (
    PATHS,
    SECRET,
    BaseUrl,
    ProviderModel,
    ProviderModelConfig,
    Stripped,
    bearer,
)
from gym.responses_api_models.upstream import Endpoint
from gym.servers.base import OPERATIONAL


class OpenAIModelConfig(ProviderModelConfig):
    """Settings of `openai_model`."""

    openai_base_url: BaseUrl = Field(description="Address of the API, `/v1` included.", json_schema_extra=OPERATIONAL)
    openai_api_key: Stripped | None = Field(
        None, repr=False, description="Sent as bearer token; null: none is sent.", json_schema_extra=SECRET
    )
    openai_model: str = Field(description="Name of the model at the provider.")
    openai_default_headers: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Headers of every request.", json_schema_extra=OPERATIONAL
    )
    api: Literal["chat", "responses"] = Field(
        "chat",
        description="What the provider is asked: `chat`, its Chat Completions, or `responses`, its Responses API.",
    )
    output_limit_field: LimitField = Field(
        "max_completion_tokens", description="Request field of `chat` that limits the output tokens at this provider."
    )

    @property
    def served_model(self) -> str:
        """The provider's name of the model."""
        return self.openai_model


class OpenAIModel(ProviderModel[OpenAIModelConfig]):
    """A policy that speaks Chat Completions, or Responses."""

    config_type = OpenAIModelConfig

    @property
    def model(self) -> str:
        """The provider's name of the model."""
        return self.config.openai_model

    def endpoint(self) -> Endpoint:
        """The provider's Chat Completions, or Responses."""
        headers = {**bearer(self.config.openai_api_key), **self.config.openai_default_headers}
        return Endpoint(f"{self.config.openai_base_url}{PATHS[self.config.api]}", headers)

    def upstream_api(self) -> UpstreamApi:
        """The API of the two that is set."""
        if self.config.api == "responses":
            return ResponsesUpstream(self.model)
        return ChatUpstream(self.model, ChatDialect(output_limit_field=self.config.output_limit_field))
