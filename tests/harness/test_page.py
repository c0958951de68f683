"""The harness on the page docs/harnesses.md, as it stands there."""

from __future__ import annotations

from pathlib import Path

from gym.sandbox.providers.local.bubblewrap import probe
from tests.conftest import needs
from tests.docs import snippets


def test_the_harness_of_the_page(tmp_path: Path) -> None:
    found = probe()
    needs("bubblewrap", present=not isinstance(found, str), reason=str(found))
    page = snippets.read(snippets.ROOT / "docs" / "harnesses.md", "Add a harness")
    snippets.write(page, tmp_path)
    (command,) = page.commands
    done = snippets.run(command.text, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "coverage       2 of 2 tasks, 2 of 2 attempts" in done.stdout
    assert "mean reward    1.0000" in done.stdout
