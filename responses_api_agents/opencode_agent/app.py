"""OpenCode as an agent: Chat Completions, streamed; tools over MCP; sessions that continue."""

from __future__ import annotations

from pathlib import Path

from gym.apis.responses import ResponsesRequest
from gym.harness.adapter import Evidence, Invocation, Reading, Turn
from gym.harness.agent import HarnessAgent
from gym.harness.prompts import compose
from gym.harness.recipes import Npm, Recipe
from gym.servers.agent import AgentSession
from gym.servers.base import ServerError
from gym.servers.capabilities import Capability
from responses_api_agents.opencode_agent import session as left
from responses_api_agents.opencode_agent.settings import OpenCodeAgentConfig, opencode_json, tool_server_name

OFF = (
    *("AUTOUPDATE", "CLAUDE_CODE", "DEFAULT_PLUGINS", "EMBEDDED_WEB_UI", "EXTERNAL_SKILLS", "LSP_DOWNLOAD"),
    *("MODELS_FETCH", "PROJECT_CONFIG", "PRUNE", "SHARE"),
)
"""What OpenCode would fetch, send, or take from the task's folder as its own configuration."""

SEED = {
    "config/opencode/package-lock.json": '{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}',
    "config/opencode/node_modules/.keep": "",
}
"""Otherwise OpenCode installs a package for plugins there, which ours does not need."""


class OpenCodeAgent(HarnessAgent[OpenCodeAgentConfig]):
    """Runs OpenCode."""

    config_type = OpenCodeAgentConfig
    continuations = frozenset({"resume_harness_session"})
    harness = "opencode"
    settings = frozenset({"max_output_tokens"})
    stdio_tools = True
    skills = True

    @classmethod
    def asks_of_model(cls, config: OpenCodeAgentConfig) -> dict[Capability, str]:
        """Tools, and reasoning where an effort is set."""
        effort: dict[Capability, str] = {"reasoning": "has a reasoning_effort"} if config.reasoning_effort else {}
        return super().asks_of_model(config) | effort

    @classmethod
    def runtime(cls, config: OpenCodeAgentConfig) -> Recipe:
        """Two native programs: OpenCode, and what it searches with."""
        packages = (
            f"opencode-linux-{{arch}}@{config.opencode_version}",
            f"@vscode/ripgrep-linux-{{arch}}@{config.ripgrep_version}",
        )
        return Recipe(
            name="opencode",
            version=config.opencode_version,
            parts=(Npm(packages),),
            command=("bin/opencode",),
            links=(
                ("bin/opencode", "node_modules/opencode-linux-*/bin/opencode"),
                ("tools/rg", "node_modules/@vscode/ripgrep-linux-*/bin/rg"),
            ),
        )

    def tool_server_name(self, name: str) -> str:
        """As it stands in the names of tools."""
        return tool_server_name(name)

    def check_activation(self, session: AgentSession, request: ResponsesRequest) -> None:
        """Also refuses other instructions than those that the session began with: OpenCode keeps those."""
        super().check_activation(session, request)
        given = compose(None, request).system
        if session.activation == 0:
            session.state["instructions"] = given
        elif given and given != session.state["instructions"]:
            what = "the session keeps the instructions of its first activation; send the same ones, or none"
            raise ServerError(422, f"{self.name}: {what}")

    def invocation(self, turn: Turn) -> Invocation:
        """`opencode run` in JSON mode. As standard input and as files, the prompts stay literal."""
        options = ["--model", f"gym/{turn.model_name}", "--dir", turn.workdir, "--format", "json", "--thinking"]
        # A title of our own saves a model call. Whatever is asked of the user is answered at once.
        options += ["--title", "task", "--auto"]
        options += ["--session", turn.session] if turn.session else []
        files = {
            "opencode.json": opencode_json(self.config, turn),
            "watch.js": Path(__file__).with_name("watch.js").read_text(encoding="utf-8"),
            **({} if turn.session else SEED | self._prompt(turn)),
        }
        env = {f"XDG_{name.upper()}_HOME": turn.path(name) for name in ("config", "data", "cache", "state")}
        env |= {f"OPENCODE_DISABLE_{name}": "1" for name in OFF}
        env["OPENCODE_CONFIG"] = turn.path("opencode.json")
        env["OPENCODE_EXPERIMENTAL_OUTPUT_TOKEN_MAX"] = str(turn.max_output_tokens or self.config.max_output_tokens)
        # Plugins are asked for the calls of a provider that has a key here; the key that counts is in the file.
        env["OPENCODE_AUTH_CONTENT"] = '{"gym": {"type": "api", "key": "none"}}'
        argv = [*turn.command, "run", *options, *self.config.extra_args]
        return Invocation(argv, env=env, files=files, stdin=turn.prompt.encode())

    def read(self, evidence: Evidence) -> Reading:
        """Its events, and what the plugin told."""
        return left.read(evidence)

    def _prompt(self, turn: Turn) -> dict[str, str]:
        """The system prompts as files, written for the first activation: later ones keep it."""
        if self.config.system_prompt_mode == "append":
            return {"system.md": turn.system_prompt} if turn.system_prompt else {}
        mine = f"---\nmode: primary\n---\n{turn.system_prompt}"
        return {"config/opencode/agent/build.md": mine} if turn.system_prompt else {}
