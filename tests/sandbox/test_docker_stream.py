"""The marks in a stream, however it is cut into chunks; and words that are not UTF-8."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.sandbox.providers.docker.scripts import COMMAND, as_utf8, wrapper
from gym.sandbox.providers.docker.stream import Marked

TOKEN = b"abcabd"
SOME = st.binary(max_size=40) | st.text("abcd\n", max_size=40).map(str.encode)


@given(SOME.filter(lambda content: TOKEN not in content), st.booleans(), st.booleans(), st.lists(st.integers(1, 7)))
def test_marks_are_found_and_nothing_else_is_lost(content: bytes, begins: bool, ends: bool, cuts: list[int]) -> None:
    stream = (TOKEN + b"\n" if begins else b"") + content + (TOKEN + b" 3 oom\nlater" if ends else b"")
    # The content and the token that follows it may form an earlier token.
    if stream.find(TOKEN, len(TOKEN) if begins else 0) not in (-1, len(stream) - len(TOKEN + b" 3 oom\nlater")):
        return
    seen = bytearray()
    marked = Marked(TOKEN, seen.extend)
    rest = stream
    for cut in cuts:
        marked.feed(rest[:cut])
        rest = rest[cut:]
    marked.feed(rest)
    marked.finish()
    assert bytes(seen) == content
    assert marked.trailer == (b"3 oom" if ends else None)
    assert marked.begun == (begins or ends)


@pytest.mark.parametrize(
    "words",
    [
        ["plain", ""],
        ["ünï", "a b'\"$x\n"],
        ["\udcff\udc80", "", "x\n\n", "\\0101 %b %s"],
        ["\udcff\n"],
        ["-n", "\udcfe"],
    ],
)
def test_words_arrive_as_they_are(words: list[str]) -> None:
    argv = as_utf8("/", ["printf", "%s|", *words], wrapper(f"{COMMAND} </dev/null"))
    for word in argv:
        word.encode()
    done = subprocess.run(argv, input=b"token\n", capture_output=True, check=False)
    expected = b"".join(word.encode("utf-8", "surrogateescape") + b"|" for word in words)
    assert done.stdout == expected + b"token 0 \n"
    assert done.stderr == b"token\ntoken 0 \n"
    assert done.returncode == 0
