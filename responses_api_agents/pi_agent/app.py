"""Pi as an agent: Chat Completions, streamed; tools over MCP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from gym.harness.adapter import Evidence, Invocation, Reading, ToolServer, Turn
from gym.harness.agent import HarnessAgent
from gym.harness.config import HarnessAgentConfig, Version
from gym.harness.own import owned
from gym.harness.recipes import Npm, Recipe
from gym.servers.capabilities import Capability
from responses_api_agents.pi_agent.session import read

NOISE = ('{"type":"message_update"', '{"type":"message_start"', '{"type":"tool_execution_update"', '{"type":"turn_end"')
"""Events that say again, or in part, what `message_end` says."""

UNUSED = ("node_modules/node-linux-*", *(f"node_modules/**/*.{name}" for name in ("map", "d.ts", "d.mts", "d.cts")))
"""More than half of all files: what no program reads, and Node's headers."""


OWN_ARGUMENTS = owned(
    "--print -p --mode --provider --models --api-key --offline --no-mcp --no-extensions -ne --list-models --export "
    "--no-session --session --session-id --session-dir --continue -c --resume -r --fork --tui-mode -v",
    model_name="--model",
    thinking="--thinking",
    enable_tools="--no-tools -nt --no-builtin-tools -nbt",
    context_files="--no-context-files -nc",
    system_prompt="--system-prompt --append-system-prompt",
)


class PiAgentConfig(HarnessAgentConfig):
    """Settings of Pi."""

    own_arguments = OWN_ARGUMENTS

    pi_version: Version = Field("1.6.0", description="Version of the npm package @earendil-works/pi-coding-agent.")
    node_version: Version = Field("22.23.3", description="Version of its Node; Pi 1.6 needs 22.19 or newer.")
    system_prompt_mode: Literal["append", "replace"] = Field(
        "append", description="Add the system prompts to Pi's own, or put them in its place."
    )
    enable_tools: bool = Field(True, description="Offer Pi's own tools; those of MCP servers stay without them.")
    thinking: Literal["off", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="Thinking level that Pi asks the model for; null: none is asked for."
    )
    context_window: int = Field(262_144, gt=0, description="Tokens that the model can read; Pi compacts before.")
    max_output_tokens: int = Field(32_000, gt=0, description="Bound of one model call, unless the request has its own.")
    auto_compaction: bool = Field(True, description="Summarize the conversation when it nears the context window.")
    context_files: bool = Field(True, description="Read the AGENTS.md and CLAUDE.md files of the task.")
    stream_idle_timeout_seconds: float = Field(600, gt=0, description="Ends a model call that is silent for so long.")


