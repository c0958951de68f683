"""Codex CLI as an agent: the Responses API, streamed; tools over MCP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from gym.composition.inherit import merge
from gym.harness.adapter import Evidence, Invocation, Reading, ToolServer, Turn
from gym.harness.agent import HarnessAgent
from gym.harness.config import HarnessAgentConfig, Version
from gym.harness.own import no_mappings, owned, refused_settings
from gym.harness.recipes import Npm, Recipe
from gym.servers.capabilities import Capability
from responses_api_agents.codex_agent.session import read

PROVIDER = "gym"
KEY = "GYM_API_KEY"
OWN_ARGUMENTS = owned(
    "--json --skip-git-repo-check -C --cd --worktree --oss --local-provider --remote --ephemeral --ignore-user-config "
    "--approve-for-me --dangerously-bypass-approvals-and-sandbox -V",
    model_name="-m --model",
    extra_config="-c --config --enable --disable -p --profile",
    sandbox_mode="-s --sandbox",
)
OWN_SETTINGS = {
    **dict.fromkeys(("model_provider", "model_providers", "profile", "profiles", "approval_policy"), ""),
    **dict.fromkeys(("developer_instructions", "model_instructions_file"), "system_prompt"),
    "mcp_servers": "mcp_servers",
    "model": "model_name",
    "model_reasoning_effort": "reasoning_effort",
    "sandbox_mode": "sandbox_mode",
}
PROGRAMS = ("/bin/bash", "/usr/bin/bash", "bash", "/bin/sh", "/usr/bin/sh", "sh", "rm", "sudo", "env")
ALLOWED = f'prefix_rule(pattern=[{json.dumps(PROGRAMS)}], decision="allow")\n'
"""A rule of Codex. Without it, Codex refuses commands such as `rm -f`, as it can ask nobody."""


class CodexAgentConfig(HarnessAgentConfig):
    """Settings of Codex."""

    own_arguments = OWN_ARGUMENTS
    free = ("extra_args", "extra_config")

    codex_version: Version = Field("0.171.0", description="Version of the npm package @openai/codex.")
    system_prompt_mode: Literal["append", "replace"] = Field(
        "append", description="Add the system prompts to Codex's own, or put them in its place."
    )
    reasoning_effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="Reasoning effort that Codex asks for; null: its default for the model."
    )
    sandbox_mode: Literal["danger-full-access", "workspace-write", "read-only"] = Field(
        "danger-full-access", description="Codex's own sandbox, inside of ours."
    )
    context_files: bool = Field(True, description="Read the AGENTS.md files of the task.")
    stream_idle_timeout_seconds: float = Field(
        600, gt=0, description="Ends a model call that has begun to answer and then is silent for so long."
    )
    extra_config: dict[str, Any] = Field(
        default_factory=dict, description="Further settings of config.toml, merged into those that Gym writes."
    )

    def problems(self) -> Iterator[str]:
        """Also settings of Gym's own."""
        yield from super().problems()
        yield from refused_settings("extra_config", self.extra_config, OWN_SETTINGS)
        yield from no_mappings("extra_config", self.extra_config, ("features", "agents", "analytics", "history"))


