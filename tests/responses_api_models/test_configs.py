"""The YAML files of the model servers and of `model-provider=...`: they fit the schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from gym.responses_api_models.anthropic_model.app import AnthropicModel
from gym.responses_api_models.embedded_model.app import EmbeddedModel
from gym.responses_api_models.local_llm_model.app import LocalLLMModel
from gym.responses_api_models.openai_model.app import OpenAIModel
from gym.responses_api_models.vllm_model.app import VLLMModel
from gym.servers.model import ModelServer

ROOT = Path(__file__).parents[2]
PRESETS: dict[str, tuple[type[ModelServer[Any]], str | None]] = {
    "anthropic": (AnthropicModel, "https://api.anthropic.com"),
    "embedded": (EmbeddedModel, None),
    "llama_cpp": (VLLMModel, "http://127.0.0.1:8080/v1"),
    "local_llm": (LocalLLMModel, None),
    "ollama": (VLLMModel, "http://127.0.0.1:11434/v1"),
    "openai": (OpenAIModel, "https://api.openai.com/v1"),
    "openrouter": (OpenAIModel, "https://openrouter.ai/api/v1"),
    "vllm": (VLLMModel, "http://127.0.0.1:8000/v1"),
}


def composed(path: Path) -> DictConfig:
    preset = OmegaConf.load(path)
    assert isinstance(preset, DictConfig)
    imported = [OmegaConf.load(ROOT / "gym" / file) for file in preset.pop("config_paths")]
    merged = OmegaConf.merge(*imported, preset)
    assert isinstance(merged, DictConfig)
    return merged


def test_every_preset_is_listed() -> None:
    without_defaults = {"replay"}  # it needs a run to play; tests/e2e/test_record_and_replay.py
    assert {path.stem for path in (ROOT / "conf/model-provider").glob("*.yaml")} == {*PRESETS, *without_defaults}


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLICY_BASE_URL", raising=False)
    monkeypatch.setenv("POLICY_API_KEY", "hush")
    monkeypatch.setenv("POLICY_MODEL_NAME", "name")
    path = ROOT / "conf/model-provider" / f"{name}.yaml"
    assert path.read_text(encoding="utf-8").startswith("# @package _global_\n")
    server, base_url = PRESETS[name]
    config = composed(path)
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    [(implementation, settings)] = resolved["policy_model"]["responses_api_models"].items()
    assert settings.pop("_target_") == f"{server.__module__}.{server.__qualname__}"
    assert server.__module__.split(".")[-2] == implementation
    checked = server.config_type.model_validate(settings)
    assert resolved["policy_base_url"] == base_url
    assert "hush" not in repr(checked)
