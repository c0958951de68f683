"""What an environment server must answer, one check a method; each runs episodes of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, get_args

from gym.failures import Stage
from gym.testing.resources_checks import check_verdict
from gym.testing.subject import Json, Subject, new_id


@dataclass
class EnvironmentChecks:
    """The checks, and how they speak to the server."""

    subject: Subject
    request: dict[str, Any]

    async def run(self, request: Json, rollout: str, attempt: int = 0) -> dict[str, Any]:
        """Runs an episode; its outcome, well-formed."""
        episode = {"rollout_id": rollout, "attempt": attempt}
        got = (await self.subject.post("/run", {**request, "episode_id": episode})).expect(200, "a run")
        assert got.get("episode_id") == episode, f"a run must answer for its episode {episode}, got {got}"
        assert got.get("task_id") == request["task"]["task_id"], f"a run must answer for its task, got {got}"
        known = {"episode_id", "task_id", "result", "failure"}
        assert set(got) <= known, f"a run answers only with {sorted(known)}, got {sorted(got)}"
        one = (got.get("result") is None) != (got.get("failure") is None)
        assert one, "a run answers with either a result or a failure"
        return dict(got)

    async def answers_with_one_outcome(self) -> None:
        """An episode that can succeed has a verdict and a response, each time it is tried."""
        rollout = new_id("check")
        for attempt in (0, 1):
            got = await self.run(self.request, rollout, attempt)
            assert got.get("failure") is None, f"the episode failed: {got['failure']}"
            check_verdict(got["result"])
            assert "response" in got["result"], "a result carries the agent's response"

    async def runs_many_at_once(self) -> None:
        """Episodes do not get into each other's way."""
        got = await asyncio.gather(*(self.run(self.request, new_id("check")) for _ in range(3)))
        failed = [outcome["failure"] for outcome in got if outcome.get("failure")]
        assert not failed, f"an episode failed beside others: {failed[0]}"

    async def refuses_malformed(self) -> None:
        """Half a request is refused, and no failed episode."""
        body = {"episode_id": {"rollout_id": "x"}, "task": {"task_id": {"taskset": "t"}}}
        (await self.subject.post("/run", body)).expect(422, "half a request")

    async def fails_as_data(self, broken: Json) -> None:
        """An episode that cannot succeed is a failure with a reason, and HTTP 200."""
        failure = (await self.run(broken, new_id("check"))).get("failure")
        assert failure is not None, "an episode that cannot succeed must be a failure, never a result"
        assert isinstance(failure.get("failure_reason"), str), f"a failure has a text, got {failure}"
        assert failure["failure_reason"], "a failure says why"
        assert isinstance(failure.get("terminal"), bool), f"a failure says whether it is terminal, got {failure}"
        stages = (None, *get_args(Stage))
        assert failure.get("stage") in stages, f"the stage of a failure is one of {stages}, got {failure['stage']}"

    async def answers_flat(self, flat_row: Json) -> None:
        """A flat row gets a flat verdict."""
        row = {**flat_row, "_ng_rollout_id": new_id("check"), "_ng_attempt_index": 0}
        got = (await self.subject.post("/run", row)).expect(200, "the run of a flat row")
        assert "episode_id" not in got, "a flat row gets a flat answer"
        check_verdict(got)
