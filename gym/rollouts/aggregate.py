"""What the verifiers themselves make of a run: `/aggregate_metrics`, for servers that say more than means.

The report counts rewards by itself; a benchmark whose score is something else (an F1 over all tasks, say) overrides
`ResourcesServer.aggregate_metrics`, and gets the verdicts of the run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym.failures import EpisodeFailure
from gym.rollouts.rows import parse_object
from gym.servers.base import ServerError
from gym.servers.client import Client
from gym.servers.contract import AggregateMetricsRequest, AggregateMetricsResponse, ServerRef
from gym.servers.resources import ResourcesServer

if TYPE_CHECKING:
    from gym.planning.plan import Plan

NO_VERDICT = frozenset({"response", "ng_agent_observations", "timings", "usage", "started_at", "task_digest"})
"""Fields of a row that are no part of the verdict, or are too long to send."""


async def verifier_metrics(
    plan: Plan, client: Client, rollouts: Path, note: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Headline metrics by resources server, of those that have their own. One that fails is noted and left out."""
    found = {}
    for name, tasksets in _with_own_metrics(plan).items():
        body = AggregateMetricsRequest(verify_responses=list(_verdicts(rollouts, tasksets)))
        if not body.verify_responses:
            continue
        server = ServerRef(type="resources_servers", name=name)
        try:
            answer = await client.post(server, "/aggregate_metrics", body, AggregateMetricsResponse)
            found[name] = answer.body.key_metrics
        except (ServerError, EpisodeFailure) as error:
            note(f"{name} could not aggregate its metrics: {error}")
    return found


def _with_own_metrics(plan: Plan) -> dict[str, set[str]]:
    """The tasksets of each resources server whose class overrides the metrics."""
    found: dict[str, set[str]] = {}
    for dataset in plan.datasets:
        ref = getattr(plan.instances[dataset.environment].config, "resources_server", None)
        item = plan.instances.get(ref.name) if isinstance(ref, ServerRef) else None
        if item is None or not issubclass(item.server_class, ResourcesServer):
            continue
        if item.server_class.aggregate_metrics is not ResourcesServer.aggregate_metrics:
            found.setdefault(item.name, set()).add(dataset.taskset)
    return found


def _verdicts(rollouts: Path, tasksets: set[str]) -> Iterator[dict[str, Any]]:
    """The verdicts on disk, those of earlier starts of the run included."""
    with rollouts.open("rb") as file:
        for line in file:
            row = parse_object(line) if line.endswith(b"\n") else None
            if row is not None and row.get("taskset") in tasksets:
                yield {name: value for name, value in row.items() if name not in NO_VERDICT}
