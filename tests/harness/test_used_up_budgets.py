"""A harness that a budget stopped: what it did is graded, unless it was the budget of the whole run."""

from __future__ import annotations

import pytest

from gym.apis.responses import message
from gym.failures import EpisodeFailure
from gym.harness.adapter import Evidence, Reading
from gym.harness.evidence import Verdict, judge

OWN = "max_policy_tokens = 5000 of this rollout is used up"
RUNS = "max_run_cost_usd = 2.5 of the run is used up"
ITEM = message("assistant", "x")


@pytest.mark.parametrize(
    ("reading", "evidence"),
    [
        (Reading([ITEM], error=f'unexpected status 400 Bad Request: {{"error": {{"message": "{OWN}"}}}}'), Evidence()),
        (Reading([ITEM], error=f"API Error: 400 {OWN}", error_kind="provider_refused"), Evidence(exit_code=1)),
        (Reading([], error=OWN), Evidence(exit_code=1)),
        (Reading([ITEM]), Evidence(exit_code=1, stderr=f"Traceback ...\nBadRequestError: {OWN}\n")),
    ],
)
def test_what_a_policy_did_within_its_budget_is_graded(reading: Reading, evidence: Evidence) -> None:
    assert judge("tool", reading, evidence) == Verdict("incomplete", "max_policy_tokens")


def test_the_budget_of_the_run_is_no_fault_of_the_policy() -> None:
    with pytest.raises(EpisodeFailure, match=r"tool: 400: max_run_cost_usd = 2.5") as failed:
        judge("tool", Reading([ITEM], error=f"400: {RUNS}"), Evidence(exit_code=1))
    assert failed.value.kind == "run_budget_exhausted"
    assert failed.value.terminal


def test_other_words_about_budgets_are_an_error_like_any_other() -> None:
    with pytest.raises(EpisodeFailure) as failed:
        judge("tool", Reading([ITEM], error="400: your budget_exhausted your patience"), Evidence(exit_code=1))
    assert failed.value.kind == "provider_error"
