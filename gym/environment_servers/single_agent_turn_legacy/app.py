"""The lifecycle of `single_agent_turn` for callers that still send flat rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym.environment_servers import flat_rows
from gym.environment_servers.single_agent_turn.app import SingleAgentTurn, SingleAgentTurnConfig
from gym.servers.base import Call, ServerError


class SingleAgentTurnLegacy(flat_rows.FlatRowServer[SingleAgentTurnConfig], SingleAgentTurn):
    """Seeds Resources, runs the agent once, closes it, verifies, and closes Resources; the row may be flat."""

    async def run_flat(self, row: Mapping[str, Any], call: Call) -> dict[str, Any]:
        """Runs the episode of a flat row, as a task of the Resources server."""
        self._refuse_foreign(row)
        request = flat_rows.to_request(row, self.config.resources_server.name)
        return flat_rows.flat_answer(row, await self.run(request, call), self.config.agent_server.name)

    def _refuse_foreign(self, row: Mapping[str, Any]) -> None:
        """A row that was meant for other servers must not be scored by these."""
        resources, agent = self.config.resources_server.name, self.config.agent_server.name
        ref = row.get("agent_ref")
        wanted = ref.get("name") if isinstance(ref, Mapping) else None
        if wanted not in (None, agent):
            raise ServerError(422, f"agent_ref names `{wanted}`; {self.name} runs {agent}")
        source = row.get("task_source")
        if source not in (None, resources, agent, self.name):
            raise ServerError(422, f"task_source names `{source}`; {self.name} runs tasks of {resources}")
