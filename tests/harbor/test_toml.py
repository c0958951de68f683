"""The line of every key of a TOML file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.errors import UserError
from gym.harbor.toml import parse

TEXT = '''# [not.a.table]
a = "x # no comment" # a comment
b.c = """
[also.not]
k = 1 \\""" still
"""
d = ["""]""", 'x]', # ]
  { e = 1, "f.g" = [2,
    3] },
]
"quoted key" = 1979-05-27 07:32:00
[t]
u = [[1], []]
[t.v."w.x"]
y = false
[[list]]
z = 1
[list.sub]
z = 2
[[list]]
[[list.inner]]
n = inf
[[list.inner]]
n = -1e3
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("a", 2),
        ("b/c", 3),
        ("d", 7),
        ("d/0", 7),
        ("d/1", 7),
        ("d/2/e", 8),
        ("d/2/f.g", 8),
        ("d/2/f.g/1", 9),
        ("quoted key", 11),
        ("t", 12),
        ("t/u/1", 13),
        ("t/v/w.x/y", 15),
        ("list/0", 16),
        ("list/0/z", 17),
        ("list/0/sub/z", 19),
        ("list/1", 20),
        ("list/1/inner/0/n", 22),
        ("list/1/inner/1/n", 24),
        ("t/absent", 12),
        ("nowhere/at/all", 1),
    ],
)
def test_each_key_has_its_line(key, line) -> None:
    assert parse(TEXT, Path("x.toml")).line(tuple(key.split("/"))) == line


VALUES = st.recursive(
    st.text(max_size=6) | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=3),
    max_leaves=8,
)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",\n".join(map(_inline, value)) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _paths(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = {inner for key, item in items for inner in _paths(item, (*path, str(key)))}
    return below | {path} if path else below


@given(st.dictionaries(st.text("ab.#[]\"'= ", min_size=1, max_size=4), VALUES, max_size=4))
def test_every_key_of_any_file_is_found(data) -> None:
    lines = [f"{_text(key)} = {_inline(value)}" for key, value in data.items()]
    text = "\n\n".join(lines)
    file = parse(text, Path("x.toml"))
    assert file.data == tomllib.loads(text) == data
    assert set(file.lines) == _paths(data)
    line = 1
    for key, written in zip(data, lines, strict=True):
        assert file.line((key,)) == line
        line += written.count("\n") + 2


@pytest.mark.parametrize(
    ("text", "where"), [("a = 1\nb = \n", "x.toml:2"), ("a = 1\na = 2\n", "x.toml:2"), ("[x", "x.toml:1")]
)
def test_what_is_no_toml_is_told_with_its_line(text, where) -> None:
    with pytest.raises(UserError, match="not valid TOML") as caught:
        parse(text, Path("x.toml"))
    assert caught.value.problems[0].where == where
