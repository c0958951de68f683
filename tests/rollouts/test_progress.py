"""What a user sees of a run: words from a sandbox steer no terminal."""

from __future__ import annotations

import io
import logging

import pytest

from gym.harness.evidence import shortened
from gym.rollouts.job import Job
from gym.rollouts.progress import Display
from gym.rollouts.report import warnings_to_stderr
from gym.servers.contract import Failure

FORGED = "\x1b]0;owned\x07\x1b[31m red\r\nHidden \x9b2J\u202e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("file", [io.StringIO(), Terminal()])
def test_a_failure_is_shown_without_control_characters(file: io.StringIO) -> None:
    failure = Failure(failure_reason=FORGED, terminal=True, failure_kind="agent_error", stage="agent")
    with Display(2, file=file) as display:
        display.started()
        display.failed(Job({}, "t", FORGED, 0, "d"), failure, will_retry=False)
        display.note(FORGED)
        display.progress(f"[red]{FORGED}")
    text = file.getvalue()
    assert "failed in agent: agent_error: ]0;owned [31m red Hidden 2J" in " ".join(text.split())
    assert not set(text) & set("\x07\x9b\u202e")
    assert "\x1b]" not in text
    assert "\x1b[31m" not in text


def test_nor_are_warnings_or_the_ends_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    handlers = logging.getLogger().handlers
    before = list(handlers)
    warnings_to_stderr()
    try:
        logging.getLogger("gym.test").warning("it said %s", FORGED)
    finally:
        handlers[:] = before
    assert capsys.readouterr().err.rstrip("\n").isprintable()
    assert shortened(FORGED).isprintable()
