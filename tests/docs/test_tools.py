"""The page on tools: its server is one, and its schema is what the model is shown."""

from __future__ import annotations

import importlib
import json
import re

import pytest

from gym.servers.resources import tool_schema
from tests.docs import snippets


def test_the_schema_on_the_page_is_the_schema_of_its_tool(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = snippets.ROOT / "docs" / "tools.md"
    snippets.write(snippets.read(path), tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shelf = importlib.import_module("resources_servers.shelf.app").Shelf
    shown = re.search(r"^```json\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert tool_schema(shelf.tools()["put_book"]) == json.loads(shown[1])
    assert set(shelf.tools()) == {"put_book", "titles"}
