"""Metadata of sandboxes."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.sandbox.providers.opensandbox.labels import Process, metadata, value

# What a deployment accepts, as Kubernetes does.
VALID = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@given(st.text(max_size=100))
def test_any_text_becomes_a_valid_value(text: str) -> None:
    assert VALID.fullmatch(value(text))


@given(st.lists(st.text(max_size=80), unique=True, max_size=6))
def test_different_texts_stay_different(texts: list[str]) -> None:
    assert len({value(text) for text in texts}) == len(texts)


@pytest.mark.parametrize("text", ["", "7-0", "a.b_c-d", "x" * 63])
def test_what_is_valid_stays_as_it_is(text: str) -> None:
    assert value(text) == text


def test_names_are_rewritten_too() -> None:
    assert list(metadata({"opensandbox.io/id": "1", "rollout": "7/0"})) == [value("opensandbox.io/id"), "rollout"]
    assert not value("opensandbox.io/id").startswith("opensandbox.io/")


def test_the_maker_of_a_sandbox_is_told_by_its_metadata() -> None:
    current = Process.current()
    labels = current.labels()
    assert all(VALID.fullmatch(text) for text in labels.values())
    assert not Process.of(labels).gone(current)  # type: ignore[union-attr]
    ended = {
        "another start of the same number": {"gym-process": f"{os.getpid()}.1"},
        "no such process": {"gym-process": "4194305.1"},
        "before this machine's last start": {"gym-boot": "another"},
    }
    for case, change in ended.items():
        assert Process.of({**labels, **change}).gone(current), case  # type: ignore[union-attr]
    unknown = {
        "another machine": {"gym-machine": "another", "gym-boot": "another"},
        "another container": {"gym-pids": "another", "gym-process": "4194305.1"},
    }
    for case, change in unknown.items():
        assert not Process.of({**labels, **change}).gone(current), case  # type: ignore[union-attr]
    assert Process.of({"gym-process": "x"}) is None
