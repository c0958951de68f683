"""What the policy of a rollout used, as its model server counted it: the trusted record beside what a harness says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from gym.capture.budget import PolicyCalls
from gym.failures import EpisodeFailure
from gym.servers.base import ServerError
from gym.servers.client import Client
from gym.servers.contract import ServerRef
from gym.servers.model import RolloutName

ASK_SECONDS = 30.0
TOKENS = ("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "reasoning_tokens")
log = logging.getLogger(__name__)


async def counted(client: Client, policy: ServerRef | None, rollout: str, run: str) -> PolicyCalls | None:
    """What a rollout that has ended used; None where its model server cannot say, as one of NeMo Gym."""
    if policy is None:
        return None
    try:
        name = RolloutName(rollout=rollout, run=run)
        answer = await client.post(policy, "/policy_calls", name, PolicyCalls, timeout_seconds=ASK_SECONDS)
    except (ServerError, EpisodeFailure, TimeoutError) as error:
        log.info("%s does not say what %s used: %s", policy.name, rollout, error)
        return None
    return answer.body if answer.body.calls else None


def fields(said: Mapping[str, Any], calls: PolicyCalls | None) -> dict[str, Any]:
    """The fields of a row: `usage`, filled where the harness does not say, `policy_calls`, and where the two differ.

    Tokens that nobody told stay unknown: a harness's 0 is then only what its API made of that. A harness that says less
    than was counted has tried calls again, or has made some that it does not tell of.

    Args:
        said: The usage that the harness reports.
    """
    if calls is None:
        return {"usage": dict(said)}
    own: dict[str, Any] = {
        "input_tokens": calls.input_tokens,
        "output_tokens": calls.output_tokens,
        "model_calls": calls.calls,
    }
    money = {
        "cost_usd": calls.cost_usd,
        "calls_with_price": sum(calls.cost_sources.values()),
        "calls_without_price": calls.calls_without_price,
    }
    differing = {
        name: {"harness": said[name], "counted": count}
        for name, count in own.items()
        if count is not None and said.get(name) not in (None, count)
    }
    if calls.input_tokens is None and calls.output_tokens is None:
        said = {name: value for name, value in said.items() if value or name not in TOKENS}
    known = {name: value for name, value in {**own, **said, **money}.items() if value is not None}
    told: dict[str, Any] = {"usage": known, "policy_calls": calls.model_dump(mode="json", exclude_defaults=True)}
    return told | ({"usage_differences": differing} if differing else {})
