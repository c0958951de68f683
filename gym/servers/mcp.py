"""The tools of a resources server over MCP (streamable HTTP).

Stateless: every request names its session by a signed header, so nothing is kept between requests, and no client is
told of an MCP session. An answer is JSON; where a tool takes long, it is an event stream whose comments keep the
connection open. There are tools and nothing else: any other method is answered with `Method not found`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

import gym
from gym.apis import sse
from gym.errors import did_you_mean
from gym.failures import EpisodeFailure
from gym.servers.base import ServerError, describe, one_line
from gym.servers.guard import IDENTITY, Receive, Scope, Send
from gym.servers.tools import tool_arguments, tool_schema
from gym.servers.waiting import background, ended

if TYPE_CHECKING:
    from gym.servers.resources import ResourcesServer

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Revisions that we speak, the latest first: it is offered to a client that asks for one we do not know."""

KEEP_ALIVE_SECONDS = 15.0
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
Message = dict[str, Any]
_Answers = Message | list[Message] | None
log = logging.getLogger(__name__)


class McpError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = {"code": code, "message": message}


class McpEndpoint:
    """The ASGI app at `/mcp` of a resources server."""

    def __init__(self, server: ResourcesServer[Any, Any]) -> None:
        self._server = server
        self._functions = server.tools()
        self._listed = [_listed(tool_schema(function)) for function in self._functions.values()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request."""
        request = Request(scope, receive)
        try:
            answer = await self._accepted(request)
        except ClientDisconnect:
            return
        if isinstance(answer, Response):
            await answer(scope, receive, send)
        else:
            await _serve(answer, request, send)

    async def _accepted(self, request: Request) -> Response | asyncio.Task[_Answers]:
        """The work that a request asks for, or the answer to one that asks for none.

        There is no stream to `GET`, and nothing that `DELETE` would have to end.
        """
        if request.method == "DELETE":
            return Response()
        if request.method != "POST":
            refusal = _refused(405, INVALID_REQUEST, "only POST is served here")
            refusal.headers["allow"] = "POST, DELETE"
            return refusal
        try:
            session_id = self._session_id(request)
            said = json.loads(await request.body())
        except ServerError as error:
            return _refused(error.status, INVALID_REQUEST, error.detail)
        except ValueError as error:
            return _refused(400, PARSE_ERROR, f"the body is no JSON: {one_line(error)}")
        return background(self._answers(session_id, said))

    def _session_id(self, request: Request) -> str:
        """The session that the header names; a session's own key opens no other one.

        Raises:
            ServerError: 401 or 403.
        """
        session_id = self._server.session_header.read(request.headers)
        identity = request.scope.get(IDENTITY)
        if identity is not None and identity.session != session_id:
            raise ServerError(403, "the session's key and its token belong to two sessions")
        return session_id

    async def _answers(self, session_id: str, said: Any) -> _Answers:
        """The answer to a message, or the answers to a batch of them, as protocol version 2025-03-26 has it."""
        if not isinstance(said, list) or not said:
            return await self._answer(session_id, said)
        answers = [await self._answer(session_id, message) for message in said]
        return [answer for answer in answers if answer is not None] or None

    async def _answer(self, session_id: str, message: Any) -> Message | None:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _error(None, INVALID_REQUEST, "the body is no JSON-RPC 2.0 message")
        if "method" not in message or "id" not in message:
            return None  # an answer to something that nobody asked, or a notification
        number = message["id"]
        if not isinstance(number, int | str) or isinstance(number, bool):
            return _error(None, INVALID_REQUEST, "the id of a request is an integer or a string")
        try:
            result = await self._result(session_id, message["method"], message.get("params") or {})
            return {"jsonrpc": "2.0", "id": number, "result": result}
        except McpError as error:
            return {"jsonrpc": "2.0", "id": number, "error": error.answer}
        except Exception as error:
            log.exception("%s/mcp failed", self._server.name)
            return _error(number, INTERNAL_ERROR, one_line(error))

    async def _result(self, session_id: str, method: str, params: Any) -> Message:
        try:
            session = self._server.session_of(session_id)
        except ServerError as error:
            raise McpError(INVALID_REQUEST, error.detail) from error
        if not isinstance(params, dict):
            raise McpError(INVALID_PARAMS, "`params` is no object")
        match method:
            case "initialize":
                return self._initialized(params)
            case "ping":
                return {}
            case "tools/list":
                return {"tools": self._listed}
            case "tools/call":
                return await self._called(session, params)
            case _:
                raise McpError(METHOD_NOT_FOUND, f"no method `{method}`: this server has tools, and nothing else")

    def _initialized(self, params: Message) -> Message:
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": self._server.name, "version": gym.__version__},
        }

    async def _called(self, session: Any, params: Message) -> Message:
        """A tool's answer; what the model can mend, and what failed, as an answer that is marked as an error."""
        name, arguments = str(params.get("name")), params.get("arguments") or {}
        function = self._functions.get(name)
        if function is None:
            near = did_you_mean(name, self._functions) or f"the tools are: {', '.join(self._functions)}"
            raise McpError(INVALID_PARAMS, f"there is no tool `{name}`; {near}")
        try:
            got = await self._server.call_tool(session, function, tool_arguments(function).model_validate(arguments))
        except ValidationError as error:
            return _told(f"`{name}` refused the call: {describe(error)}", failed=True)
        except ServerError as error:
            return _told(f"`{name}` refused the call: {error.detail}", failed=True)
        except EpisodeFailure as failure:
            return _told(f"`{name}` failed: {failure.message}", failed=True)
        if isinstance(got, dict):
            return {**_told(json.dumps(got, ensure_ascii=False)), "structuredContent": got}
        return _told(got if isinstance(got, str) else json.dumps(got, ensure_ascii=False))


def _listed(schema: Mapping[str, Any]) -> Message:
    """A Responses function tool as MCP lists it."""
    return {"name": schema["name"], "description": schema["description"], "inputSchema": schema["parameters"]}


def _told(text: str, *, failed: bool = False) -> Message:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _error(number: Any, code: int, message: str) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _refused(status: int, code: int, message: str) -> Response:
    return _sent(_error(None, code, message), status)


def _sent(answers: _Answers, status: int) -> Response:
    content = json.dumps(answers, separators=(",", ":")) if answers is not None else None
    return Response(content, status, media_type="application/json")


async def _serve(work: asyncio.Task[_Answers], request: Request, send: Send) -> None:
    """Sends what was worked for. A client that goes away cancels it."""
    gone = background(_disconnected(request.receive))
    patience = KEEP_ALIVE_SECONDS if sse.MEDIA_TYPE in request.headers.get("accept", "") else None
    streams = False
    try:
        while not work.done():
            await asyncio.wait([work, gone], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return
            if not work.done():
                if not streams:
                    headers = [(b"content-type", sse.MEDIA_TYPE.encode()), (b"cache-control", b"no-cache")]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    streams = True
                await send({"type": "http.response.body", "body": sse.KEEP_ALIVE, "more_body": True})
        answers = work.result()
        if streams:
            events = b"".join(sse.encoded(answer, "message") for answer in _each(answers))
            await send({"type": "http.response.body", "body": events})
        else:
            malformed = isinstance(answers, dict) and answers["id"] is None
            answer = _sent(answers, 202 if answers is None else 400 if malformed else 200)
            await answer(request.scope, request.receive, send)
    finally:
        gone.cancel()
        await ended(work)


def _each(answers: _Answers) -> list[Message]:
    return answers if isinstance(answers, list) else [answers] if answers is not None else []


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
