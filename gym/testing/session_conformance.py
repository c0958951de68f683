"""The session contract as a check that any server can be put through, ours or not, in-process or over HTTP.

Each function raises AssertionError with what was asked and what came; nothing here needs a test framework. Every check
uses sessions of its own, and closes them.
"""

from __future__ import annotations

from gym.testing.agent_checks import AgentChecks
from gym.testing.environment_checks import EnvironmentChecks
from gym.testing.resources_checks import ResourcesChecks
from gym.testing.subject import Json, Subject


async def check_agent_session_contract(
    agent: Subject,
    *,
    request: Json,
    seed: Json | None = None,
    continues: bool = False,
    refuses: Json | None = None,
) -> None:
    """Checks an agent server: seeds, activations, closes, and what must be refused.

    Args:
        agent: The server.
        request: A Responses request that the agent can work on. It is worked on about ten times.
        seed: Further fields of every seed: `tool_accesses`, `sandbox_access`.
        continues: Whether the agent supports `resume_harness_session`; if not, it must refuse it.
        refuses: A required grant that the agent cannot use.

    Raises:
        AssertionError: The server breaks the contract.
    """
    checks = AgentChecks(agent, dict(request), dict(seed or {}))
    await checks.seeds_once()
    await checks.activates_once()
    await checks.outlives_its_waiter()
    await checks.closes_once()
    await checks.fences()
    await checks.ends_what_runs()
    await checks.refuses_malformed()
    await (checks.continues() if continues else checks.refuses_continuation())
    if refuses is not None:
        await checks.refuses_grant(refuses)


async def check_resources_session_contract(
    resources: Subject,
    *,
    task_data: Json,
    request: Json,
    response: Json | None = None,
    task_id: str = "1",
    keeps_state: bool = True,
) -> None:
    """Checks a resources server: seeds, verification, closes, and what must be refused.

    Args:
        resources: The server.
        task_data: The fields of a task that can be seeded.
        request: The task's Responses request.
        response: What the agent answered, as it is to be verified; default: nothing.
        task_id: The task's id, for servers that look it up.
        keeps_state: False for a server whose sessions hold nothing: it need not tell closed ones from open ones.

    Raises:
        AssertionError: The server breaks the contract.
    """
    answered = dict(response or {"id": "resp_1", "object": "response", "created_at": 0, "output": []})
    outcome = {**task_data, "responses_create_params": dict(request), "response": answered}
    checks = ResourcesChecks(resources, dict(task_data), outcome, task_id)
    await checks.seeds()
    await checks.verifies()
    await checks.closes_once()
    if keeps_state:
        await checks.refuses_conflicts()
        await checks.fences()


async def check_environment_contract(
    environment: Subject, *, request: Json, broken: Json | None = None, flat_row: Json | None = None
) -> None:
    """Checks an environment server: what `/run` answers.

    Args:
        environment: The server, with the servers of its episodes running.
        request: A `/run` request. It is run about five times, under rollout ids of the check's own.
        broken: A request whose episode must fail, such as one with a task that does not fit.
        flat_row: A flat row, for a server that takes them too.

    Raises:
        AssertionError: The server breaks the contract.
    """
    checks = EnvironmentChecks(environment, dict(request))
    await checks.answers_with_one_outcome()
    await checks.runs_many_at_once()
    await checks.refuses_malformed()
    if broken is not None:
        await checks.fails_as_data(broken)
    if flat_row is not None:
        await checks.answers_flat(flat_row)
