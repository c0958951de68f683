"""The second error family: an episode failed.

A failed episode has a stage and a kind, is recorded once as data, and is never a reward of 0. One table says what
follows from each kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Stage = Literal["admission", "seed", "agent", "verification", "cleanup"]


@dataclass(frozen=True)
class Policy:
    """What follows from a kind of failure.

    Attributes:
        retry: Another attempt within the run can help.
        stops_run: Repeated in a row, it shows that no further episode can succeed.
    """

    retry: bool
    stops_run: bool = False


POLICIES: dict[str, Policy] = {
    "admission_timeout": Policy(retry=True),
    "episode_timeout": Policy(retry=False),
    "configuration": Policy(retry=False, stops_run=True),
    "malformed_task": Policy(retry=False),
    "sandbox_start": Policy(retry=True),
    "sandbox_lost": Policy(retry=True),
    "provider_unreachable": Policy(retry=True),
    "provider_rate_limited": Policy(retry=True),
    "provider_error": Policy(retry=True),
    "provider_refused": Policy(retry=False, stops_run=True),
    "context_length_exceeded": Policy(retry=False),
    "script_exhausted": Policy(retry=False),
    "budget_exhausted": Policy(retry=False),
    "run_budget_exhausted": Policy(retry=False),
    "replay_mismatch": Policy(retry=False),
    "tool_server_error": Policy(retry=True),
    "server_unreachable": Policy(retry=True),
    "malformed_answer": Policy(retry=False),
    "session_lost": Policy(retry=True),
    "agent_error": Policy(retry=False),
    "agent_timeout": Policy(retry=False),
    "termination_unconfirmed": Policy(retry=True),
    "image_build": Policy(retry=False),
    "image_pull": Policy(retry=False),
    "healthcheck_failed": Policy(retry=True),
    "task_setup": Policy(retry=False),
    "verifier_crashed": Policy(retry=True),
    "verifier_timeout": Policy(retry=False),
    "verifier_tools_missing": Policy(retry=True),
    "reward_missing": Policy(retry=False),
    "reward_empty": Policy(retry=False),
    "reward_unreadable": Policy(retry=False),
    "cleanup_failed": Policy(retry=True),
    "cancelled": Policy(retry=True),
    "internal": Policy(retry=False),
}
"""The closed vocabulary of failure kinds and their consequences."""

OF_MODEL_SERVERS = frozenset(
    (
        *("provider_unreachable", "provider_rate_limited", "provider_error", "provider_refused"),
        *("context_length_exceeded", "script_exhausted", "replay_mismatch", "malformed_answer"),
        *("budget_exhausted", "run_budget_exhausted"),
    )
)
"""What a model server tells of its calls; the rest of the vocabulary is not for a harness to quote."""

BUDGET_EXHAUSTED, RUN_BUDGET_EXHAUSTED = "budget_exhausted", "run_budget_exhausted"
_EXHAUSTED = re.compile(r"\b(max_(policy|run)_(?:calls|tokens|cost_usd)) = [\d.e+-]+ of ")


def exhausted_budget(text: str) -> tuple[str, str] | None:
    """The kind and the setting of the budget whose end a message tells, also where a harness quotes it; else None.

    An agent whose rollout has used up its own budget (`budget_exhausted`) answers with what it has, `incomplete`, and
    with the setting as its reason: that is the policy's doing, and gradable. The run's budget is not.
    """
    found = _EXHAUSTED.search(text)
    return (BUDGET_EXHAUSTED if found[2] == "policy" else RUN_BUDGET_EXHAUSTED, found[1]) if found else None


class EpisodeFailure(Exception):
    """Infrastructure that failed: ends the episode, never scored.

    Attributes:
        kind: A key of `POLICIES`.
        message: One line for the user, with the cause's own text.
        stage: Where in the episode; filled by the environment server when the raiser does not know.
    """

    def __init__(self, kind: str, message: str, *, stage: Stage | None = None) -> None:
        if kind not in POLICIES:
            raise ValueError(f"unknown failure kind {kind!r}")
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.stage: Stage | None = stage

    @property
    def terminal(self) -> bool:
        """True when another try of the same episode cannot help."""
        return not POLICIES[self.kind].retry
