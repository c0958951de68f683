"""Overrides in messages: as they were typed, but for secrets."""

from __future__ import annotations

import pytest

from gym.composition.overrides import as_typed, parse


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("max_policy_tokens=abc", "max_policy_tokens=abc"),
        ("++policy_model.max_output_tokens=abc", "++policy_model.max_output_tokens=abc"),
        ("policy_api_key=abc", "policy_api_key=***"),
        ("policy_api_kye=abc", "policy_api_kye=***"),
        ("+x.access_token=abc", "+x.access_token=***"),
        ("+x.access_tokn=abc", "+x.access_tokn=***"),
        ("+x.access_tokens=abc", "+x.access_tokens=***"),
    ],
)
def test_numbers_of_tokens_are_shown_and_secrets_are_not(typed: str, shown: str) -> None:
    overrides, problems = parse([typed])
    assert not problems
    assert as_typed(overrides.values[0]) == f"command line: {shown}"
