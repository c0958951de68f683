"""Scores, coverage and intervals, against numbers that can be checked by hand."""

import json
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.errors import UserError
from gym.report.metrics import Scores, pass_at_k, score_rows, wilson
from gym.report.usage import UsageTotals
from gym.rollouts.identity import owed
from gym.rollouts.journal import Journal, load
from gym.rollouts.rows import Failure, Row

FAILED_RUN = [
    ("t1", 0, 1.0),
    ("t1", 1, 0.0),
    ("t2", 0, "sandbox_start"),
    ("t2", 1, 1.0),
    ("t3", 0, "provider_rate_limited"),
    ("t3", 1, "provider_rate_limited"),
    ("t4", 0, 0.0),
    ("t4", 1, 1.0),
    ("t5", 0, "verifier_crashed"),
    ("t5", 1, 0.0),
]
REPEATS = [("u1", 0b1111), ("u2", 0b0000), ("u3", 0b0101)]


def scored(outcomes, num_repeats, tasks):
    scores = Scores(num_repeats, {"demo": tasks})
    for task, attempt, outcome in outcomes:
        if isinstance(outcome, str):
            scores.fail(outcome, "demo")
        else:
            scores.add("demo", task, attempt, outcome)
    return scores


def repeats():
    return scored([(task, n, float(bits >> n & 1)) for task, bits in REPEATS for n in range(4)], 4, 3)


def singles(rewards):
    return scored([(f"q{n}", 0, reward) for n, reward in enumerate(rewards)], 1, len(rewards))


def test_an_infrastructure_failure_is_not_a_zero():
    scores = scored(FAILED_RUN, 2, 5)
    summary = scores.summary()
    assert summary["mean_reward"] == scores.mean_reward == 0.5
    text = (
        "4 of 5 tasks, 6 of 10 attempts; "
        "4 attempts failed: provider_rate_limited 2, sandbox_start 1, verifier_crashed 1"
    )
    assert summary["coverage"]["text"] == scores.coverage() == text
    assert list(summary["coverage"]["failures"]) == ["provider_rate_limited", "sandbox_start", "verifier_crashed"]
    assert summary["bounds"] == {"missing_as_0": 0.3, "missing_as_1": 0.7}
    assert list(summary["pass_at"]) == ["1"]
    assert summary["wilson_95"] is None
    assert summary["tasksets"]["demo"]["coverage"] == summary["coverage"]


def test_repeats_are_clustered_by_task():
    summary = repeats().summary()
    assert summary["mean_reward"] == 0.5
    assert summary["standard_error"] == pytest.approx(0.2887, abs=5e-5)
    assert summary["pass_at"] == {"1": 0.5, "2": pytest.approx(0.6111, abs=5e-5), "4": pytest.approx(2 / 3)}
    assert summary["coverage"]["text"] == "3 of 3 tasks, 12 of 12 attempts"


def test_pass_at_any_k_that_every_task_has_attempts_for():
    scores = repeats()
    assert scores.pass_at(3) == pytest.approx((1 + 0 + 1) / 3)
    for k in (8, 5, 0):
        with pytest.raises(UserError, match=f"pass@{k} needs {k} valid attempts of every task; the fewest .* is 4"):
            scores.pass_at(k)
    with pytest.raises(UserError, match="is 0"):
        Scores(1).pass_at(1)


def test_success_has_a_threshold():
    scores = Scores(1, success_threshold=0.5)
    for task, reward in (("a", 0.5), ("b", 0.49)):
        scores.add("demo", task, 0, reward)
    assert scores.pass_at(1) == 0.5


@pytest.mark.parametrize(
    ("rewards", "mean", "low", "high"),
    [
        ([1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0], 0.5833, 0.3195, 0.8067),
        ([1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0], 0.75, 0.4677, 0.9111),
        ([0.0], 0.0, 0.0, 0.7935),
        ([1.0], 1.0, 0.2065, 1.0),
    ],
)
def test_single_attempts_that_pass_or_fail_have_a_wilson_interval(rewards, mean, low, high):
    summary = singles(rewards).summary()
    assert summary["mean_reward"] == pytest.approx(mean, abs=5e-5)
    assert summary["wilson_95"] == [pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5)]


