"""Episodes that an agent runs by itself, behind its old `/run`. Deprecated: agents get sessions instead."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from gym.environment_servers import flat_rows
from gym.servers.base import Call
from gym.servers.contract import ServerRef, VerifyResponse
from gym.servers.environment import EnvironmentServerConfig, Episode, graded

log = logging.getLogger(__name__)


class LegacyAgentConfig(EnvironmentServerConfig):
    """The agent that runs the episodes."""

    agent_server: ServerRef = Field(description="The agent whose `/run` seeds, acts and verifies by itself.")


class LegacyAgent(flat_rows.FlatRowServer[LegacyAgentConfig]):
    """Relays a flat row to the agent's `/run`; an episode becomes a flat row, and its answer a result or a failure."""

    config_type = LegacyAgentConfig

    async def start(self) -> None:
        """Says that it is deprecated."""
        log.warning(
            "%s: legacy_agent is deprecated, as is the /run of %s; use single_agent_turn, which drives agent sessions",
            self.name,
            self.config.agent_server.name,
        )

    def verifier(self) -> ServerRef:
        """The agent, which verifies by itself."""
        return self.config.agent_server

    async def run_flat(self, row: Mapping[str, Any], call: Call) -> flat_rows.RunBody:
        """Relays a row and its cookies, and the agent's answer, cookies and status, unchanged."""
        answer, call.set_cookies = await self._relay(row, call.cookies)
        return answer

    async def run_episode(self, episode: Episode) -> VerifyResponse:
        """One call of the agent; seeding, cleanup and verification are the agent's own."""
        row = flat_rows.to_row(episode.request)
        async with episode.step("agent"):
            answer, _ = await self._relay(row, {})
            name = self.config.agent_server.name
            return graded(flat_rows.to_verdict(answer.model_extra or {}, row, name), name)

    async def _relay(
        self, row: Mapping[str, Any], cookies: Mapping[str, str]
    ) -> tuple[flat_rows.RunBody, dict[str, str]]:
        body = flat_rows.RunBody.model_validate(row)
        answer = await self.context.client.post(
            self.config.agent_server, "/run", body, flat_rows.RunBody, cookies=cookies
        )
        return answer.body, answer.cookies
