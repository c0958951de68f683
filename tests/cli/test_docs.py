"""docs/cli.md: what it shows is what happens, and no verb or flag is left out."""

from __future__ import annotations

import pytest

from gym.cli.main import VERBS
from tests.docs import snippets

PATH = snippets.ROOT / "docs" / "cli.md"
PAGE = snippets.read(PATH)


@pytest.mark.e2e
@pytest.mark.parametrize("command", PAGE.commands, ids=lambda command: command.text.splitlines()[0])
def test_a_command_of_the_page_works(command, tmp_path) -> None:
    done = snippets.run(command.text, tmp_path)
    assert done.returncode == 0, done.stdout
    assert snippets.missing_from(done.stdout, command.output) == [], done.stdout


def test_the_page_has_every_verb_and_every_flag() -> None:
    text = PATH.read_text(encoding="utf-8")
    for verb in VERBS:
        assert all(word in text for word in verb.name.split()), verb.name
        assert not [flag.name for flag in verb.flags if flag.name not in text]
