from __future__ import annotations

import pytest

from gym.servers import deadline


def test_an_inner_bound_never_outlives_the_outer_one() -> None:
    assert deadline.remaining() is None
    assert deadline.bounded(5) == 5
    assert deadline.bounded(None) is None
    with deadline.within(10):
        assert 9 < (deadline.remaining() or 0) <= 10
        assert deadline.bounded(3) == 3
        assert (deadline.bounded(300) or 0) <= 10
        with deadline.within(300):
            assert (deadline.remaining() or 0) <= 10
        with deadline.within(None):
            assert (deadline.remaining() or 0) <= 10
        with deadline.of_its_own(30):
            assert (deadline.remaining() or 0) > 29
    assert deadline.remaining() is None


def test_it_travels_in_a_header() -> None:
    assert deadline.to_headers() == {}
    with deadline.within(10):
        assert 9 < (deadline.from_headers(deadline.to_headers()) or 0) <= 10


@pytest.mark.parametrize("headers", [{}, *({deadline.HEADER: text} for text in ("soon", "nan", "inf"))])
def test_no_or_an_unreadable_header_is_no_deadline(headers) -> None:
    assert deadline.from_headers(headers) is None
