"""Does a Harbor task by its own solution: `solution/` goes to /solution, and `solve.sh` is run. It asks no model.

An oracle that does not earn the full reward shows that the task, or its environment, is broken.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from gym.apis.responses import ResponsesRequest, ResponsesResponse, message
from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harbor.boxes import RUN_SCRIPT
from gym.harbor.rows import HarborTaskData, task_of
from gym.harbor.turns import TASK_DATA, TASK_STEP
from gym.harbor.variables import fill_env
from gym.sandbox.interface import ExecResult
from gym.sandbox.programs import SYSTEM_PATH
from gym.servers import deadline
from gym.servers.agent import AgentServer, AgentSession, Role
from gym.servers.sandbox_access import AgentSandbox, SandboxedAgentConfig, take_sandbox

SOLUTION = "/solution"
OURS = {"PATH": SYSTEM_PATH}
LONGEST_SECONDS = 86_400.0
END_SECONDS = 3.0
OUTPUT_BYTES = 16 * 1024

# A log that cannot be written is none.
SOLVE = rf"""
cd -- "$1" || exit 126
log=/logs/agent/oracle.txt
( : >"$log" ) 2>/dev/null || log=/dev/null
set -- {SOLUTION}/solve.sh
( {RUN_SCRIPT} ) >"$log" 2>&1 </dev/null
code=$?
tail -c 16384 "$log"
exit "$code"
"""


class OracleAgent(AgentServer[SandboxedAgentConfig]):
    """Runs the solution of the task, as the user whom the task gives to the agent."""

    config_type = SandboxedAgentConfig
    needs_sandbox = True
    task_users = True
    stdio_tools = True
    transports = frozenset({"direct_http", "mcp"})
    role: ClassVar[Role] = "oracle"

    async def open(self, session: AgentSession) -> None:
        """Takes the sandbox of the task."""
        await take_sandbox(self, self.config, session)

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        """Uploads the solution and runs it; its exit code is told, and the verifier says what it is worth."""
        place = session.sandbox
        assert place is not None
        metadata = request.metadata or {}
        if TASK_DATA not in metadata:
            raise EpisodeFailure("configuration", f"{self.name} solves Harbor tasks, and this is none", stage="agent")
        task = task_of(HarborTaskData.model_validate_json(str(metadata[TASK_DATA])))
        solution = task.steps[int(metadata[TASK_STEP])].solution
        if solution is None:
            raise EpisodeFailure("configuration", f"{task.name} has no solution", stage="agent")
        env = {"DEBIAN_FRONTEND": "noninteractive", **fill_env(task.table.solution.env, os.environ).values}
        try:
            await place.sandbox.exec(["rm", "-rf", SOLUTION], user="0", cwd="/", env=OURS)
            await place.sandbox.upload(solution, SOLUTION)
            words = ["/bin/sh", "-c", 'chmod -R a+rX "$1" && chmod a+x "$1/solve.sh"', "sh", SOLUTION]
            await place.sandbox.exec(words, user="0", cwd="/", env=OURS)
            result = await self._solve(place, env)
        except UserError as error:
            raise EpisodeFailure("configuration", str(error), stage="agent") from error
        return _told(result)

    async def close(self, session: AgentSession) -> dict[str, Any] | None:
        """Takes the solution away again."""
        if session.sandbox is not None and not session.state.get("left"):
            session.state["left"] = True
            try:
                await session.sandbox.sandbox.exec(["rm", "-rf", SOLUTION], user="0", cwd="/", env=OURS)
            except EpisodeFailure:
                return None  # a sandbox that is gone has nothing left in it
        return None

    async def _solve(self, place: AgentSandbox, env: dict[str, str]) -> ExecResult:
        left = deadline.remaining()
        return await place.sandbox.exec(
            ["/bin/sh", "-c", SOLVE, "sh", place.workdir],
            env=env,
            cwd="/",
            user=place.user,
            # Less, and enough for its end, so that it is told and graded as far as it came.
            timeout_seconds=LONGEST_SECONDS if left is None else max(left / 2, left - max(END_SECONDS, left / 20)),
            max_output_bytes=OUTPUT_BYTES,
        )


def _told(result: ExecResult) -> ResponsesResponse:
    ended = "ran out of time" if result.timed_out else f"exited with {result.exit_code}"
    text = f"solve.sh {ended}\n{result.stdout_text}".strip()
    if result.timed_out:
        details = {"reason": "timeout"}
        return ResponsesResponse(output=[message("assistant", text)], status="incomplete", incomplete_details=details)
    return ResponsesResponse(output=[message("assistant", text)])
