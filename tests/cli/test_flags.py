"""Flags become overrides that Hydra reads back as they were typed."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from gym.cli import flags
from gym.cli.flags import combined, quoted
from gym.errors import UserError

PARSER = OverridesParser.create()
AWKWARD = st.text(st.sampled_from("ab1'\"\\${}[](),:=+~ \t\n#@%é.-?"))
OUTPUT = flags.Flag("--output", "", key="output")


@settings(max_examples=500, deadline=None)
@given(AWKWARD | st.text())
@example("\\\n")
@example("a\\")
@example("\\${x}")
@example("it's a, b=c")
@example("null")
@example("12")
@example("???x")
def test_a_quoted_text_means_itself_to_hydra_and_to_omegaconf(text: str) -> None:
    assume(text != "???")  # OmegaConf's own word for a value that is missing
    override = PARSER.parse_override(f"key={quoted(text)}")
    assert not override.is_sweep_override()
    assert OmegaConf.create({"key": override.value()}).key == text


@pytest.mark.parametrize(
    ("flag", "value", "line"),
    [
        (flags.LIMIT, "3", "limit=3"),
        (flags.LIMIT, "null", "limit=null"),
        (flags.LIMIT, "three", "limit='three'"),
        (flags.MODEL, "3", "policy_model_name='3'"),
        (flags.AGENT, "codex/fast", "agent='codex/fast'"),
        (flags.UNSUPPORTED, True, "allow_unsupported_pairing=true"),
    ],
)
def test_a_flag_is_an_override_of_its_kind(flag, value, line) -> None:
    assert flag.override(value) == line


@pytest.mark.parametrize(
    ("given", "words", "lines"),
    [
        ([], ["a=1", "~b"], ["a=1", "~b"]),
        ([(flags.LIMIT, "3")], ["a=1"], ["a=1", "limit=3"]),
        ([(flags.LIMIT, "3")], ["++limit=3"], ["++limit=3"]),
        ([(OUTPUT, "a b")], ["output='a b'"], ["output='a b'"]),
        ([(flags.AGENT, "pi")], ["agent=pi"], ["agent=pi"]),
    ],
)
def test_flags_and_overrides_are_joined(given, words, lines) -> None:
    assert combined(given, words) == lines


@pytest.mark.parametrize(
    ("given", "word", "message"),
    [
        ((flags.LIMIT, "3"), "limit=4", "`--limit 3` and `limit=4` set `limit` to different values"),
        ((flags.LIMIT, "3"), "~limit", "`--limit 3` and `~limit`"),
        ((flags.LIMIT, "3"), "limit=3,4", "`--limit 3` and `limit=3,4`"),
        ((flags.MODEL, "3"), "policy_model_name=3", "`--model 3` and `policy_model_name=3`"),
        ((flags.UNSUPPORTED, True), "+allow_unsupported_pairing=false", "`--allow-unsupported-pairing` and"),
        ((flags.MODEL_KEY, "one"), "policy_api_key=two", "`--model-api-key ***` and `policy_api_key=***`"),
    ],
)
def test_a_flag_and_an_override_that_differ_are_refused(given, word, message) -> None:
    with pytest.raises(UserError, match="keep one of them") as refused:
        combined([given], [word])
    assert message in str(refused.value)
