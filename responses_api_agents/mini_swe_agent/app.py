"""mini-SWE-agent as an agent: the Responses API; tools over MCP, which its shell calls."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from gym.errors import Problem, UserError
from gym.harness.adapter import Evidence, Invocation, Reading, Turn
from gym.harness.agent import HarnessAgent
from gym.harness.bundles import Bundle
from gym.harness.recipes import Pip, Recipe
from gym.servers.agent import AgentSession
from gym.servers.base import ServerError
from responses_api_agents.mini_swe_agent.session import read
from responses_api_agents.mini_swe_agent.settings import ROOT, ROOT_ONLY, MiniSweAgentConfig

INSIDE = Path(__file__).with_name("inside")

LIBRARIES = (
    *("annotated-types==0.8.0", "jinja2==3.1.6", "markdown-it-py==4.3.0", "markupsafe==3.0.4", "mdurl==0.1.2"),
    *("platformdirs==4.14.8", "pydantic==2.14.4", "pydantic-core==2.50.5", "pygments==2.21.0"),
    *("python-dotenv==1.2.4", "pyyaml==6.0.4", "rich==15.0.0", "typing-extensions==4.16.0"),
    "typing-inspection==0.4.5",
)
"""What mini-SWE-agent's loop imports, of the ten times as much that the package asks for."""

TOOLS = """\
## Tools of the task

Beside ordinary commands, there are the tools below. Call them from bash, with their arguments as one JSON object:

    {command} NAME 'ARGUMENTS'

It prints what the tool says, and its exit code is 0 unless the tool failed. With `-` in the place of the arguments,
they are read from standard input."""


CONFIGS = "python/lib/*/site-packages/minisweagent/config"


class MiniSweAgent(HarnessAgent[MiniSweAgentConfig]):
    """Runs mini-SWE-agent's own loop, prompts and shell."""

    config_type = MiniSweAgentConfig
    harness = "mini_swe"
    settings = frozenset({"max_output_tokens"})
    task_users = False
    stdio_tools = True
    skills = True

    @classmethod
    def runtime(cls, config: MiniSweAgentConfig) -> Recipe:
        """The package, what its loop imports, and a Python that nothing of the image gets into."""
        requirements = (f"mini-swe-agent=={config.mini_swe_version}", *LIBRARIES)
        loop = "import minisweagent.agents.default, minisweagent.environments.local, minisweagent.config"
        return Recipe(
            name="mini_swe",
            version=config.mini_swe_version,
            parts=(Pip(requirements, dependencies=False),),
            command=("bin/python", "-I"),
            version_arguments=("-c", f"{loop}; print(minisweagent.__version__)"),
        )

    async def open(self, session: AgentSession) -> None:
        """Refuses a task that names a user."""
        access = session.request.sandbox_access
        if access is not None and access.user not in ROOT:
            raise ServerError(422, f"{self.name}: {ROOT_ONLY}")
        await super().open(session)

    def check_runtime(self, bundle: Bundle) -> None:
        """The file of prompts is there."""
        (folder,) = bundle.path.glob(CONFIGS)
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.yaml"))
        if (given := self.config.base_config) not in files:
            what = f"{self.name}: mini-SWE-agent {self.config.mini_swe_version} has no file {given}"
            raise UserError(Problem(what, f"use one of {', '.join(files)}", key=f"{self.name}.base_config"))

    def tool_server_name(self, name: str) -> str:
        """As it stands in the names of tools: `mcp__<server>__<tool>`."""
        return re.sub(r"[^A-Za-z0-9_]", "_", name)

    def invocation(self, turn: Turn) -> Invocation:
        """One process for the whole activation, told what to do on its standard input."""
        return Invocation(
            argv=[*turn.command, turn.path("drive.py")],
            files={**self._files(turn), **_inside("drive.py", "gym_skills.py")},
            stdin=json.dumps(self._told(turn)).encode(),
        )

    def readiness(self, turn: Turn) -> Invocation:
        """The command for tools lists those of every server."""
        return Invocation(argv=[*turn.command, turn.path("gym_tools.py"), "check"], files=self._files(turn))

    def read(self, evidence: Evidence) -> Reading:
        """Its events."""
        return read(evidence)

    def _told(self, turn: Turn) -> dict[str, Any]:
        config = self.config
        limit = turn.max_output_tokens or config.max_output_tokens
        model = {
            "url": turn.model_url,
            "key": turn.model_key,
            "name": turn.model_name,
            "retries": config.model_retries,
            "timeout_seconds": config.request_timeout_seconds,
            "settings": {**({"max_output_tokens": limit} if limit else {}), **config.request_settings},
        }
        bounds = {
            "agent": {"step_limit": config.max_turns} if config.max_turns else {},
            "environment": {"timeout": config.command_timeout_seconds} if config.command_timeout_seconds else {},
        }
        return {
            "model": model,
            "task": turn.prompt,
            "system_prompt": turn.system_prompt,
            "append": config.system_prompt_mode == "append",
            "tools": TOOLS.format(command=f"sh {shlex.quote(turn.path('tool'))}") if turn.tools else "",
            "base_config": config.base_config,
            "settings": [config.extra_config, bounds],
            "workdir": turn.workdir,
            "home": turn.path("config"),
        }

    def _files(self, turn: Turn) -> dict[str, str]:
        """The command that calls tools, and where their servers are."""
        servers = [
            {
                "name": self.tool_server_name(tool.name),
                "command": list(tool.command),
                "url": tool.url,
                "headers": dict(tool.headers),
                "required": tool.required,
            }
            for tool in turn.tools
        ]
        start = shlex.join([*turn.command, turn.path("gym_tools.py")])
        return {
            **_inside("gym_tools.py", "stdio_servers.py"),
            "tools.json": json.dumps({"servers": servers, "timeout_seconds": turn.timeout_seconds}),
            "tool": f'exec {start} "$@"\n',
        }


def _inside(*names: str) -> dict[str, str]:
    return {name: (INSIDE / name).read_text(encoding="utf-8") for name in names}
