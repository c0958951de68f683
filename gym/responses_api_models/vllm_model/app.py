"""A policy behind an OpenAI-compatible engine: vLLM, SGLang, llama.cpp, Ollama."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from gym.apis.upstreams.api import UpstreamApi
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.chat_request import ChatDialect, ReasoningField
from gym.apis.upstreams.responses import ResponsesUpstream
from gym.apis.upstreams.token_ids import REQUEST_FIELDS as TOKEN_ID_FIELDS
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
from gym.servers.model import Body


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
    api: Literal["chat", "responses"] = Field(
        "chat", description="What the engine is asked: `chat`, its Chat Completions, or `responses`, its Responses API."
    )
    replace_developer_role_with_system: bool = Field(
        True, description="Sends developer messages as system messages: few chat templates know a developer."
    )
    reasoning_field: ReasoningField | None = Field(
        None, description="Message field that carries the model's earlier reasoning back; null: it is not sent back."
    )
    return_token_ids: bool = Field(
        False,
        description="Asks vLLM for token ids and log probabilities, and keeps them on the last item of each response.",
    )

    @property
    def served_model(self) -> str:
        """The provider's name of the model."""
        return self.model

    @model_validator(mode="after")
    def _token_ids_need_chat(self) -> Self:
        if self.return_token_ids and self.api != "chat":
            raise ValueError("return_token_ids needs `api: chat`")
        return self


class VLLMModel(ProviderModel[VLLMModelConfig]):
    """A policy that speaks Chat Completions, or Responses, at an engine."""

    config_type = VLLMModelConfig

    @property
    def model(self) -> str:
        """The served name."""
        return self.config.model

    def endpoint(self) -> Endpoint:
        """The engine's Chat Completions, or Responses."""
        headers = {**bearer(self.config.api_key), **self.config.default_headers}
        return Endpoint(f"{self.config.base_url}{PATHS[self.config.api]}", headers)

    def upstream_api(self) -> UpstreamApi:
        """The API of the two that is set."""
        config = self.config
        if config.api == "responses":
            return ResponsesUpstream(config.model, open_reasoning=config.reasoning_field is not None)
        dialect = ChatDialect(
            reasoning_field=config.reasoning_field,
            replace_developer_role_with_system=config.replace_developer_role_with_system,
        )
        return ChatUpstream(config.model, dialect, keep_token_ids=config.return_token_ids)

    def further_fields(self) -> Body:
        """What the chat template gets, and the wish for token ids."""
        template = self.config.chat_template_kwargs
        fields = {} if template is None else {"chat_template_kwargs": template}
        return fields | (TOKEN_ID_FIELDS if self.config.return_token_ids else {})
