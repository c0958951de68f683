"""Posts JSON to a model provider: the one retry layer, and what each failure is called.

An answer is retried where a later try can help (408, 425, 429, 5xx, no answer), with exponential backoff, jitter and
the provider's own `Retry-After`; everything else fails at once, with the provider's status and text. A stream is
retried only until it has begun.
"""

from __future__ import annotations

import asyncio
import email.utils
import io
import json
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from gym.apis.errors import ProviderFailure, failure_in, provider_failure
from gym.capture.exchange import note_attempts
from gym.servers import deadline
from gym.servers.client import KEEPALIVE_SECONDS

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 30
LONGEST_WAIT_SECONDS = 60
"""A provider that asks for more patience than this fails the call instead."""
LONGEST_TEXT = 2000
TOGETHER_SECONDS = 0.02
LARGE_BYTES = 2**20
"""A longer body is written piece by piece, so that the other calls go on meanwhile."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST_SECRET = 8
"""Shorter header values are words such as `EMPTY` or `true`, not secrets."""

ResultT = TypeVar("ResultT")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """Where to post, and with which headers. The values of `secret_headers` are kept out of every message."""

    url: str
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)

    def scrub(self, text: str) -> str:
        """`text` without secrets, and shortened."""
        for value in self.secret_headers.values():
            for secret in (value, value.removeprefix("Bearer ")):
                if len(secret) >= SHORTEST_SECRET:
                    text = text.replace(secret, "***")
        text = text.strip()
        return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " ..."


@dataclass(frozen=True)
class Patience:
    """How long and how often to try. Times are seconds.

    Attributes:
        timeout_seconds: Bounds one attempt; of a stream, each silence.
    """

    max_attempts: int = 3
    backoff_seconds: float = 0.5
    timeout_seconds: float = 600

    def wait_seconds(self, attempt: int, asked: float | None) -> float:
        """How long to wait after the attempt of that number (from 1), with jitter.

        Args:
            attempt: The attempt that failed.
            asked: What the provider asked for (`Retry-After`), or None.
        """
        if asked is not None:
            return asked + random.uniform(0, self.backoff_seconds)
        return min(self.backoff_seconds * 2.0 ** (attempt - 1), LONGEST_WAIT_SECONDS) * random.uniform(0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON answer, also as the bytes in which it came."""

    content: bytes
    body: dict[str, Any]


