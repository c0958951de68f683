"""Signed session cookies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.servers.base import Call, ServerError
from gym.servers.sessions import SessionCookie, Signer

SIGNER = Signer(b"secret")


@given(scope=st.text(), value=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_signed_value_is_read_back_and_fits_a_cookie(scope: str, value: str) -> None:
    signed = SIGNER.sign("agent:a", value)
    assert SIGNER.read("agent:a", signed) == value
    assert signed.isascii()
    assert not set(signed) & set(' ",;\\\r\n\t=')


@pytest.mark.parametrize(
    "alter",
    [
        lambda signed: "",
        lambda signed: ".",
        lambda signed: signed + "0",
        lambda signed: signed[:-1],
        lambda signed: "x" + signed,
        lambda signed: signed.replace(".", ""),
        lambda signed: signed.upper(),
        lambda signed: signed + "ü",
        lambda signed: Signer(b"other").sign("agent:a", "session-1f"),
        lambda signed: SIGNER.sign("agent:b", "session-1f"),
        lambda signed: SIGNER.sign("resources:a", "session-1f"),
    ],
)
def test_what_another_signed_is_refused(alter: object) -> None:
    cookie = SessionCookie(SIGNER, "a", "agent")
    call = Call()
    cookie.issue(call, "session-1f")
    assert cookie.read(call.set_cookies) == "session-1f"
    assert callable(alter)
    with pytest.raises(ServerError) as caught:
        cookie.read({cookie.name: alter(call.set_cookies[cookie.name])})
    assert caught.value.status == 401


def test_no_cookie_is_refused() -> None:
    with pytest.raises(ServerError, match="no session cookie"):
        SessionCookie(SIGNER, "a", "agent").read({"other": "x"})
