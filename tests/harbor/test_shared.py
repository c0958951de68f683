"""Which processes that an agent left serve something, and which programs are the image's."""

from __future__ import annotations

import pytest

from gym.harbor.programs import Programs
from gym.harbor.shared import Process, connections, serving
from gym.sandbox.interface import Change

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


# As the kernel tells them: a server, its client here and its end of that, one elsewhere, and one with no server.
TCP = """table tcp
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1FBB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0100007F:9C40 0100007F:1FBB 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1
   2: 0100007F:1FBB 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 20 4 30 10 -1
   3: 020011AC:9C41 010011AC:1FBB 01 00000000:00000000 00:00000000 00000000     0        0 14 1 0 20 4 30 10 -1
   4: 0100007F:9C42 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 15 1 0 20 4 30 10 -1
   5: 0100007F:9C43 0100007F:1FBB 06 00000000:00000000 00:00000000 00000000     0        0 16 1 0 20 4 30 10 -1
"""


def test_a_client_of_a_server_here_is_connected() -> None:
    assert connections(TCP) == {"12"}


# What was changed, and where the image's own is then.
CHANGED: dict[str, tuple[dict[str, Change], str]] = {
    "nothing": ({}, "/usr/local/bin/ls"),
    "it is another": ({"/usr/local/bin/ls": "changed"}, "/usr/local/bin/ls"),
    "it is gone": ({"/usr/local/bin/ls": "removed"}, "/usr/bin/ls"),
    "so is what the next leads to": ({"/usr/local/bin/ls": "removed", "/usr/bin/box": "changed"}, "/sbin/ls"),
    "all are": (
        {"/usr/local/bin/ls": "removed", "/usr/bin/ls": "changed", "/sbin/ls": "removed"},
        "/usr/local/bin/ls",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_tool_that_was_removed_gives_way_to_the_next_of_the_image(name: str) -> None:
    changed, wanted = CHANGED[name]
    behind = {"ls": (("/usr/bin/ls", "/etc/alternatives/ls", "/usr/bin/box"), ("/sbin/ls",))}
    assert Programs({"ls": "/usr/local/bin/ls"}, {}, frozenset(), behind).place("ls", changed) == wanted