def test_partial_rewards_and_repeats_have_no_wilson_interval():
    assert singles([1.0, 0.5]).summary()["wilson_95"] is None
    assert repeats().summary()["wilson_95"] is None


def test_a_run_without_any_result_has_no_numbers():
    for scores in (Scores(2), Scores(2, {"demo": 3})):
        summary = scores.summary()
        assert (summary["mean_reward"], summary["standard_error"], summary["wilson_95"]) == (None, None, None)
        assert summary["pass_at"] == {}
    assert summary["coverage"]["text"] == "0 of 3 tasks, 0 of 6 attempts"
    assert summary["bounds"] == {"missing_as_0": 0.0, "missing_as_1": 1.0}


def test_one_task_has_no_standard_error_and_one_failure_is_singular():
    scores = scored([("t1", 0, 0.25), ("t1", 1, "sandbox_lost")], 2, 1)
    assert scores.summary()["standard_error"] is None
    assert scores.coverage() == "1 of 1 tasks, 1 of 2 attempts; 1 attempt failed: sandbox_lost 1"


def test_surplus_attempts_are_counted_and_not_scored():
    scores = scored([("t1", 0, 0.0), ("t1", 1, 1.0)], 1, 1)
    summary = scores.summary()
    assert (summary["mean_reward"], summary["surplus_attempts"]) == (0.0, 1)


def test_an_attempt_counts_once_and_a_reward_is_finite():
    scores = scored([("t1", 0, 0.0)], 2, 1)
    with pytest.raises(ValueError, match="attempt 0 of task t1 was counted before"):
        scores.add("demo", "t1", 0, 0.0)
    with pytest.raises(ValueError, match="not a finite number"):
        scores.add("demo", "t1", 1, float("nan"))
    assert scores.coverage() == "1 of 1 tasks, 1 of 2 attempts"


def test_tasksets_are_broken_down_with_repeats_of_their_own():
    scores = Scores({"a": 1, "b": 2}, {"a": 2, "b": 1})
    scores.add("a", "1", 0, 1.0)
    scores.add("a", "2", 0, 0.0)
    scores.add("b", "1", 0, 1.0)
    scores.fail("sandbox_start", "b")
    summary = scores.summary()
    assert summary["mean_reward"] == pytest.approx(2 / 3)
    assert summary["coverage"]["text"] == "3 of 3 tasks, 3 of 4 attempts; 1 attempt failed: sandbox_start 1"
    assert summary["tasksets"]["a"]["mean_reward"] == 0.5
    assert summary["tasksets"]["a"]["wilson_95"] is not None
    assert summary["tasksets"]["b"]["coverage"]["text"].startswith("1 of 1 tasks, 1 of 2 attempts; 1 attempt failed")
    assert [(task.taskset, task.task_id, task.valid, task.planned) for task in scores.tasks()] == [
        ("a", "1", 1, 1),
        ("a", "2", 1, 1),
        ("b", "1", 1, 2),
    ]


def test_usage_is_summed_and_unknown_is_not_zero():
    usage = UsageTotals()
    assert usage.summary()["input_tokens"] is None
    usage.add({"input_tokens": 1000, "output_tokens": 100})
    usage.add({"input_tokens": 0, "output_tokens": None})
    assert usage.summary() == {
        "input_tokens": 1000,
        "output_tokens": 100,
        "model_calls": None,
        "unknown": {"output_tokens": 1, "model_calls": 2},
    }


def recorded(outcomes):
    rows = [
        Row("r", "demo", task, attempt, 0, "d", line, outcome, "ok", {"model_calls": 1})
        for line, (task, attempt, outcome) in enumerate(outcomes, 1)
        if not isinstance(outcome, str)
    ]
    failures = [
        Failure("r", "demo", task, attempt, 0, "d", line, "seed", outcome, "no", False)
        for line, (task, attempt, outcome) in enumerate(outcomes, 1)
        if isinstance(outcome, str)
    ]
    return rows, failures


