"""Task folders made from text, for tests of what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

FIXTURES = Path(__file__).parent / "tasks"
"""Sound task folders, one a feature; each of them runs in tests with Docker."""

WHOLE = {
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM gym-base\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "true\n",
}


def folder(path: Path, toml: str = "", files: Mapping[str, str | None] | None = None) -> Path:
    """Writes a task folder: whole, with the files given in the place of (None: without) those of `WHOLE`."""
    for name, text in {**WHOLE, "task.toml": dedent(toml), **(files or {})}.items():
        if text is not None:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text, encoding="utf-8")
    return path
