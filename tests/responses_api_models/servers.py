"""Model servers over a loopback provider, hosted as a run hosts them and reached over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gym.launch.in_process import Instance, launch
from gym.responses_api_models.anthropic_model.app import AnthropicModel
from gym.responses_api_models.openai_model.app import OpenAIModel
from gym.responses_api_models.provider_model import ProviderModel
from gym.responses_api_models.vllm_model.app import VLLMModel
from gym.sandbox.interface import SandboxProvider
from gym.servers.keys import Identity
from gym.servers.model import ModelServer

KEY = "sk-key-of-the-provider"
UPSTREAMS: dict[str, tuple[type[ProviderModel[Any]], dict[str, Any]]] = {
    "chat": (
        VLLMModel,
        {"base_url": "{url}/v1", "api_key": KEY, "model": "own-name", "reasoning_field": "reasoning_content"},
    ),
    "responses": (
        OpenAIModel,
        {"openai_base_url": "{url}/v1", "openai_api_key": KEY, "openai_model": "own-name", "api": "responses"},
    ),
    "messages": (
        AnthropicModel,
        {"anthropic_base_url": "{url}", "anthropic_api_key": KEY, "anthropic_model": "own-name"},
    ),
}


@dataclass(frozen=True)
class Served:
    """A running model server: its address, a harness's session key for it, and the run's own token."""

    base_url: str
    key: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}", "content-type": "application/json"}


def no_sandboxes(name: str) -> SandboxProvider:
    raise AssertionError(name)


def instance(kind: type[ModelServer[Any]], **settings: Any) -> Instance:
    return Instance("policy_model", "responses_api_models", kind, kind.config_type.model_validate(settings))


def instance_over(upstream: str, url: str, **more: Any) -> Instance:
    """A model server over a provider that speaks this API, not started."""
    kind, settings = UPSTREAMS[upstream]
    filled = {name: value.format(url=url) for name, value in settings.items()}
    return instance(kind, **{**filled, "retry_backoff_seconds": 0.001, **more})


@asynccontextmanager
async def started(made: Instance) -> AsyncIterator[Served]:
    """A model server behind HTTP."""
    async with launch([made], sandboxes=no_sandboxes) as launched:
        key = launched.keys.issue(Identity("rollout", "session"), ["policy_model"])
        yield Served(launched.directory.url("policy_model"), key, launched.token)


@asynccontextmanager
async def served(kind: type[ModelServer[Any]], **settings: Any) -> AsyncIterator[Served]:
    """A model server of any kind behind HTTP."""
    async with started(instance(kind, **settings)) as server:
        yield server


@asynccontextmanager
async def over(upstream: str, url: str, **more: Any) -> AsyncIterator[Served]:
    """A model server over a provider that speaks this API."""
    async with started(instance_over(upstream, url, **more)) as server:
        yield server