def test_the_recomputed_number_is_the_live_number():
    rows, failures = recorded(FAILED_RUN)
    live, again = scored(FAILED_RUN, 2, 5), score_rows(rows, failures, 2, {"demo": 5})
    assert again.summary() | {"usage": None} == live.summary() | {"usage": None}
    assert again.summary()["usage"]["model_calls"] == 6


def test_what_a_killed_run_left_is_scored_and_continued(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    common = {"rollout_id": "r", "taskset": "demo", "task_digest": "d", "status": "ok"}
    with Journal(path) as journal:
        for task, attempt, try_, reward in [("t1", 0, 1, 1.0), ("t1", 0, 0, 0.0), ("t1", 1, 0, 1.0), ("t2", 0, 0, 0.0)]:
            journal.append({**common, "task_id": task, "attempt": attempt, "try": try_, "reward": reward})
    plan = owed([("demo", "t1", "d"), ("demo", "t2", "d")], 2, load(path))
    scores = score_rows(plan.finished(), [], 2, plan.planned)
    assert list(plan) == [("demo", "t2", 1)]
    assert scores.mean_reward == 0.5
    assert scores.coverage() == "2 of 2 tasks, 3 of 4 attempts"


def test_a_failure_before_a_finished_try_or_beyond_the_repeats_is_none():
    rows, _ = recorded([("t1", 0, 1.0), ("t1", 1, 1.0), ("t1", 2, 1.0)])
    _, failures = recorded([("t1", 0, "sandbox_start"), ("t1", 3, "sandbox_start")])
    scores = score_rows(rows, failures, 2, {"demo": 1})
    assert scores.coverage() == "1 of 1 tasks, 2 of 2 attempts"
    assert scores.surplus == 1
    assert scores.usage.summary()["model_calls"] == 2


def test_ten_thousand_tasks_are_small():
    tracemalloc.start()
    scores = Scores(4, {"demo": 10_000})
    for number in range(10_000):
        for attempt in range(4):
            scores.add("demo", str(number), attempt, attempt / 3)
    json.dumps(scores.summary())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize(("n", "c", "k", "value"), [(4, 2, 2, 5 / 6), (4, 0, 4, 0.0), (4, 4, 1, 1.0), (10, 3, 1, 0.3)])
def test_pass_at_k_by_hand(n, c, k, value):
    assert pass_at_k(n, c, k) == pytest.approx(value)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_wilson_holds_the_share_and_stays_between_0_and_1(pair):
    n, successes = pair
    low, high = wilson(successes, n)
    assert 0.0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1.0


rewards = st.floats(-10, 10) | st.sampled_from([0.0, 1.0, 0.1, 0.3])
outcomes = st.dictionaries(
    st.tuples(st.sampled_from("abcde"), st.integers(0, 3)),
    rewards | st.sampled_from(["sandbox_start", "provider_error"]),
)


@given(outcomes, st.randoms())
def test_no_number_depends_on_the_order_of_the_rows(found, rng: random.Random):
    rows = [(task, attempt, outcome) for (task, attempt), outcome in found.items()]
    mixed = list(rows)
    rng.shuffle(mixed)
    assert json.dumps(scored(rows, 4, 5).summary()) == json.dumps(scored(mixed, 4, 5).summary())


@given(outcomes)
def test_what_is_missing_lies_between_the_bounds(found):
    valid = [outcome for outcome in found.values() if not isinstance(outcome, str)]
    summary = scored([(*key, outcome) for key, outcome in found.items()], 4, 5).summary()
    bounds, attempts = summary["bounds"], summary["coverage"]["attempts"]
    assert bounds["missing_as_1"] - bounds["missing_as_0"] == pytest.approx((20 - len(valid)) / 20)
    assert attempts == {"valid": len(valid), "failed": len(found) - len(valid), "planned": 20}
