"""Who may ask a server what over HTTP.

The run's token opens everything. A session key opens what its session may use: the model servers and tools that it
names, and nothing else; what it asks for is bounded by the key's own end, which is that of the episode. `GET /livez`
is open.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from gym.servers import deadline
from gym.servers.base import Server
from gym.servers.keys import SessionKey

if TYPE_CHECKING:
    from starlette.responses import Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

IDENTITY = "gym.identity"
UNKNOWN = "this server answers only requests that carry the token of its run, or the key of a session that is open"
FOREIGN = "the session's key does not open this"


class Guard:
    """Stands before a server's app; `server` is None for paths of no instance."""

    def __init__(self, app: App, server: Server[Any] | None, token: str) -> None:
        self._app = app
        self._server = server
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it with 401 or 403."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if not (scope["method"] == "GET" and path == "/livez"):
            given = _tokens(scope["headers"])
            if not any(hmac.compare_digest(token, self._token) for token in given):
                verdict = self._by_key(given, path)
                if not isinstance(verdict, SessionKey):
                    return await verdict(scope, receive, send)
                scope[IDENTITY] = verdict.identity
                with deadline.within(verdict.expires_at - time.time()):
                    return await self._app(scope, receive, send)
        return await self._app(scope, receive, send)

    def _by_key(self, given: Sequence[bytes], path: str) -> SessionKey | Response:
        for token in given:
            key = self._server.context.keys.read(token.decode("latin-1")) if self._server else None
            if key is not None and self._server is not None:
                opens = self._server.name in key.instances and self._server.opens_to_keys(path)
                return key if opens else _refused(403, FOREIGN)
        return _refused(401, UNKNOWN)


def _tokens(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    bearer = [value[7:] for name, value in headers if name == b"authorization" and value[:7].lower() == b"bearer "]
    return bearer + [value for name, value in headers if name == b"x-api-key"]


def _refused(status: int, detail: str) -> Response:
    """A refusal that our servers (`detail`) and the clients of model APIs (`error`) can both read."""
    from starlette.responses import Response

    kind = "authentication_error" if status == 401 else "permission_error"
    content = {"detail": detail, "type": "error", "error": {"type": kind, "message": detail}}
    return Response(json.dumps(content), status, media_type="application/json")
