"""A server as a FastAPI app: the same handlers, refusals and cookies that a call in-process meets.

This is the one module that imports FastAPI; it is imported where something is really served.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from gym.failures import EpisodeFailure
from gym.sandbox.waiting import uncancelled
from gym.servers import deadline, rollout_path
from gym.servers.base import Call, Reply, Route, Server, describe_items, unexpected
from gym.servers.contract import ROLLOUT_HEADER
from gym.servers.guard import IDENTITY, App, Guard, Receive, Scope, Send
from gym.servers.waiting import background, ended
from gym.servers.wire import dumped

CLIENT_CLOSED_REQUEST = 499
log = logging.getLogger(__name__)


def build_app(server: Server[Any]) -> App:
    """The ASGI app of a server: `POST` on each of its routes, `GET /` and `/livez`, and `/openapi.json`.

    All but `GET /livez` need the run's token: `Authorization: Bearer <token>` or `x-api-key: <token>`.
    """
    app = FastAPI(title=server.name, docs_url=None, redoc_url=None, redirect_slashes=False)
    for route in server.routes.values():
        if route.over_http is not None:
            endpoint = _as_it_is(f"{server.name}{route.path}", route.over_http)
            app.add_api_route(route.path, endpoint, methods=[route.method], response_model=None)
            continue
        app.add_api_route(
            route.path,
            _endpoint(server.name, route),
            methods=["POST"],
            response_model=None,
            responses={200: {"model": route.answer}} if _is_model(route.answer) else None,
        )
    for path, served in server.asgi_routes().items():
        app.add_route(path, served, methods=None)  # type: ignore[arg-type]  # an object that is an ASGI app
    for path in ("/", "/livez"):
        app.add_api_route(path, _alive, methods=["GET"], response_model=None)
    app.add_exception_handler(RequestValidationError, _refuse_body)
    app.add_exception_handler(HTTPException, _refuse_request)
    guarded = Guard(app, server, server.context.client.token)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await guarded(_without_rollout(scope), receive, send)

    return serve


def build_host(servers: Mapping[str, Server[Any]], token: str) -> App:
    """The ASGI app of many servers, each under `/<instance>/`. Their apps are built when they are first asked."""
    apps: dict[str, App] = {}
    nowhere = Guard(_not_found, None, token)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].removeprefix(scope.get("root_path", "")).split("/", 2)[1]
        if name not in apps and name in servers:
            apps[name] = build_app(servers[name])
        inner = {**scope, "root_path": f"{scope.get('root_path', '')}/{name}"} if name in apps else scope
        await _until_the_end(apps.get(name, nowhere), inner, receive, send)

    return host


async def _until_the_end(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """A request whose handler the end of this process cuts off fails as if the process had been killed: as lost.

    The HTTP server cancels what still runs when it ends, and would answer 500: a fault that no other try can help.
    """
    begun = False

    async def sending(message: MutableMapping[str, Any]) -> None:
        nonlocal begun
        begun = True
        await send(message)

    try:
        await app(scope, receive, sending)
    except asyncio.CancelledError:
        if begun:
            raise
        detail = f"no answer from {scope['path']}: its server was ended meanwhile"
        lost = {"detail": detail, "failure": {"kind": "server_unreachable", "stage": None}}
        await _json(503, lost)(scope, receive, send)


def _without_rollout(scope: Scope) -> Scope:
    """A request whose path names its rollout as one whose header does; a header that is there already wins."""
    root = scope.get("root_path", "")
    rollout, path = rollout_path.split(scope.get("path", "").removeprefix(root))
    if rollout is None:
        return scope
    named = (ROLLOUT_HEADER.encode(), rollout.encode())
    headers = [*scope["headers"], *([] if any(name == named[0] for name, _ in scope["headers"]) else [named])]
    return {**scope, "path": root + path, "raw_path": (root + path).encode(), "headers": headers}


def _endpoint(name: str, route: Route) -> Callable[..., Awaitable[Response]]:
    async def endpoint(body: BaseModel, request: Request) -> Response:
        call = Call(request.headers, _cookies(request), identity=request.scope.get(IDENTITY))
        with deadline.within(deadline.from_headers(request.headers)):
            work = asyncio.ensure_future(_answered(route, body, call))
        if not await _finished(work, request.receive):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        error = work.exception()
        return work.result() if error is None else _refusal(f"{name}{route.path}", error)

    # FastAPI reads the body's type from the signature; annotations written above are only known as text here.
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    endpoint.__dict__["__signature__"] = inspect.Signature(
        [
            inspect.Parameter("body", positional, annotation=route.body),
            inspect.Parameter("request", positional, annotation=Request),
        ]
    )
    endpoint.__name__ = route.path.strip("/").replace("/", "_") or "root"
    return endpoint


def _as_it_is(
    where: str, answer: Callable[[bytes, Call], Awaitable[Reply]]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = Call(request.headers, _cookies(request), identity=request.scope.get(IDENTITY))
        body = await request.body()
        with deadline.within(deadline.from_headers(request.headers)):
            work = asyncio.ensure_future(answer(body, call))
        if not await _finished(work, request.receive):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        if (error := work.exception()) is not None:
            return _refusal(where, error)
        reply = work.result()
        if isinstance(reply.content, bytes):
            return Response(reply.content, reply.status, dict(reply.headers))
        return _Streamed(reply.content, reply.status, dict(reply.headers))

    return endpoint


class _Streamed(StreamingResponse):
    """Sends pieces as they come, and closes their source as soon as the client has gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        work = asyncio.ensure_future(self._send(send))
        try:
            if await _finished(work, receive):
                work.result()
        finally:
            await ended(work)

    async def _send(self, send: Send) -> None:
        try:
            await self.stream_response(send)
        finally:
            if (close := getattr(self.body_iterator, "aclose", None)) is not None:
                await uncancelled(close())