class CodexAgent(HarnessAgent[CodexAgentConfig]):
    """Runs OpenAI's Codex CLI."""

    config_type = CodexAgentConfig
    harness = "codex"
    stdio_tools = True
    skills = True

    @classmethod
    def asks_of_model(cls, config: CodexAgentConfig) -> dict[Capability, str]:
        """Tools, and reasoning where an effort is set."""
        effort: dict[Capability, str] = {"reasoning": "has a reasoning_effort"} if config.reasoning_effort else {}
        return super().asks_of_model(config) | effort

    @classmethod
    def runtime(cls, config: CodexAgentConfig) -> Recipe:
        """One native program, and the search tool that it brings."""
        vendor = "node_modules/@openai/codex/vendor/*"
        return Recipe(
            name="codex",
            version=config.codex_version,
            parts=(Npm((f"@openai/codex@{config.codex_version}-linux-{{arch}}",)),),
            command=("bin/codex",),
            links=(("bin/codex", f"{vendor}/bin/codex"),),
            leave_out=(f"{vendor}/codex-resources/voice",),
            needs_glibc=False,
        )

    def tool_server_name(self, name: str) -> str:
        """Codex allows letters, digits, `-` and `_` in the name of a server, and makes one `_` of the others."""
        return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)

    def invocation(self, turn: Turn) -> Invocation:
        """`codex exec` with a configuration folder of the session's own; the prompt is its standard input."""
        files = {"codex/config.toml": toml(merge(self._settings(turn), self.config.extra_config))}
        if self.config.system_prompt_mode == "replace" and turn.system_prompt:
            files["codex/instructions.md"] = turn.system_prompt
        if self.config.execution == "sandbox" and self.config.sandbox_mode == "danger-full-access":
            files["codex/rules/gym.rules"] = ALLOWED
        options = ("--json", "--skip-git-repo-check", "-C", turn.workdir, *self.config.extra_args)
        return Invocation(
            argv=[*turn.command, "exec", *options, "-"],
            stdin=turn.prompt.encode(),
            env={"CODEX_HOME": turn.path("codex"), KEY: turn.model_key},
            files=files,
            collect="codex/sessions",
        )

    def read(self, evidence: Evidence) -> Reading:
        """Its session file, else its events."""
        return read(evidence)

    def _settings(self, turn: Turn) -> dict[str, Any]:
        retries = {"request_max_retries": self.config.model_retries, "stream_max_retries": self.config.model_retries}
        idle = int(self.config.stream_idle_timeout_seconds * 1000)
        settings: dict[str, Any] = {
            "model": turn.model_name,
            "model_provider": PROVIDER,
            "approval_policy": "never",
            "sandbox_mode": self.config.sandbox_mode,
            "check_for_update_on_startup": False,
            "web_search": "disabled",
            "analytics": {"enabled": False},
            "history": {"persistence": "none"},
            # Without the first, a server that refuses connections is waited for without end.
            "features": {"unbounded_connection_retries": False, "plugins": False, "apps": False, "goals": False},
            "agents": {"enabled": False},
            "model_providers": {
                PROVIDER: {
                    "name": PROVIDER,
                    "base_url": f"{turn.model_url}/v1",
                    "env_key": KEY,
                    "wire_api": "responses",
                    "stream_idle_timeout_ms": idle,
                    **retries,
                }
            },
            "mcp_servers": {
                self.tool_server_name(tool.name): {
                    **_connection(tool),
                    "required": tool.required,
                    "startup_timeout_sec": 60,
                    "tool_timeout_sec": int(turn.timeout_seconds) + 1,
                }
                for tool in turn.tools
            },
        }
        if not self.config.context_files:
            settings["project_doc_max_bytes"] = 0
        if self.config.reasoning_effort is not None:
            settings["model_reasoning_effort"] = self.config.reasoning_effort
        if turn.system_prompt and self.config.system_prompt_mode == "append":
            settings["developer_instructions"] = turn.system_prompt
        elif turn.system_prompt:
            settings["model_instructions_file"] = turn.path("codex", "instructions.md")
        return settings


def _connection(tool: ToolServer) -> dict[str, Any]:
    if tool.command:
        # Without them, it would have a few of Codex's own.
        return {"command": tool.command[0], "args": list(tool.command[1:]), "env": dict(tool.env)}
    return {"url": tool.url, "http_headers": dict(tool.headers)}


def toml(settings: dict[str, Any]) -> str:
    """Settings as TOML: one line a key, tables inline."""
    return "".join(f"{_quoted(name)} = {_value(value)}\n" for name, value in settings.items() if value is not None)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            inner = (f"{_quoted(str(key))} = {_value(item)}" for key, item in value.items() if item is not None)
            return f"{{ {', '.join(inner)} }}"
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case int() | float():
            return str(value)
    return _quoted(str(value))


def _quoted(text: str) -> str:
    """JSON's escapes are TOML's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
