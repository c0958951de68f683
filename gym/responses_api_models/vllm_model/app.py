"""A policy behind an OpenAI-compatible engine: vLLM, SGLang, llama.cpp, Ollama."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gym.apis.chat import ChatDialect, ReasoningField, from_chat, to_chat
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


class VLLMModelConfig(ProviderModelConfig):
    """Settings of `vllm_model`."""

    base_url: BaseUrl = Field(description="Address of the engine's API, `/v1` included.", json_schema_extra=OPERATIONAL)
    api_key: Stripped | None = Field(
        None, repr=False, description="Sent as bearer token; null: none is sent.", json_schema_extra=SECRET
    )
    model: str = Field(description="Name under which the engine serves the model.")
    default_headers: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Headers of every request.", json_schema_extra=OPERATIONAL
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Arguments of the chat template, such as `enable_thinking`; null: none are sent."
    )
    replace_developer_role_with_system: bool = Field(
        False, description="Sends developer messages as system messages, for templates that know no developer."
    )
    reasoning_field: ReasoningField | None = Field(
        None, description="Message field that carries the model's earlier reasoning back; null: it is not sent back."
    )


class VLLMModel(ProviderModel[VLLMModelConfig]):
    """Responses over the Chat Completions API of an engine."""

    config_type = VLLMModelConfig

    @property
    def model(self) -> str:
        """The served name."""
        return self.config.model

    def endpoint(self) -> Endpoint:
        """The engine's Chat Completions."""
        headers = {**bearer(self.config.api_key), **self.config.default_headers}
        return Endpoint(f"{self.config.base_url}/chat/completions", headers)

    def encode(self, request: ResponsesRequest) -> dict[str, Any]:
        """The request as a chat."""
        dialect = ChatDialect(
            reasoning_field=self.config.reasoning_field,
            replace_developer_role_with_system=self.config.replace_developer_role_with_system,
        )
        template = self.config.chat_template_kwargs
        return to_chat(request, dialect) | ({} if template is None else {"chat_template_kwargs": template})

    def decode(self, answer: dict[str, Any]) -> ResponsesResponse:
        """The chat completion as a response."""
        return from_chat(answer, self.model)
