"""The second error family: an episode failed.

A failed episode has a stage and a kind, is recorded once as data, and is never a reward of 0. One table says what
follows from each kind; docs/faults.md shows it.
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
        means: What happened, as docs/faults.md says it.
        retry: Another try within the run can help.
        graded: It is the policy's doing: what the agent had done by then is verified.
        reward_valid: A reward that the episode has all the same counts.
        stops_run: Repeated in a row, it shows that no further episode can succeed.
    """

    means: str
    retry: bool
    graded: bool = False
    reward_valid: bool = False
    stops_run: bool = False


POLICIES: dict[str, Policy] = {
    "admission_timeout": Policy("the environment server had no room within `queue_timeout_seconds`", retry=True),
    "episode_timeout": Policy("the episode's time ran out", retry=False),
    "configuration": Policy("something that is configured cannot work", retry=False, stops_run=True),
    "malformed_task": Policy("the task's fields do not fit its benchmark", retry=False),
    "sandbox_start": Policy("a sandbox did not start", retry=True),
    "sandbox_lost": Policy("a sandbox went away, or does not answer", retry=True),
    "provider_unreachable": Policy("the model's provider does not answer", retry=True),
    "provider_rate_limited": Policy("the provider had too many requests", retry=True),
    "provider_error": Policy("the provider failed", retry=True),
    "provider_refused": Policy("the provider refuses the request, as with a wrong key", retry=False, stops_run=True),
    "context_length_exceeded": Policy("the conversation is longer than the model takes", retry=False),
    "script_exhausted": Policy("a scripted policy has nothing more to say", retry=False),
    "budget_exhausted": Policy(
        "the rollout has used up its own budget of the policy", retry=False, graded=True, reward_valid=True
    ),
    "run_budget_exhausted": Policy("the run has used up its budget of the policy", retry=False),
    "replay_mismatch": Policy("a replayed run asks something else than was recorded", retry=False),
    "tool_server_error": Policy("a tool failed", retry=True),
    "server_unreachable": Policy("a server of the run does not answer", retry=True),
    "malformed_answer": Policy(
        "an answer has another form than it must have, such as a proxy's page instead of JSON", retry=True
    ),
    "session_lost": Policy("a server knows nothing of its session any more: it has started again", retry=True),
    "agent_error": Policy("the harness failed", retry=False),
    "agent_timeout": Policy("the agent's time ran out, and nothing of it is there to grade", retry=False),
    "termination_unconfirmed": Policy("the harness may still be at work", retry=True),
    "image_build": Policy("an image could not be built", retry=False),
    "image_pull": Policy("an image could not be pulled", retry=False),
    "healthcheck_failed": Policy("the task's environment did not become healthy", retry=True),
    "task_setup": Policy("the task's own setup failed", retry=False),
    "verifier_crashed": Policy("the verifier failed", retry=True),
    "verifier_timeout": Policy("the verifier's time ran out", retry=False),
    "verifier_tools_missing": Policy("the verifier lacks a program that it needs", retry=True),
    "reward_missing": Policy("the verifier gave no reward", retry=False),
    "reward_empty": Policy("the verifier's reward is empty", retry=False),
    "reward_unreadable": Policy("the verifier's reward is no number", retry=False),
    "artifact_lost": Policy("something that the verifier needs could not be taken from the sandbox", retry=False),
    "cleanup_failed": Policy(
        "something could not be freed; a reward that is there already stands", retry=True, reward_valid=True
    ),
    "cancelled": Policy("the episode was cut off", retry=True),
    "internal": Policy("a fault of Gym or of a server", retry=False),
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
