from __future__ import annotations

import time

import pytest

from gym.servers.keys import Identity, KeyRing

MINE = Identity("counting.two.0", "agent-session-1", 2, "the run")


def test_a_key_names_its_session_and_opens_what_it_says() -> None:
    ring = KeyRing()
    key = ring.read(ring.issue(MINE, ["policy_model"]))
    assert key is not None
    assert key.identity == MINE
    assert key.instances == {"policy_model"}


def test_processes_of_one_run_read_each_others_keys() -> None:
    assert KeyRing(b"one run").read(KeyRing(b"one run").issue(MINE, [])) is not None
    assert KeyRing(b"one run").read(KeyRing(b"another").issue(MINE, [])) is None


def test_a_key_dies_with_its_session_and_with_its_time() -> None:
    ring = KeyRing()
    key, other = ring.issue(MINE, ["m"]), ring.issue(Identity("r", "s2"), ["m"])
    ring.revoke(MINE.session)
    assert ring.read(key) is None
    assert ring.read(other) is not None
    assert ring.read(ring.issue(Identity("r", "s3"), ["m"], seconds=0)) is None


def test_the_keys_of_a_process_are_revoked_together() -> None:
    mine, other = KeyRing(b"one run"), KeyRing(b"one run")
    mine.issuer, other.issuer = "agent-1", "agent-2"
    keys = [mine.issue(MINE, ["m"]), mine.issue(Identity("r", "s2"), ["m"]), other.issue(Identity("r", "s3"), ["m"])]
    other.learn("agent-1", time.time() + 60)
    assert [other.read(key) is not None for key in keys] == [False, False, True]


@pytest.mark.parametrize("key", ["", "gym-", "gym-.", "gym-a.b", "Bearer x", "gym-é.é", "sk-123.456"])
def test_what_is_no_key_is_refused(key) -> None:
    assert KeyRing().read(key) is None


@pytest.mark.parametrize("place", range(0, 120, 7))
def test_a_changed_key_is_refused(place) -> None:
    ring = KeyRing()
    key = ring.issue(MINE, ["policy_model"])
    place = 4 + place % (len(key) - 4)
    changed = key[:place] + ("A" if key[place] != "A" else "B") + key[place + 1 :]
    assert ring.read(changed) is None
