"""Posts JSON to a model provider: the one retry layer, and what each failure is called.

An answer is retried where a later try can help (408, 425, 429, 5xx, no answer), with exponential backoff, jitter and
the provider's own `Retry-After`; everything else fails at once, with the provider's status and text. A stream is
retried only until it has begun.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gym.apis.errors import ProviderFailure, provider_failure, status_within
from gym.servers import deadline
from gym.servers.client import new_http_client

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 30
LONGEST_WAIT_SECONDS = 60
"""A provider that asks for more patience than this fails the call instead."""
LONGEST_TEXT = 500
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
        """`text` on one line, shortened, without secrets."""
        for value in self.secret_headers.values():
            for secret in (value, value.removeprefix("Bearer ")):
                if len(secret) >= SHORTEST_SECRET:
                    text = text.replace(secret, "***")
        line = " ".join(text.split())
        return line if len(line) <= LONGEST_TEXT else line[:LONGEST_TEXT] + " ..."


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
        self._http: httpx.AsyncClient | None = None

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.aclose()
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
                response = await self._send(payload, path, headers or {})
                async with aclosing(response):
                    await response.aread()
            return self._checked(response)

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

            async def attempt() -> httpx.Response:
                async with AsyncExitStack() as own:
                    await own.enter_async_context(self._slots)
                    async with self._bounded():
                        response = await self._send(payload, "", sent, longest_silence=self._limit())
                        own.push_async_callback(response.aclose)
                        if not response.is_success or "event-stream" not in response.headers.get("content-type", ""):
                            await response.aread()
                            self._checked(response)
                            raise self._malformed(response, "was asked for a stream and answered with JSON")
                    held.push_async_callback(own.pop_all().aclose)
                return response

            response = await self._patiently(attempt)
            with self._named(self._limit()):
                async for piece in response.aiter_bytes():
                    yield piece

    async def _patiently(self, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
        number = 1
        while True:
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
        import httpx

        url = self.endpoint.url
        try:
            yield
        except (TimeoutError, httpx.ReadTimeout) as error:
            text = f"no answer from {url} within {limit:g} s"
            raise ProviderFailure("provider_unreachable", text, status=504) from error
        except (httpx.RequestError, aiohttp.ClientError) as error:
            # The transport calls most of them a timeout, so only their text tells what happened.
            text = self.endpoint.scrub(f"no answer from {url}: {str(error) or type(error).__name__}")
            raise ProviderFailure("provider_unreachable", text) from error

    async def _send(
        self, payload: bytes, path: str, more: Mapping[str, str], longest_silence: float | None = None
    ) -> httpx.Response:
        import httpx

        if self._http is None:
            self._http = new_http_client()
        headers = {"content-type": "application/json", **self.endpoint.headers, **self.endpoint.secret_headers, **more}
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS, read=longest_silence)
        url = self.endpoint.url + path
        request = self._http.build_request("POST", url, content=payload, headers=headers, timeout=timeout)
        return await self._http.send(request, stream=True)

    def _checked(self, response: httpx.Response) -> Answer:
        """A response that was read as an answer, or the failure that it is."""
        try:
            answer = response.json()
        except ValueError:
            answer = None
        status = response.status_code if not response.is_success else status_within(answer)
        if status is not None:
            raise self._refusal(status, response, answer)
        if not isinstance(answer, dict):
            raise self._malformed(response, "answered no JSON object")
        return Answer(response.content, answer)

    def _malformed(self, response: httpx.Response, what: str) -> ProviderFailure:
        text = self.endpoint.scrub(response.text) or "an empty body"
        return ProviderFailure("malformed_answer", f"{self.endpoint.url} {what}: {text}")

    def _refusal(self, status: int, response: httpx.Response, answer: Any) -> ProviderFailure:
        failure = provider_failure(status, answer, response.text or response.reason_phrase)
        failure = failure.scrubbed(self.endpoint.scrub)
        failure.retry_after = response.headers.get("retry-after")
        return failure.told(f"{self.endpoint.url} answered {status}: {failure.text}")


def retry_after_seconds(header: str | None) -> float | None:
    """What a `Retry-After` header asks for: seconds, or an HTTP date; None where it says nothing usable."""
    if header is None:
        return None
    try:
        return max(float(header), 0)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(header).timestamp() - time.time(), 0)
    except ValueError:
        return None