class PiAgent(HarnessAgent[PiAgentConfig]):
    """Runs the Pi coding agent."""

    config_type = PiAgentConfig
    harness = "pi"
    stdio_tools = True
    skills = True
    tries_optional_tools = True
    settings = frozenset({"max_output_tokens"})

    @classmethod
    def asks_of_model(cls, config: PiAgentConfig) -> dict[Capability, str]:
        """Tools, unless its own are left out; reasoning where a level of thinking is set."""
        asked = super().asks_of_model(config) if config.enable_tools else {}
        thinks = config.thinking not in (None, "off")
        return {**asked, "reasoning": "has a level of thinking"} if thinks else asked

    @classmethod
    def runtime(cls, config: PiAgentConfig) -> Recipe:
        """Node, and the package with what it depends on."""
        package = f"@earendil-works/pi-coding-agent@{config.pi_version}"
        return Recipe(
            name="pi",
            version=config.pi_version,
            parts=(Npm((package, f"node-linux-{{arch}}@{config.node_version}")),),
            command=("bin/node", "node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js"),
            leave_out=UNUSED,
        )

    def tool_server_name(self, name: str) -> str:
        """As Pi writes it in the names of tools: `mcp__<server>__<tool>`."""
        return re.sub(r"[^A-Za-z0-9_]", "_", name)

    def invocation(self, turn: Turn) -> Invocation:
        """`pi --print` in JSON mode. As standard input and as a file, the prompts stay literal."""
        options = ["--print", "--mode", "json", "--no-session", "--offline", "--provider", "gym"]
        options += ["--model", turn.model_name]
        options += ["--thinking", self.config.thinking] if self.config.thinking else []
        options += [] if self.config.enable_tools else ["--no-builtin-tools"]
        options += [] if self.config.context_files else ["--no-context-files"]
        files = self._files(turn)
        if turn.system_prompt:
            files["agent/system.md"] = turn.system_prompt
            flag = "--system-prompt" if self.config.system_prompt_mode == "replace" else "--append-system-prompt"
            options += [flag, turn.path("agent", "system.md")]
        argv = [*turn.command, *options, *self.config.extra_args]
        return Invocation(argv, env=_environment(turn), files=files, stdin=turn.prompt.encode(), noise=NOISE)

    def readiness(self, turn: Turn) -> Invocation:
        """`pi mcp list` connects to each server. In a run, Pi goes on silently without one that fails."""
        return Invocation(argv=[*turn.command, "mcp", "list"], env=_environment(turn), files=self._files(turn))

    def unready(self, turn: Turn, evidence: Evidence) -> str | None:
        """The first server that is required and not connected."""
        told = next(self._unconnected(turn, evidence, required=True), None)
        return f"{told} ({evidence.stderr.strip()[-200:]})" if told and evidence.stderr.strip() else told

    def left_out(self, turn: Turn, evidence: Evidence) -> list[str]:
        """The others that are not connected."""
        return list(self._unconnected(turn, evidence, required=False))

    def _unconnected(self, turn: Turn, evidence: Evidence, *, required: bool) -> Iterator[str]:
        lines = evidence.stdout.splitlines()
        for name in (self.tool_server_name(tool.name) for tool in turn.tools if tool.required == required):
            told = next((line for line in lines if line.startswith(f"{name}: ")), f"{name}: no word of it")
            if not told.startswith(f"{name}: connected"):
                yield told

    def read(self, evidence: Evidence) -> Reading:
        """The messages among its events."""
        return read(evidence)

    def _files(self, turn: Turn) -> dict[str, str]:
        provider = {
            "baseUrl": f"{turn.model_url}/v1",
            "api": "openai-completions",
            "apiKey": _literal_key(turn.model_key),
        }
        model = {
            "id": turn.model_name,
            "contextWindow": self.config.context_window,
            "maxTokens": turn.max_output_tokens or self.config.max_output_tokens,
            "reasoning": self.config.thinking not in (None, "off"),
        }
        settings = {
            "retry": {"enabled": self.config.model_retries > 0, "maxRetries": self.config.model_retries},
            "httpIdleTimeoutMs": int(self.config.stream_idle_timeout_seconds * 1000),
            "compaction": {"enabled": self.config.auto_compaction},
            "enableInstallTelemetry": False,
        }
        servers = {
            self.tool_server_name(tool.name): {
                **_connection(tool),
                "timeout": int(turn.timeout_seconds) + 1,
                # Otherwise the tools are hidden behind one that runs code.
                "exposure": "direct",
            }
            for tool in turn.tools
        }
        return {
            "agent/models.json": json.dumps({"providers": {"gym": {**provider, "models": [model]}}}),
            "agent/settings.json": json.dumps(settings),
            "agent/mcp.json": json.dumps({"mcpServers": servers}),
        }


def _environment(turn: Turn) -> dict[str, str]:
    return {
        "PI_CODING_AGENT_DIR": turn.path("agent"),
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
        "PI_SKIP_VERSION_CHECK": "1",
    }


def _connection(tool: ToolServer) -> dict[str, Any]:
    if tool.command:
        # Without the variables, it would have a few of Pi's own.
        env = {name: _literal_key(value) for name, value in tool.env.items()}
        return {"type": "stdio", "command": tool.command[0], "args": list(tool.command[1:]), "env": env}
    headers = {name: _literal_key(value) for name, value in tool.headers.items()}
    return {"type": "http", "url": tool.url, "headers": headers}


def _literal_key(value: str) -> str:
    """Pi replaces `$NAME` in keys and headers, and runs those that begin with `!`."""
    escaped = value.replace("$", "$$")
    return f"$!{escaped[1:]}" if escaped.startswith("!") else escaped
