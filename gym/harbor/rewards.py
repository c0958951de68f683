"""What a verifier left as its reward: strictly read, and never made up.

`reward.json` (a flat table of finite numbers) wins over `reward.txt` (one number, called `reward`). A reward that is
missing, empty or anything else is a failure of the verifier with a kind of its own, and no 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping

from gym.failures import EpisodeFailure
from gym.harbor.config import RewardStrategy

Rewards = dict[str, float]
DEFAULT = "reward"
SHOWN_CHARACTERS = 80
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
CTRF = re.compile(r"--ctrf[=\s]+[\"']?([^\s\"']+)")


def read_rewards(as_json: bytes | None, as_text: bytes | None) -> Rewards:
    """The rewards by name.

    Args:
        as_json: Content of reward.json; None: there is none.
        as_text: The same of reward.txt.

    Raises:
        EpisodeFailure: `reward_missing`, `reward_empty`, `reward_unreadable`.
    """
    name, raw = ("reward.txt", as_text) if as_json is None else ("reward.json", as_json)
    if raw is None:
        raise _failed("reward_missing", "the test script wrote neither /logs/verifier/reward.json nor reward.txt")
    if not raw.strip():
        raise _failed("reward_empty", f"the test script left an empty {name}")
    return _text(raw.strip()) if as_json is None else _table(raw)


def _text(raw: bytes) -> Rewards:
    # Not float() alone: it takes `nan`, `1_0` and digits of other scripts.
    value = float(raw) if NUMBER.fullmatch(raw) else math.nan
    if not math.isfinite(value):
        raise _failed("reward_unreadable", f"reward.txt holds no finite number: {_shown(raw)}")
    return {DEFAULT: value}


def _table(raw: bytes) -> Rewards:
    try:
        table = json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _failed("reward_unreadable", f"reward.json is no JSON: {error}: {_shown(raw)}") from error
    if not isinstance(table, dict) or not table:
        raise _failed("reward_unreadable", f"reward.json holds no table of rewards: {_shown(raw)}")
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise _failed("reward_unreadable", f"reward.json: `{name}` is no finite number: {_shown(raw)}")
    return {name: float(value) for name, value in table.items()}


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A table that has no key twice."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("it has a key twice")
    return table


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _shown(raw: bytes) -> str:
    return repr(raw[:SHOWN_CHARACTERS].decode("utf-8", "replace"))


def _failed(kind: str, message: str) -> EpisodeFailure:
    return EpisodeFailure(kind, message, stage="verification")


def one_reward(rewards: Mapping[str, float]) -> float:
    """The one number of an episode: the reward named `reward`, else the mean of all of them."""
    return rewards[DEFAULT] if DEFAULT in rewards else sum(rewards.values()) / len(rewards)


def of_task(steps: Iterable[Rewards], strategy: RewardStrategy) -> Rewards:
    """The rewards of a task from those of the steps that were run.

    `mean` takes the mean of each name over these steps, where a step that has not the name counts as 0; `final` takes
    the last one's. As Harbor does it (its schema 1.4): steps after a missed gate do not count.
    """
    run = list(steps)
    if strategy == "final":
        return run[-1]
    names = dict.fromkeys(name for rewards in run for name in rewards)
    return {name: sum(rewards.get(name, 0.0) for rewards in run) / len(run) for name in names}


def missed_gate(rewards: Mapping[str, float], gate: Mapping[str, float]) -> str | None:
    """The first reward below what the next step asks for, in words; None where the gate is passed."""
    for name, least in gate.items():
        got = rewards.get(name)
        if got is None or got < least:
            return f"{name} is {'missing' if got is None else f'{got:g}'}, and {least:g} is asked for"
    return None


def report_file(script: str) -> str | None:
    """Where a test script asks pytest for a CTRF report, whose absence tells that no test has run; else None."""
    found = CTRF.search(script)
    return found[1] if found else None