async def _answered(route: Route, body: BaseModel, call: Call) -> Response:
    got = await route(body, call)
    content = dumped(got) if isinstance(got, BaseModel) else to_json(got)
    answer = Response(content, media_type="application/json")
    for name, value in call.set_cookies.items():
        answer.headers.append("set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Lax")
    return answer


async def _finished(work: asyncio.Task[Any], receive: Receive) -> bool:
    """Waits for a handler. False when it was cancelled because its client had gone; its cleanups have run then."""
    gone = background(_disconnected(receive))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await ended(work)
        return not work.cancelled()
    finally:
        gone.cancel()
        await ended(work)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _cookies(request: Request) -> dict[str, str]:
    """The cookies as they were sent: opaque values, no unquoting."""
    pairs = [part.partition("=") for header in request.headers.getlist("cookie") for part in header.split(";")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _refusal(where: str, error: BaseException) -> Response:
    if not isinstance(error, Exception):
        raise error
    seen = unexpected(error)
    if seen is not error:
        log.error("%s failed", where, exc_info=error)
    if isinstance(seen, EpisodeFailure):
        return _json(502, {"detail": seen.message, "failure": {"kind": seen.kind, "stage": seen.stage}})
    return _json(seen.status, {"detail": seen.detail})


async def _alive() -> Response:
    return _json(200, {"status": "ok"})


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    alive = scope["method"] == "GET" and scope["path"] in ("/", "/livez")
    answer = await _alive() if alive else _json(404, {"detail": f"no instance at {scope['path']}"})
    await answer(scope, receive, send)


async def _refuse_body(request: Request, error: Exception) -> Response:  # noqa: ARG001
    items = error.errors() if isinstance(error, RequestValidationError) else []
    if items and items[0]["type"] == "json_invalid":
        return _json(422, {"detail": f"the body is no JSON: {items[0]['ctx']['error']} at {items[0]['loc'][-1]}"})
    return _json(422, {"detail": describe_items({**item, "loc": item["loc"][1:]} for item in items)})


async def _refuse_request(request: Request, error: Exception) -> Response:
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, str(error))
    return _json(status, {"detail": f"{request.method} {request.url.path}: {detail}"})


def _json(status: int, content: Mapping[str, Any]) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")


def _is_model(answer: Any) -> bool:
    return isinstance(answer, type) and issubclass(answer, BaseModel)
