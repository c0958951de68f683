"""A policy behind the OpenAI API, or a service that offers the same API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gym.apis.chat import ChatDialect, from_chat, to_chat
from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.responses_api_models.provider_model import (
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
    output_limit_field: Literal["max_completion_tokens", "max_tokens"] = Field(
        "max_completion_tokens", description="Request field that limits the output tokens at this provider."
    )


class OpenAIModel(ProviderModel[OpenAIModelConfig]):
    """Responses over the Chat Completions API of a provider."""

    config_type = OpenAIModelConfig

    @property
    def model(self) -> str:
        """The provider's name of the model."""
        return self.config.openai_model

    def endpoint(self) -> Endpoint:
        """The provider's Chat Completions."""
        headers = {**bearer(self.config.openai_api_key), **self.config.openai_default_headers}
        return Endpoint(f"{self.config.openai_base_url}/chat/completions", headers)

    def encode(self, request: ResponsesRequest) -> dict[str, Any]:
        """The request as a chat."""
        return to_chat(request, ChatDialect(output_limit_field=self.config.output_limit_field))

    def decode(self, answer: dict[str, Any]) -> ResponsesResponse:
        """The chat completion as a response."""
        return from_chat(answer, self.model)
