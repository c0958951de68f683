"""The pages stay true: what they tell a reader to type works, prints what they show, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gym.planning import reference
from tests.conftest import needs
from tests.docs import snippets

PAGES = sorted(snippets.ROOT.glob("docs/**/*.md"))
ALL = [*sorted(snippets.ROOT.glob("*.md")), *PAGES]
RUN = [page for page in PAGES if page.name != "cli.md" and snippets.read(page).commands]
"""Those of cli.md are run with the tests of the command."""
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)\s#]*)(#[^)\s]*)?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(snippets.ROOT))


@pytest.mark.e2e
@pytest.mark.parametrize("path", RUN, ids=name)
def test_the_commands_of_a_page_print_what_it_shows(path: Path, tmp_path: Path) -> None:
    page = snippets.read(path)
    snippets.write(page, tmp_path)
    for command in page.commands:
        done = snippets.run(command.text, tmp_path)
        assert command.output or done.returncode == 0, done.stdout
        assert snippets.missing_from(done.stdout, command.output) == [], done.stdout


@pytest.mark.e2e
def test_the_transcript_of_the_readme_is_that_of_its_run(tmp_path: Path) -> None:
    (command,) = snippets.read(snippets.ROOT / "README.md", "Run").commands
    *_, last = command.text.strip().splitlines()
    done = snippets.run(last.replace(".venv/bin/", ""), tmp_path)
    assert done.returncode == 0, done.stdout
    assert snippets.missing_from(done.stdout, command.output) == [], done.stdout


@pytest.mark.parametrize("section", ["Run", "Test"])
def test_each_command_of_the_readme_stands_by_itself(section: str) -> None:
    (command,) = snippets.read(snippets.ROOT / "README.md", section).commands
    assert command.text.startswith("python3 -m venv .venv\n.venv/bin/python -m pip install ")


@pytest.mark.parametrize("path", [page for page in RUN if "contributing" in page.parts], ids=name)
def test_the_code_of_a_page_keeps_our_style(path: Path, tmp_path: Path) -> None:
    needs("ruff", present=find_spec("ruff") is not None, reason="pip install -c constraints.txt -e '.[test]'")
    snippets.write(snippets.read(path), tmp_path)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check"], ["format", "--check"]):
        config = ["--config", str(snippets.ROOT / "pyproject.toml"), "--no-cache"]
        done = subprocess.run([*ruff, *command, *config, tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_configuration_reference_is_fresh() -> None:
    kept = (snippets.ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    fix = "docs/configuration.md is stale: python -m gym.planning.reference > docs/configuration.md"
    assert kept == reference.render(), fix


def headings(path: Path) -> set[str]:
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_has_every_page() -> None:
    index = (snippets.ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {target for target, _ in LINK.findall(index)}
    assert [name(path) for path in PAGES if name(path).removeprefix("docs/") not in {*linked, "README.md"}] == []


@pytest.mark.parametrize("path", ALL, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    for target, anchor in LINK.findall(text):
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), f"{target} does not exist"
        assert not anchor or anchor in headings(found), f"{target}{anchor}: no such heading"


@pytest.mark.parametrize(
    ("shown", "output", "missing"),
    [
        (["a", "c"], "a\nb\nc\n", ["c"]),
        (["a", "...", "c"], "a\nb\nc\n", []),
        (["c", "...", "a"], "a\nb\nc\n", ["a"]),
        (["b"], "a\nb\n", []),
        (["time 1.5 s"], "time 12.0 s\n", []),
        (["x ... z"], "x y z\n", []),
        (["r/2026-01-01_00-00-00"], "r/2027-02-02_11-11-11\n", []),
        (["1.0"], "1x0\n", ["1.0"]),
        (["  a   1"], "a 1\n", []),
    ],
)
def test_shown_lines_are_compared(shown: list[str], output: str, missing: list[str]) -> None:
    assert snippets.missing_from(output, shown) == missing
