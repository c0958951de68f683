"""The settings of Claude Code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from gym.harness.config import HarnessAgentConfig, Version
from gym.harness.own import no_mappings, owned, refused_settings

USELESS = (
    *("WebFetch", "WebSearch", "CronCreate", "CronDelete", "CronList", "ScheduleWakeup"),
    *("EnterWorktree", "ExitWorktree", "ListAgents", "SendMessage"),
)
"""Tools that reach Anthropic's services, wait for later, or leave the work directory or the session."""

OWN_ARGUMENTS = owned(
    "--print -p --output-format --input-format --verbose --include-partial-messages --no-session-persistence "
    "--dangerously-skip-permissions --permission-mode --permission-prompts --permission-prompt-tool --safe-mode "
    "--restricted --continue -c --resume -r --fork-session --session-id --from-pr --teleport --cloud --desktop "
    "--background --bg --remote-control --worktree -w --tmux --fallback-model -v",
    model_name="--model",
    mcp_servers="--mcp-config --strict-mcp-config",
    extra_settings="--settings",
    context_files="--setting-sources",
    tools="--tools",
    disallowed_tools="--disallowed-tools --disallowedTools",
    bare="--bare",
    effort="--effort",
    max_turns="--max-turns",
    system_prompt="--system-prompt --system-prompt-file --append-system-prompt --append-system-prompt-file",
)
OWN_SETTINGS = {
    **dict.fromkeys(
        ("apiKeyHelper", "env.ANTHROPIC_BASE_URL", "env.ANTHROPIC_API_KEY", "env.ANTHROPIC_AUTH_TOKEN"), ""
    ),
    **dict.fromkeys(("model", "env.ANTHROPIC_MODEL"), "model_name"),
    **dict.fromkeys(("allowedMcpServers", "deniedMcpServers"), "mcp_servers"),
    "env.CLAUDE_CODE_MAX_RETRIES": "model_retries",
}


class ClaudeCodeAgentConfig(HarnessAgentConfig):
    """Settings of Claude Code."""

    own_arguments = OWN_ARGUMENTS
    free = ("extra_args", "extra_settings")

    claude_code_version: Version = Field("2.1.332", description="Version of the npm package @anthropic-ai/claude-code.")
    system_prompt_mode: Literal["append", "replace"] = Field(
        "append", description="Add the system prompts to Claude Code's own, or put them in its place."
    )
    bare: bool = Field(
        False, description="Claude Code's minimal mode: three tools, no prompt of its own, nothing of the task's read."
    )
    tools: list[str] | None = Field(
        None, description="Tools of its own that it offers; null: its default set; []: none. MCP tools stay."
    )
    disallowed_tools: list[str] = Field(
        list(USELESS), description="Tools of its own that it does not offer; by default those useless in a task."
    )
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Reasoning effort that it asks the model for; null: its own default."
    )
    max_turns: int | None = Field(None, gt=0, description="Model turns after which it stops; null: no bound.")
    context_window: int | None = Field(
        None, gt=0, description="Tokens that the model can read; null: Claude Code's guess, large for unknown models."
    )
    max_output_tokens: int = Field(32_000, gt=0, description="Bound of one model call, unless the request has its own.")
    auto_compaction: bool = Field(True, description="Summarize the conversation when it nears the context window.")
    context_files: bool = Field(True, description="Read the CLAUDE.md files and `.claude` settings of the task.")
    stream_idle_timeout_seconds: float = Field(600, gt=0, description="Ends a model call that is silent for so long.")
    extra_settings: dict[str, Any] = Field(
        default_factory=dict, description="Further settings of Claude Code, as in its settings.json."
    )

    def problems(self) -> Iterator[str]:
        """Also settings of Gym's own."""
        yield from super().problems()
        yield from refused_settings("extra_settings", self.extra_settings, OWN_SETTINGS)
        yield from no_mappings("extra_settings", self.extra_settings, ("env", "permissions", "hooks"))
