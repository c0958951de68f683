"""What a verifier may leave as its reward, and what becomes of it."""

from __future__ import annotations

import pytest

from gym.failures import EpisodeFailure
from gym.harbor.rewards import missed_gate, of_task, one_reward, read_rewards, report_file

READ = [
    (b'{"reward": 1}', None, {"reward": 1.0}),
    (b'{"a": 0, "b": -1.5e3}', b"1", {"a": 0.0, "b": -1500.0}),
    (None, b"1", {"reward": 1.0}),
    (None, b" 0.25\n", {"reward": 0.25}),
    (None, b"+.5", {"reward": 0.5}),
]
REFUSED = [
    (None, None, "reward_missing"),
    (b"", b"1", "reward_empty"),
    (None, b" \n", "reward_empty"),
    (None, b"nan", "reward_unreadable"),
    (None, b"inf", "reward_unreadable"),
    (None, b"1e999", "reward_unreadable"),
    (None, b"1_0", "reward_unreadable"),
    (None, "\u0661".encode(), "reward_unreadable"),
    (None, b"1 0", "reward_unreadable"),
    (None, b"true", "reward_unreadable"),
    (b"1", None, "reward_unreadable"),
    (b"{}", None, "reward_unreadable"),
    (b"{", None, "reward_unreadable"),
    (b"\xff", None, "reward_unreadable"),
    (b"[" * 100_000, None, "reward_unreadable"),
    (b'{"a": "1"}', None, "reward_unreadable"),
    (b'{"a": true}', None, "reward_unreadable"),
    (b'{"a": null}', None, "reward_unreadable"),
    (b'{"a": {"b": 1}}', None, "reward_unreadable"),
    (b'{"a": NaN}', None, "reward_unreadable"),
    (b'{"a": 1e999}', None, "reward_unreadable"),
    (b'{"a": 1%s}' % (b"0" * 400), None, "reward_unreadable"),
    (b'{"a": 0, "a": 1}', None, "reward_unreadable"),
]


@pytest.mark.parametrize(("as_json", "as_text", "rewards"), READ)
def test_rewards_are_read(as_json: bytes | None, as_text: bytes | None, rewards: dict[str, float]) -> None:
    assert read_rewards(as_json, as_text) == rewards


@pytest.mark.parametrize(("as_json", "as_text", "kind"), REFUSED)
def test_a_reward_is_never_made_up(as_json: bytes | None, as_text: bytes | None, kind: str) -> None:
    with pytest.raises(EpisodeFailure) as failed:
        read_rewards(as_json, as_text)
    assert (failed.value.kind, failed.value.stage) == (kind, "verification")


@pytest.mark.parametrize(
    ("rewards", "one"), [({"reward": 0.5, "x": 9.0}, 0.5), ({"a": 1.0, "b": 0.0}, 0.5), ({"only": 0.25}, 0.25)]
)
def test_the_one_reward_of_an_episode(rewards: dict[str, float], one: float) -> None:
    assert one_reward(rewards) == one


def test_rewards_of_steps_become_those_of_the_task() -> None:
    steps = [{"reward": 1.0, "tidy": 1.0}, {"reward": 0.0}]
    assert of_task(steps, "mean") == {"reward": 0.5, "tidy": 0.5}
    assert of_task(steps, "final") == {"reward": 0.0}


@pytest.mark.parametrize(
    ("gate", "missed"),
    [
        ({}, None),
        ({"reward": 0.5}, None),
        ({"reward": 0.5, "tidy": 1.0}, "tidy is missing, and 1 is asked for"),
        ({"reward": 0.75}, "reward is 0.5, and 0.75 is asked for"),
    ],
)
def test_gates(gate: dict[str, float], missed: str | None) -> None:
    assert missed_gate({"reward": 0.5}, gate) == missed


def test_the_report_that_a_test_script_asks_for() -> None:
    assert report_file("uvx pytest --ctrf /logs/verifier/ctrf.json -rA") == "/logs/verifier/ctrf.json"
    assert report_file('pytest --ctrf="/x y" a') == "/x"
    assert report_file("pytest -rA") is None
