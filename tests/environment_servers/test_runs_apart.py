"""Runs that use the same servers at once: their rollouts have the same names, and are counted apart."""

from __future__ import annotations

import asyncio

from gym.apis.responses import ResponsesRequest, ResponsesResponse, function_call, message
from gym.capture.budget import Budgets, PolicyCalls
from gym.servers.base import Call, ServerContext
from gym.servers.contract import RUN_HEADER, RunRequest, RunResponse, VerifyRequest, VerifyResponse
from gym.servers.model import ModelServer, ModelServerConfig, RolloutName
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData, tool
from tests.environment_servers.wiring import MODEL, World, build

CALLS = 3
"""Of the policy in an episode, and its budget."""

REQUEST = RunRequest.model_validate(
    {
        "episode_id": {"rollout_id": "r1"},
        "task": {
            "task_id": {"taskset": "t", "task_id": "1"},
            "task_input": {"responses_create_params": {"input": "go"}},
        },
    }
)


class Looks(ResourcesServer[ResourcesServerConfig, TaskData]):
    """Has something to look at, which lets other episodes go on; the reward is 1.0 for one that came to its end."""

    def __init__(self, context: ServerContext) -> None:
        super().__init__(ResourcesServerConfig(), context)

    @tool
    async def look(self, session: Session[TaskData]) -> str:
        """Look."""
        await asyncio.sleep(0)
        return "seen"

    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        """Whether the policy had its last word."""
        return VerifyResponse(reward=float(request.response.status == "completed"))


class Bounded(ModelServer[ModelServerConfig]):
    """Looks until its last call. Keeps whose calls they were."""

    scripted = True

    def __init__(self, context: ServerContext) -> None:
        budgets = Budgets(max_policy_calls=CALLS, max_run_calls=CALLS)
        super().__init__(ModelServerConfig(budgets=budgets), context)
        self.asked: list[tuple[str | None, str | None]] = []

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        """A call of the tool, or the end."""
        self.asked.append((call.run, call.rollout))
        looks = sum(item["type"] == "function_call" for item in request.items())
        last = looks == CALLS - 1
        return ResponsesResponse(
            output=[message("assistant", "done") if last else function_call("look", {}, f"c{looks}")]
        )


async def ran(world: World, run: str | None) -> RunResponse:
    return await world.environment.run(REQUEST, Call({} if run is None else {RUN_HEADER: run}))


async def test_each_has_its_whole_budget_and_its_own_count() -> None:
    world, runs = build(Looks, Bounded), ("one", "two", None)
    outcomes = await asyncio.gather(*(ran(world, run) for run in runs))
    assert [outcome.result and outcome.result.reward for outcome in outcomes] == [1.0] * len(runs)
    assert isinstance(world.model, Bounded)
    assert sorted(world.model.asked, key=str) == sorted([(run, "r1") for run in runs] * CALLS, key=str)
    for run in runs:
        asked = RolloutName(rollout="r1", run=run)
        counted = (await world.client.post(MODEL, "/policy_calls", asked, PolicyCalls)).body
        assert (counted.calls, counted.exhausted) == (CALLS, [])
    await world.stop()