class Upstream:
    """A model provider's endpoint. Close it with `aclose`."""

    def __init__(self, endpoint: Endpoint, patience: Patience, max_concurrent_requests: int | None = None) -> None:
        self.endpoint = endpoint
        self.patience = patience
        self._slots: AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(max_concurrent_requests) if max_concurrent_requests else nullcontext()
        )
        self._http: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def post(
        self, body: Mapping[str, Any], *, path: str = "", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The provider's answer to `body`.

        Args:
            body: What is sent, as JSON.
            path: Appended to the endpoint's URL.
            headers: Headers of this request alone.

        Raises:
            ProviderFailure: `provider_unreachable`, `provider_rate_limited`, `provider_refused`, `provider_error`,
                `context_length_exceeded` or `malformed_answer`; the message has the provider's own status and text,
                and no secret.
        """
        payload = json.dumps(body).encode()

        async def attempt() -> Answer:
            async with self._slots, self._bounded():
                async with await self._send(payload, path, headers or {}) as response:
                    content = await response.read()
            return self._checked(response, content)

        return await self._patiently(attempt)

    async def stream(
        self, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of the provider's stream, as they come. Closing the generator ends the call.

        Raises:
            ProviderFailure: As `post`; also when the stream breaks off, or falls silent for too long.
        """
        payload = json.dumps(body).encode()
        sent = {"accept-encoding": "identity", **(headers or {})}
        async with AsyncExitStack() as held:

            async def attempt() -> aiohttp.ClientResponse:
                async with AsyncExitStack() as own:
                    await own.enter_async_context(self._slots)
                    async with self._bounded():
                        response = await self._send(payload, "", sent, longest_silence=self._limit())
                        own.callback(response.close)
                        if not _ok(response) or "event-stream" not in response.headers.get("content-type", ""):
                            content = await response.read()
                            self._checked(response, content)
                            raise self._malformed(content, "was asked for a stream and answered with JSON")
                    held.push_async_callback(own.pop_all().aclose)
                return response

            response = await self._patiently(attempt)
            with self._named(self._limit()):
                async for piece in _pieces(response):
                    yield piece

    async def _patiently(self, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
        number = 1
        while True:
            note_attempts(number)
            try:
                return await attempt()
            except ProviderFailure as failure:
                wait, why_not = self._wait(failure, number)
                if wait is None:
                    tries = f" ({number} attempts)" if number > 1 else ""
                    raise failure.told(failure.message + why_not + tries) from failure.__cause__
                log.info("%s; trying again in %.1f s", failure.message, wait)
            await asyncio.sleep(wait)
            number += 1

    def _wait(self, failure: ProviderFailure, attempt: int) -> tuple[float | None, str]:
        """Seconds until the next attempt; or None, and why there is none where that is not plain."""
        if failure.terminal or attempt == self.patience.max_attempts:
            return None, ""
        asked = retry_after_seconds(failure.retry_after)
        if asked is not None and asked > LONGEST_WAIT_SECONDS:
            return None, f" (it asks to wait {asked:.0f} s)"
        wait, left = self.patience.wait_seconds(attempt, asked), deadline.remaining()
        if left is not None and wait >= left:
            return None, f" (no time for another attempt: the episode ends in {left:.0f} s)"
        return wait, ""

    def _limit(self) -> float:
        """Seconds that the provider may take, now."""
        return deadline.bounded(self.patience.timeout_seconds) or 0.0

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Bounds a wait for the provider."""
        with self._named(limit := self._limit()):
            async with asyncio.timeout(limit):
                yield

    @contextmanager
    def _named(self, limit: float) -> Iterator[None]:
        """Gives what goes wrong in a wait for the provider its name."""
        import aiohttp

        url = self.endpoint.url
        try:
            yield
        except TimeoutError as error:
            seconds = CONNECT_SECONDS if isinstance(error, aiohttp.ConnectionTimeoutError) else limit
            text = f"no answer from {url} within {seconds:g} s"
            raise ProviderFailure("provider_unreachable", text, status=504) from error
        except (aiohttp.ClientError, OSError) as error:
            text = self.endpoint.scrub(f"no answer from {url}: {str(error) or type(error).__name__}")
            raise ProviderFailure("provider_unreachable", text) from error

    async def _send(
        self, payload: bytes, path: str, more: Mapping[str, str], longest_silence: float | None = None
    ) -> aiohttp.ClientResponse:
        import aiohttp

        if self._http is None:
            self._http = _new_session(self.endpoint.url)
        headers = {"content-type": "application/json", **self.endpoint.headers, **self.endpoint.secret_headers, **more}
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=longest_silence)
        data = payload if len(payload) < LARGE_BYTES else io.BytesIO(payload)
        url = self.endpoint.url + path
        return await self._http.post(url, data=data, headers=headers, timeout=timeout, allow_redirects=False)

    def _checked(self, response: aiohttp.ClientResponse, content: bytes) -> Answer:
        """A response that was read as an answer, or the failure that it is."""
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        failure = failure_in(answer) if _ok(response) else _refusal(response, answer, content)
        if failure is not None:
            raise self._named_by(failure, response)
        if not isinstance(answer, dict):
            raise self._malformed(content, "answered no JSON object")
        return Answer(content, answer)

    def _malformed(self, content: bytes, what: str) -> ProviderFailure:
        text = self.endpoint.scrub(_text(content)) or "an empty body"
        return ProviderFailure("malformed_answer", f"{self.endpoint.url} {what}: {text}")

    def _named_by(self, failure: ProviderFailure, response: aiohttp.ClientResponse) -> ProviderFailure:
        """The failure with the provider's address and wishes."""
        failure = failure.scrubbed(self.endpoint.scrub)
        failure.retry_after = response.headers.get("retry-after")
        return failure.told(f"{self.endpoint.url} answered {failure.status}: {failure.text}")


async def _pieces(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """What has come, as it comes. Where pieces follow each other fast, those of `TOGETHER_SECONDS` are read as one.

    Reading, converting and writing each of a fast model's tokens alone costs ten times what all of them do together.
    """
    now, asked = time.monotonic, time.monotonic()
    while piece := await response.content.readany():
        is_fast = now() < asked + TOGETHER_SECONDS
        yield piece
        protocol = response.connection.protocol if response.connection is not None else None
        if is_fast and protocol is not None:
            protocol.pause_reading()
            try:
                await asyncio.sleep(TOGETHER_SECONDS)
            finally:
                protocol.resume_reading()
        asked = now()


def _refusal(response: aiohttp.ClientResponse, answer: Any, content: bytes) -> ProviderFailure:
    return provider_failure(response.status, answer, _text(content) or response.reason or "")


def _ok(response: aiohttp.ClientResponse) -> bool:
    return 200 <= response.status < 300


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _new_session(url: str) -> aiohttp.ClientSession:
    """Connections to one provider: no limit on them, no cookies kept, and no proxy where it is on this machine."""
    import aiohttp

    # An idle connection is dropped before the 5 s after which uvicorn's default drops it: the two can't race.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trust_env=urlsplit(url).hostname not in LOOPBACK,
    )


def retry_after_seconds(header: str | None) -> float | None:
    """What a `Retry-After` header asks for: seconds, or an HTTP date; None where it says nothing usable."""
    if header is None:
        return None
    try:
        seconds = float(header)
        return max(seconds, 0) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(header).timestamp() - time.time(), 0)
    except ValueError:
        return None
