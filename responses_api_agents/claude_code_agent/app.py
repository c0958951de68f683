"""Claude Code as an agent: Anthropic Messages, streamed; tools over MCP."""

from __future__ import annotations

import json
import re
from typing import Any

from gym.failures import EpisodeFailure
from gym.harness.adapter import Evidence, Invocation, Reading, ToolServer, Turn
from gym.harness.agent import HarnessAgent
from gym.harness.recipes import Npm, Recipe
from gym.servers.capabilities import Capability
from responses_api_agents.claude_code_agent.session import ALIASES, NOISE, offered_tools, read
from responses_api_agents.claude_code_agent.settings import ClaudeCodeAgentConfig

# $1 is the folder of its configuration, where it looks for skills; the rest is the command.
WITH_SKILLS = """
[ -d "$HOME/.agents/skills" ] && mkdir -p "$1" && ln -sfn "$HOME/.agents/skills" "$1/skills"
shift && exec "$@"
"""

QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    # Without it, root may not switch the permission prompts off.
    "IS_SANDBOX": "1",
}


class ClaudeCodeAgent(HarnessAgent[ClaudeCodeAgentConfig]):
    """Runs Anthropic's Claude Code."""

    config_type = ClaudeCodeAgentConfig
    harness = "claude_code"
    settings = frozenset({"max_output_tokens"})
    stdio_tools = True
    skills = True

    @classmethod
    def asks_of_model(cls, config: ClaudeCodeAgentConfig) -> dict[Capability, str]:
        """Tools, unless its own are left out; reasoning where an effort is set."""
        asked = {} if config.tools == [] else super().asks_of_model(config)
        return {**asked, "reasoning": "has an effort"} if config.effort else asked

    @classmethod
    def runtime(cls, config: ClaudeCodeAgentConfig) -> Recipe:
        """One native program. The package `claude-code` itself only picks it by platform."""
        package = "@anthropic-ai/claude-code-linux-{arch}"
        return Recipe(
            name="claude_code",
            version=config.claude_code_version,
            parts=(Npm((f"{package}@{config.claude_code_version}",)),),
            command=("bin/claude",),
            links=(("bin/claude", "node_modules/@anthropic-ai/claude-code-linux-*/claude"),),
        )

    def tool_server_name(self, name: str) -> str:
        """As it stands in the names of tools: `mcp__<server>__<tool>`."""
        return re.sub(r"[^A-Za-z0-9_]", "_", name)

    def invocation(self, turn: Turn) -> Invocation:
        """`claude --print` with a configuration folder of the session's own; the prompt is its standard input."""
        files = {
            "settings.json": json.dumps(self.config.extra_settings),
            "mcp.json": json.dumps({"mcpServers": self._servers(turn)}),
        }
        if turn.system_prompt:
            files["system.md"] = turn.system_prompt
        # What begins with `/` would be a command of Claude Code.
        prompt = f" {turn.prompt}" if turn.prompt.startswith("/") else turn.prompt
        argv = ["/bin/sh", "-c", WITH_SKILLS, "sh", turn.path("claude")]
        argv += [*turn.command, *self._options(turn), *self.config.extra_args]
        return Invocation(argv, env=self._environment(turn), files=files, stdin=prompt.encode(), noise=NOISE)

    def readiness(self, turn: Turn) -> Invocation:
        """`claude mcp list` connects to each server. In a run, Claude Code goes on without one that fails."""
        return Invocation(
            argv=[*turn.command, "mcp", "list"],
            env={**self._environment(turn), "CLAUDE_CONFIG_DIR": turn.path("ready")},
            files={"ready/.claude.json": json.dumps({"mcpServers": self._servers(turn)})},
        )

    def unready(self, turn: Turn, evidence: Evidence) -> str | None:
        """The servers that are required and not connected."""
        lines = evidence.stdout.splitlines()
        for tool in turn.tools:
            name = self.tool_server_name(tool.name)
            told = next((line for line in lines if line.startswith(f"{name}: ")), f"{name}: no word of it")
            if tool.required and not told.endswith(" Connected"):
                return f"{told} ({evidence.stderr.strip()[-200:]})" if evidence.stderr.strip() else told
        return None

    def read(self, evidence: Evidence) -> Reading:
        """Its events. A tool of its own that it does not know, it leaves out without a word."""
        reading = read(evidence)
        offered = offered_tools(evidence)
        unknown = [name for name in self.config.tools or () if ALIASES.get(name, name) not in offered]
        if offered and unknown:
            own = ", ".join(name for name in offered if not name.startswith("mcp__")) or "none"
            told = f"`tools`: Claude Code does not offer {', '.join(unknown)}; of its own it has: {own}"
            reading.stop, reading.error, reading.error_kind = None, told, "configuration"
        return reading

    def _options(self, turn: Turn) -> list[str]:
        config = self.config
        options = ["--print", "--verbose", "--output-format", "stream-json", "--include-partial-messages"]
        options += ["--dangerously-skip-permissions", "--permission-prompts", "none", "--no-session-persistence"]
        options += ["--settings", turn.path("settings.json"), "--mcp-config", turn.path("mcp.json")]
        options += ["--strict-mcp-config"]
        options += ["--bare"] if config.bare else []
        options += [] if config.context_files else ["--setting-sources", "user"]
        options += [] if config.tools is None else ["--tools", ",".join(config.tools)]
        options += ["--disallowed-tools", ",".join(config.disallowed_tools)] if config.disallowed_tools else []
        options += ["--effort", config.effort] if config.effort else []
        options += ["--max-turns", str(config.max_turns)] if config.max_turns else []
        if turn.system_prompt:
            replaced = config.system_prompt_mode == "replace"
            flag = "--system-prompt-file" if replaced else "--append-system-prompt-file"
            options += [flag, turn.path("system.md")]
        return options

    def _environment(self, turn: Turn) -> dict[str, str]:
        idle = str(int(self.config.stream_idle_timeout_seconds * 1000))
        env = {
            **QUIET,
            "ANTHROPIC_BASE_URL": turn.model_url,
            "ANTHROPIC_API_KEY": turn.model_key,
            "ANTHROPIC_MODEL": turn.model_name,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": turn.model_name,
            "CLAUDE_CONFIG_DIR": turn.path("claude"),
            "CLAUDE_CODE_TMPDIR": turn.path("tmp"),
            # What only Anthropic's own servers know.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            "ENABLE_TOOL_SEARCH": "false",
            # `@name` in a prompt would become the text of a file.
            "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(turn.max_output_tokens or self.config.max_output_tokens),
            "CLAUDE_CODE_MAX_RETRIES": str(self.config.model_retries),
            "API_TIMEOUT_MS": idle,
            "CLAUDE_ENABLE_BYTE_WATCHDOG": "1",
            "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": idle,
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": idle,
            "MCP_TIMEOUT": "60000",
            "MCP_TOOL_TIMEOUT": str(int(turn.timeout_seconds * 1000) + 1000),
        }
        if self.config.model_retries == 0:  # one that is not streamed would be a retry
            env["CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK"] = "1"
        if self.config.context_window is not None:
            env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(self.config.context_window)
        if not self.config.auto_compaction:
            env["DISABLE_COMPACT"] = "1"
        return env

    def _servers(self, turn: Turn) -> dict[str, Any]:
        servers = {}
        for tool in turn.tools:
            _refuse_replaced(tool)
            web = {"type": "http", "url": tool.url, "headers": dict(tool.headers)}
            started = {"type": "stdio", "command": "".join(tool.command[:1]), "args": list(tool.command[1:])}
            servers[self.tool_server_name(tool.name)] = started if tool.command else web
        return servers


def _refuse_replaced(tool: ToolServer) -> None:
    """Claude Code puts variables in the place of `${NAME}`, and knows no way to write that itself."""
    if any(re.search(r"\$\{[^}]+\}", text) for text in (tool.url, *tool.headers.values(), *tool.command)):
        what = f"Claude Code would replace what stands as `${{...}}` in the settings of the MCP server {tool.name}"
        raise EpisodeFailure("configuration", what, stage="seed")
