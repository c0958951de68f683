"""Retries and failures against a real HTTP server."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gym.apis.errors import kind_of
from gym.failures import EpisodeFailure
from gym.responses_api_models.upstream import LARGE_BYTES, Endpoint, Patience, Upstream, retry_after_seconds
from tests.responses_api_models.provider import Provider, Reply

KEY = "sk-not-to-be-seen"
PATIENT = Patience(max_attempts=3, backoff_seconds=0.001, timeout_seconds=20)


@asynccontextmanager
async def upstream(url: str, patience: Patience = PATIENT, limit: int | None = None) -> AsyncIterator[Upstream]:
    started = Upstream(Endpoint(url, {"authorization": f"Bearer {KEY}"}), patience, limit)
    try:
        yield started
    finally:
        await started.aclose()


async def failure_of(url: str, patience: Patience = PATIENT) -> EpisodeFailure:
    async with upstream(url, patience) as started:
        with pytest.raises(EpisodeFailure) as failure:
            await started.post({"a": 1})
    return failure.value


def error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


async def test_an_answer(provider: Provider) -> None:
    provider.replies = [Reply(body={"x": 1})]
    async with upstream(provider.base_url + "/v1") as started:
        assert (await started.post({"text": "é"})).body == {"x": 1}
    assert (provider.bodies, provider.paths) == ([{"text": "é"}], ["/v1"])
    assert provider.headers[0]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_retried(provider: Provider, status: int) -> None:
    provider.replies = [Reply(status, error("busy")), Reply(body={"x": 1})]
    async with upstream(provider.base_url) as started:
        assert (await started.post({})).body == {"x": 1}
    assert len(provider.bodies) == 2


FAILURES: dict[str, tuple[Reply, str, str, int]] = {
    "no key": (Reply(401, error("no such key")), "provider_refused", "answered 401: no such key", 1),
    "forbidden": (Reply(403, {"detail": "not yours"}), "provider_refused", "answered 403: not yours", 1),
    "no model": (Reply(404, {"error": "no model"}), "provider_refused", "answered 404: no model", 1),
    "context": (
        Reply(400, error("maximum context length is 4096 tokens")),
        "context_length_exceeded",
        "answered 400: maximum context length is 4096 tokens",
        1,
    ),
    "unprocessable": (Reply(422, {"detail": [{"loc": ["x"]}]}), "provider_refused", '422: [{"loc": ["x"]}]', 1),
    "moved": (Reply(301, "", {"location": "http://127.0.0.1/"}), "provider_refused", "answered 301: Moved", 1),
    "rate limit": (Reply(429, error("slow down")), "provider_rate_limited", "429: slow down (3 attempts)", 3),
    "quota": (Reply(429, error("pay", code="insufficient_quota")), "provider_refused", "answered 429: pay", 1),
    "long wait": (
        Reply(429, error("slow down"), {"retry-after": "3600"}),
        "provider_rate_limited",
        "slow down (it asks to wait 3600 s)",
        1,
    ),
    "no number": (
        Reply(503, "busy", {"retry-after": "soon"}),
        "provider_error",
        "answered 503: busy (3 attempts)",
        3,
    ),
    "crash": (Reply(500, "a\n  traceback"), "provider_error", "answered 500: a traceback (3 attempts)", 3),
    "an error with status 200": (Reply(200, error("down", code=502)), "provider_error", "answered 502: down (3", 3),
    "an error with status 200 and a name": (
        Reply(200, error("come back", code="overloaded")),
        "provider_error",
        "answered 500: come back (3",
        3,
    ),
    "an error with status 200 that is a text": (Reply(200, {"error": "own words"}), "provider_error", ": own words", 3),
    "an error with status 200 of vLLM": (
        Reply(200, {"object": "error", "message": "bad thing", "type": "BadRequestError", "code": 400}),
        "provider_refused",
        "answered 400: bad thing",
        1,
    ),
    "an error with status 200 of Anthropic": (
        Reply(200, {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}),
        "provider_rate_limited",
        "answered 429: slow",
        3,
    ),
    "the reason behind a gateway": (
        Reply(502, error("Provider returned error", code=502, metadata={"raw": "the real\nreason"})),
        "provider_error",
        "answered 502: Provider returned error: the real reason (3",
        3,
    ),
    "a choice that failed": (
        Reply(200, {"choices": [{"message": {"content": "par"}, "finish_reason": "error", "error": {"code": 502}}]}),
        "provider_error",
        "answered 502: ",
        3,
    ),
    "a choice that was given up": (
        Reply(200, {"choices": [{"message": {"content": "par"}, "finish_reason": "abort"}]}),
        "provider_error",
        "answered 500: the answer ended with the finish reason `abort`",
        3,
    ),
    "a response without an end": (
        Reply(200, {"object": "response", "status": "cancelled", "output": []}),
        "provider_error",
        "answered 500: the response ended with the status `cancelled`",
        3,
    ),
    "no JSON": (Reply(200, "<html>"), "malformed_answer", "answered no JSON object: <html>", 3),
    "a list": (Reply(200, [1]), "malformed_answer", "answered no JSON object: [1]", 3),
    "nothing": (Reply(200, ""), "malformed_answer", "answered no JSON object: an empty body", 3),
    "cut off": (Reply(cut=True), "provider_unreachable", ": Server disconnected (3 attempts)", 3),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_failures(provider: Provider, name: str) -> None:
    reply, kind, text, attempts = FAILURES[name]
    provider.replies = [reply]
    failure = await failure_of(provider.base_url)
    assert (failure.kind, len(provider.bodies)) == (kind, attempts)
    assert text in failure.message
    assert provider.base_url in failure.message


async def test_retry_after_wins_over_backoff(provider: Provider) -> None:
    provider.replies = [Reply(429, error("slow down"), {"retry-after": "0"}), Reply(body={"x": 1})]
    async with upstream(provider.base_url, Patience(backoff_seconds=0)) as started:
        assert (await started.post({})).body == {"x": 1}


def test_waits_grow_and_are_jittered() -> None:
    patience = Patience(backoff_seconds=2)
    for attempt, base in ((1, 2), (2, 4), (3, 8), (20, 60)):
        assert base * 0.5 <= patience.wait_seconds(attempt, None) <= base * 1.5
    assert 7 <= patience.wait_seconds(5, 7) <= 9


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("3", 3.0),
        ("-1", 0.0),
        ("0.5", 0.5),
        *((text, None) for text in ("soon", "", "nan", "inf", "-inf")),
    ],
)
def test_retry_after(header: str | None, expected: float | None) -> None:
    assert retry_after_seconds(header) == expected


def test_retry_after_as_a_date() -> None:
    seconds = retry_after_seconds(email.utils.formatdate(time.time() + 100, usegmt=True))
    assert seconds is not None
    assert 90 < seconds <= 100
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0


@pytest.mark.parametrize(("status", "kind"), [(405, "provider_refused"), (599, "provider_error")])
def test_kinds_of_other_statuses(status: int, kind: str) -> None:
    assert kind_of(status) == kind


async def test_a_provider_that_hangs(provider: Provider) -> None:
    provider.replies = [Reply(hang=True)]
    failure = await failure_of(provider.base_url, Patience(2, 0.001, timeout_seconds=0.05))
    assert failure.kind == "provider_unreachable"
    assert failure.message.endswith("within 0.05 s (2 attempts)")


async def test_nobody_listens(unused_tcp_port: int) -> None:
    failure = await failure_of(f"http://127.0.0.1:{unused_tcp_port}/v1")
    assert failure.kind == "provider_unreachable"
    assert f"no answer from http://127.0.0.1:{unused_tcp_port}/v1: Cannot connect" in failure.message


async def test_something_that_speaks_no_http() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"SSH-2.0-nonsense\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert (await failure_of(f"http://127.0.0.1:{port}")).kind == "provider_unreachable"


async def test_no_secret_in_messages(provider: Provider) -> None:
    provider.replies = [Reply(401, error(f"bad key {KEY}"))]
    failure = await failure_of(provider.base_url)
    assert failure.message == f"{provider.base_url} answered 401: bad key ***"
    assert KEY not in repr(Endpoint(provider.base_url, {"authorization": KEY}))


async def test_long_texts_are_cut(provider: Provider) -> None:
    provider.replies = [Reply(400, "x" * 10_000)]
    assert len((await failure_of(provider.base_url)).message) < 2100


async def test_a_large_body(provider: Provider) -> None:
    provider.replies = [Reply(body={"x": 1})]
    text = "x" * (2 * LARGE_BYTES)
    async with upstream(provider.base_url) as started:
        assert (await started.post({"text": text})).body == {"x": 1}
    assert provider.bodies == [{"text": text}]


async def test_a_provider_on_this_machine_is_reached_without_a_proxy(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_tcp_port}")
    provider.replies = [Reply(body={"x": 1})]
    async with upstream(provider.base_url) as started:
        assert (await started.post({})).body == {"x": 1}
    async with upstream("http://provider.example/v1", Patience(max_attempts=1)) as started:
        with pytest.raises(EpisodeFailure, match=f"Cannot connect to host 127.0.0.1:{unused_tcp_port}"):
            await started.post({})


async def test_requests_in_flight_are_limited(provider: Provider) -> None:
    provider.replies = [Reply(body={})]
    async with upstream(provider.base_url, limit=2) as started:
        await asyncio.gather(*(started.post({}) for _ in range(12)))
    assert provider.most_in_flight <= 2
    assert len(provider.bodies) == 12


async def test_cancelling_the_caller_frees_its_slot(provider: Provider) -> None:
    provider.replies = [Reply(hang=True), Reply(body={"x": 1})]
    async with upstream(provider.base_url, limit=1) as started:
        hanging = asyncio.create_task(started.post({}))
        await until(lambda: provider.in_flight == 1)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert (await started.post({})).body == {"x": 1}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)
