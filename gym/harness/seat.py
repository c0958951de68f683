"""Where a session's harness runs, and how its processes are started there."""

from __future__ import annotations

from dataclasses import dataclass, field

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harness import launching, trajectory
from gym.harness.adapter import Evidence, Invocation, ToolServer, Turn
from gym.harness.launching import Site
from gym.servers.sandbox_access import AgentSandbox

SECRET_CHARACTERS = 16
"""Of a value that is a credential; a shorter one would be masked wherever it stands for something else."""


@dataclass
class Seat:
    """Where a session's harness runs, and what it did so far.

    Attributes:
        command: Program and first arguments, where they are in the sandbox.
        tools: MCP servers as the sandbox reaches them.
        user: Whom it runs as; None for the sandbox's own.
        gaps: What is missing in the session as a whole.
    """

    sandbox: AgentSandbox
    folder: str
    command: list[str]
    model_url: str
    tools: tuple[ToolServer, ...]
    user: str | None = None
    records: list[trajectory.Record] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    async def launch(self, turn: Turn, invocation: Invocation, evidence: Evidence, seconds: float) -> None:
        """Runs a process of the harness to its end; `evidence` is filled as it comes.

        Raises:
            EpisodeFailure: `configuration`: the sandbox cannot run it so; `sandbox_lost`.
        """
        headers = [value for tool in turn.tools for value in tool.headers.values()]
        words = {turn.model_key, *headers, *(value.rpartition(" ")[2] for value in headers)}
        secrets = sorted((word for word in words if len(word) >= SECRET_CHARACTERS), key=len, reverse=True)
        keeps = self.sandbox.keeps_services
        site = Site(self.sandbox.sandbox, self.folder, self.sandbox.workdir, self.user, tuple(secrets), keeps)
        try:
            await launching.launch(site, invocation, evidence, seconds)
        except UserError as error:
            raise EpisodeFailure("configuration", str(error)) from error
