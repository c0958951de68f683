"""The settings of OpenCode, and the configuration file that is made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from gym.composition.inherit import merge
from gym.harness.adapter import ToolServer, Turn
from gym.harness.config import HarnessAgentConfig, Version
from gym.harness.own import no_mappings, owned, refused_settings
from gym.servers.contract import INVOCATION_HEADER

ALLOW = {
    "*": "allow",
    "edit": {"**": "allow"},
    "bash": {"*": "allow"},
    "external_directory": {"*": "allow"},
}
"""The rules that those of `opencode_config.permission` are merged into; the last one that fits counts."""

BRACE = "\ue000"
"""Stands for a brace that is to be escaped; a character that means nothing."""

OWN_ARGUMENTS = owned(
    "--attach --command --continue -c --dir --fork --format --interactive -i --pure --session -s --title --auto --port "
    "--thinking --share -v",
    model_name="--model -m",
    reasoning_effort="--variant",
)
OWN_SETTINGS = {
    **dict.fromkeys(("enabled_providers", "disabled_providers"), ""),
    "model": "model_name",
    "mcp": "mcp_servers",
}
MAPPINGS = ("provider", "compaction", "skills", "experimental", "agent")


class OpenCodeAgentConfig(HarnessAgentConfig):
    """Settings of OpenCode."""

    own_arguments = OWN_ARGUMENTS
    free = ("extra_args", "opencode_config")

    opencode_version: Version = Field("1.18.33", description="Version of the npm package opencode-ai.")
    ripgrep_version: Version = Field(
        "1.18.0", description="Version of the npm package @vscode/ripgrep, with which OpenCode searches."
    )
    system_prompt_mode: Literal["append", "replace"] = Field(
        "append", description="Add the system prompts to OpenCode's own, or put them in its place, in its build agent."
    )
    opencode_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Further settings of opencode.json, over those that Gym writes; `permission` withholds tools.",
    )
    reasoning_effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="Reasoning effort that OpenCode asks for; null: none is asked for."
    )
    context_window: int = Field(262_144, gt=0, description="Tokens that the model can read; OpenCode compacts before.")
    max_output_tokens: int = Field(32_000, gt=0, description="Bound of one model call, unless the request has its own.")
    auto_compaction: bool = Field(True, description="Summarize the conversation when it nears the context window.")
    context_files: bool = Field(True, description="Read the AGENTS.md of the work directory.")
    stream_idle_timeout_seconds: float = Field(600, gt=0, description="Ends a model call that is silent for so long.")

    def problems(self) -> Iterator[str]:
        """Also settings that cannot work, or are Gym's own."""
        yield from super().problems()
        yield from refused_settings("opencode_config", self.opencode_config, OWN_SETTINGS)
        yield from no_mappings("opencode_config", self.opencode_config, MAPPINGS)
        yield from _problems(self.opencode_config)
        names = (argument.partition("=")[0] for argument in self.extra_args)
        if self.system_prompt_mode == "replace" and "--agent" in names:
            yield "extra_args: `--agent` and system_prompt_mode `replace`, which selects the build agent; drop one"


def _problems(given: Mapping[str, Any]) -> Iterator[str]:
    agents = given.get("agent")
    blocks = [given, *(agents.values() if isinstance(agents, dict) else ())]
    blocks = [block for block in blocks if isinstance(block, dict)]
    if any("tools" in block for block in blocks):
        yield "opencode_config: OpenCode puts a `tools` map before the rules that allow, so it withholds nothing; " + (
            "use `permission`, as in `permission: {task: deny}`"
        )
    if any("ask" in _actions(block.get("permission")) for block in blocks):
        yield "opencode_config.permission: nobody is there to be asked; use `allow` or `deny` instead of `ask`"


def _actions(rules: Any) -> Iterator[Any]:
    if isinstance(rules, dict):
        for rule in rules.values():
            yield from _actions(rule)
    else:
        yield rules


def tool_server_name(name: str) -> str:
    """As OpenCode writes it in the names of tools: `<server>_<tool>`."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def opencode_json(config: OpenCodeAgentConfig, turn: Turn) -> str:
    """The configuration file of one activation."""
    options = {
        "baseURL": f"{turn.model_url}/v1",
        "apiKey": turn.model_key,
        "headers": {INVOCATION_HEADER: turn.invocation_id},
        # The plugin has an eye on the clock.
        **{name: False for name in ("timeout", "headerTimeout", "chunkTimeout")},
    }
    written = turn.max_output_tokens or config.max_output_tokens
    model = {
        "name": turn.model_name,
        "limit": {"context": config.context_window, "output": written},
        "reasoning": True,
        "interleaved": {"field": "reasoning_content"},
        "options": {"reasoningEffort": config.reasoning_effort} if config.reasoning_effort else {},
    }
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {turn.model_name: model}}
    read = [f"{turn.workdir}/AGENTS.md"] if config.context_files else []
    read += [turn.path("system.md")] if config.system_prompt_mode == "append" else []
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "compaction": {"auto": config.auto_compaction},
        "enabled_providers": ["gym"],
        "provider": {"gym": provider},
        "permission": ALLOW,
        "instructions": read,
        "mcp": {tool_server_name(tool.name): _server(tool) for tool in turn.tools},
        "skills": {"paths": ["~/.agents/skills"]},
        "experimental": {"mcp_timeout": int(turn.timeout_seconds * 1000) + 1000},
        **({"default_agent": "build"} if config.system_prompt_mode == "replace" else {}),
    }
    merged = merge(settings, config.opencode_config)
    merged["plugin"] = [*(config.opencode_config.get("plugin") or []), _plugin(config, turn)]
    return json.dumps(merged).replace(json.dumps(BRACE)[1:-1], r"\u007b")


def _server(tool: ToolServer) -> dict[str, Any]:
    if tool.command:
        return {"type": "local", "command": [_literal(word) for word in tool.command], "enabled": True}
    headers = {name: _literal(value) for name, value in tool.headers.items()}
    return {"type": "remote", "url": _literal(tool.url), "headers": headers, "oauth": False, "enabled": True}


def _literal(text: str) -> str:
    """OpenCode replaces `{env:..}` and `{file:..}` in the text of the file, where it does not know an escaped brace."""
    return text.replace("{", BRACE)


def _plugin(config: OpenCodeAgentConfig, turn: Turn) -> list[Any]:
    options = {
        "retries": config.model_retries,
        "silence_ms": int(config.stream_idle_timeout_seconds * 1000),
        "required": [tool_server_name(tool.name) for tool in turn.tools if tool.required],
        "optional": [tool_server_name(tool.name) for tool in turn.tools if not tool.required],
        "search": str(turn.command[0]).removesuffix("/bin/opencode") + "/tools",
    }
    return [f"file://{turn.path('watch.js')}", options]
