"""What all tests share: small projects in a folder of their own."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Project = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Writes files into a project folder and makes it the working directory, where it overlays the installed one."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return tmp_path

    monkeypatch.chdir(tmp_path)
    return write


def needs(part: str, *, present: bool, reason: str) -> None:
    """Skips a test whose part is missing, with the reason; in CI that is a failure.

    Args:
        part: What is missing.
        present: Whether it is there.
        reason: How to get it.
    """
    if present:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{part} is missing in CI: {reason}")
    pytest.skip(f"{part} is missing: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of two processes, one runs all tests of a file (`--dist loadgroup`); those of a real harness are a file each."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        harness = parameters.params.get("harness") if parameters is not None else None
        group = f"{item.path}:{getattr(harness, 'harness', '')}"
        item.add_marker(pytest.mark.xdist_group(group))
