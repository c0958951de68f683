"""What a run says of the tries of a rollout, and the names that follow from it."""

from __future__ import annotations

import pytest

from gym.servers.contract import RUN_HEADER, EpisodeId
from gym.servers.tries import LOST_HEADER, Tries

FIRST, THIRD = EpisodeId(rollout_id="r1"), EpisodeId(rollout_id="r1", attempt=2)


@pytest.mark.parametrize(
    ("headers", "tries"),
    [
        ({}, Tries()),
        ({RUN_HEADER: "a"}, Tries("a", [])),
        ({RUN_HEADER: "a", LOST_HEADER: "1,0"}, Tries("a", [0, 1])),
        ({RUN_HEADER: "a", LOST_HEADER: "x, 1;-2 99999999999"}, Tries("a", [1, 2])),
        ({LOST_HEADER: "0"}, Tries()),  # without a name the ids of that try cannot be told
    ],
)
def test_what_is_read(headers: dict[str, str], tries: Tries) -> None:
    assert Tries.from_headers(headers) == tries
    assert Tries.from_headers(tries.to_headers()) == tries


def test_only_earlier_tries_can_be_lost() -> None:
    assert Tries("a", [0, 1, 2, 7]).lost_before(THIRD) == [FIRST, EpisodeId(rollout_id="r1", attempt=1)]
    assert Tries("a", [0]).lost_before(FIRST) == []


def test_names_are_the_same_for_the_same_try_of_the_same_run_only() -> None:
    named = [Tries("a"), Tries("a", [0]), Tries("b"), Tries(), Tries()]
    assert named[0].session_name(FIRST) == named[1].session_name(FIRST)
    assert len({tries.session_name(episode) for tries in named for episode in (FIRST, THIRD)}) == 8
