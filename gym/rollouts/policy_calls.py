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
    """The fields of a row: `usage`, `policy_calls`, and `usage_differences`, where harness and model server differ.

    What was counted stands in the usage: a harness's word comes from a sandbox in which its model runs commands. A
    harness that says less than was counted has tried calls again, or has made some that it does not tell of.

    Tokens that nobody told stay unknown: a harness's 0 is then only what its API made of that.

    Args:
        said: The usage that the harness reports. It stands where nothing was counted, or not in all processes.
    """
    if calls is None:
        return {"usage": dict(said)}
    own = {"input_tokens": calls.input_tokens, "output_tokens": calls.output_tokens, "model_calls": calls.calls}
    counted = {name: count for name, count in own.items() if count is not None}
    differing = {
        name: {"harness": said[name], "counted": count}
        for name, count in counted.items()
        if said.get(name) not in (None, count)
    }
    if calls.input_tokens is None and calls.output_tokens is None:
        said = {name: value for name, value in said.items() if value or name not in TOKENS}
    usage = {**counted, **said} if calls.partial else {**said, **counted, **_sums(said, calls)}
    money = {
        "cost_usd": calls.cost_usd,
        "calls_with_price": sum(calls.cost_sources.values()),
        "calls_without_price": calls.calls_without_price,
    }
    known = {name: value for name, value in {**usage, **money}.items() if value is not None}
    told: dict[str, Any] = {"usage": known, "policy_calls": calls.model_dump(mode="json", exclude_defaults=True)}
    return told | ({"usage_differences": differing} if differing else {})


def _sums(said: Mapping[str, Any], calls: PolicyCalls) -> dict[str, Any]:
    """The total and the details as they were counted, of a harness that says them."""
    found: dict[str, Any] = {}
    if "total_tokens" in said and calls.input_tokens is not None and calls.output_tokens is not None:
        found["total_tokens"] = calls.input_tokens + calls.output_tokens
    details = {
        "input_tokens_details": {"cached_tokens": calls.cached_input_tokens},
        "output_tokens_details": {"reasoning_tokens": calls.reasoning_tokens},
    }
    for name, counts in details.items():
        known = {key: count for key, count in counts.items() if count is not None}
        if known or name in said:
            found[name] = {**(said.get(name) or {}), **known}
    return found
