from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gym.sandbox.output import Capture


@given(st.lists(st.binary(max_size=50)), st.integers(0, 200))
def test_beginning_and_end_are_kept(chunks: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for chunk in chunks:
        capture.feed(chunk)
    whole = b"".join(chunks)
    value = capture.value()
    assert capture.left_out == max(0, len(whole) - limit)
    if len(whole) <= limit:
        assert value == whole
    else:
        head, tail = limit - limit // 2, limit // 2
        mark = b"\n[... %d bytes left out ...]\n" % (len(whole) - limit)
        assert value == whole[:head] + mark + whole[len(whole) - tail :]


def test_memory_is_bounded() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.feed(bytes(65536))
    assert len(capture._tail) < 200_000
    assert capture.left_out == 65_536_000 - 1000
