"""Signed session cookies and headers: a session id that only this run could have issued."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import quote, unquote

from gym.servers.base import Call, ServerError


class Signer:
    """Signs names and values with the secret of the run (HMAC-SHA256, hex, cut to 32 characters)."""

    def __init__(self, secret: bytes) -> None:
        self._mac = hmac.new(secret, digestmod=hashlib.sha256)

    def _signature(self, scope: str, value: str) -> str:
        mac = self._mac.copy()
        mac.update(f"{scope}\0{value}".encode())
        return mac.hexdigest()[:32]

    def sign(self, scope: str, value: str) -> str:
        """`<value>.<signature>`, fit for a cookie or a header; a signature holds only for its scope."""
        text = quote(value, safe="")
        return f"{text}.{self._signature(scope, text)}"

    def read(self, scope: str, signed: str) -> str | None:
        """The value, or None where the signature is not ours."""
        text, _, signature = signed.rpartition(".")
        expected = self._signature(scope, text)
        return unquote(text) if hmac.compare_digest(signature.encode(), expected.encode()) else None


class SessionCookie:
    """The session cookie of one server instance."""

    def __init__(self, signer: Signer, instance: str, kind: str) -> None:
        self._signer = signer
        self._scope = f"{kind}:{instance}"
        self.name = f"gym_{kind}_session"

    def issue(self, call: Call, session_id: str) -> None:
        """Sets the cookie on the answer of `call`."""
        call.set_cookies[self.name] = self._signer.sign(self._scope, session_id)

    def read(self, cookies: Mapping[str, str]) -> str:
        """The session id that the cookies carry.

        Raises:
            ServerError: 401 where there is no cookie, or one that this run did not sign for this server.
        """
        signed = cookies.get(self.name)
        if signed is None:
            raise ServerError(401, "no session cookie: seed a session first")
        session_id = self._signer.read(self._scope, signed)
        if session_id is None:
            raise ServerError(401, "the session cookie was not issued by this server")
        return session_id


class SessionHeader:
    """The signed session id of one server instance as a header, for clients that keep headers and no cookies.

    It is worth nothing as a cookie: what it opens is the tools, never the session's verification or close.
    """

    NAMES = ("x-gym-session-token", "x-nemo-gym-session-token")

    def __init__(self, signer: Signer, instance: str) -> None:
        self._signer = signer
        self._scope = f"header:{instance}"

    def issue(self, session_id: str) -> dict[str, str]:
        """The header to send with every request."""
        return {self.NAMES[0]: self._signer.sign(self._scope, session_id)}

    def read(self, headers: Mapping[str, str]) -> str:
        """The session id that the headers carry. Header names are lower case.

        Raises:
            ServerError: 401 where there is no token, 403 for one that this run did not sign for this server.
        """
        signed = next((headers[name] for name in self.NAMES if name in headers), None)
        if signed is None:
            raise ServerError(401, f"no session: send the header {self.NAMES[0]} that seed_session gave")
        session_id = self._signer.read(self._scope, signed)
        if session_id is None:
            raise ServerError(403, f"the {self.NAMES[0]} was not issued by this server")
        return session_id
