"""Which processes that an agent left serve something."""

from __future__ import annotations

import pytest

from gym.harbor.shared import Process, serving

# pid: (parent, session)
TREES: dict[str, tuple[dict[str, tuple[str, str]], set[str], set[str]]] = {
    "nothing runs": ({}, {"9"}, set()),
    "a loop": ({"5": ("1", "5"), "6": ("5", "5")}, set(), set()),
    "a server, its worker, and who starts it": (
        {"5": ("1", "5"), "6": ("5", "5"), "7": ("6", "7"), "8": ("5", "8"), "9": ("1", "9")},
        {"6"},
        {"5", "6", "7", "8"},
    ),
    "one that has lost its parents": ({"5": ("1", "4"), "6": ("1", "4"), "7": ("1", "7")}, {"6"}, {"5", "6"}),
    "no session": ({"5": ("0", "0"), "6": ("0", "0")}, {"6"}, {"6"}),
}


@pytest.mark.parametrize("name", TREES)
def test_a_service_is_all_that_belongs_to_it(name: str) -> None:
    tree, listening, kept = TREES[name]
    found = [Process(pid, parent, session, "x") for pid, (parent, session) in tree.items()]
    assert serving(found, listening) == kept
