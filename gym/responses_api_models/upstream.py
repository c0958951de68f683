"""Posts JSON to a model provider: the one retry layer, and what each failure is called.

An answer is retried where a later try can help (408, 425, 429, 5xx, no answer), with exponential backoff, jitter and
the provider's own `Retry-After`; everything else fails at once, with the provider's status and text.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import random
import re
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gym.failures import EpisodeFailure
from gym.servers.client import new_http_client

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 30
LONGEST_WAIT_SECONDS = 60
"""A provider that asks for more patience than this fails the call instead."""
LONGEST_TEXT = 500
SHORTEST_SECRET = 8
"""Shorter header values are words such as `EMPTY` or `true`, not secrets."""

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
    """How long and how often to try. Times are seconds; `timeout_seconds` bounds one attempt."""

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


class _Failed(Exception):
    def __init__(self, kind: str, text: str, *, retry: bool, asked_wait: float | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.retry = retry
        self.asked_wait = asked_wait


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

    async def post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The provider's answer to `body`.

        Raises:
            EpisodeFailure: `provider_unreachable`, `provider_rate_limited`, `provider_refused`, `provider_error`,
                `context_length_exceeded` or
                `malformed_answer`; the message has the provider's own status and text, and no secret.
        """
        payload = json.dumps(body).encode()
        attempt = 1
        while True:
            try:
                async with self._slots:
                    return await self._attempt(payload)
            except _Failed as failed:
                if not failed.retry or attempt == self.patience.max_attempts:
                    tries = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise EpisodeFailure(failed.kind, failed.text + tries) from failed
                wait = self.patience.wait_seconds(attempt, failed.asked_wait)
                log.info("%s; trying again in %.1f s", failed.text, wait)
            await asyncio.sleep(wait)
            attempt += 1

    async def _attempt(self, payload: bytes) -> dict[str, Any]:
        response = await self._send(payload)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        status = response.status_code if not response.is_success else _status_within(answer)
        if status is not None:
            raise self._refusal(status, response, answer)
        if not isinstance(answer, dict):
            text = self.endpoint.scrub(response.text) or "an empty body"
            raise _Failed("malformed_answer", f"{self.endpoint.url} answered no JSON object: {text}", retry=False)
        return answer

    async def _send(self, payload: bytes) -> httpx.Response:
        import aiohttp
        import httpx

        if self._http is None:
            self._http = new_http_client()
        url, limit = self.endpoint.url, self.patience.timeout_seconds
        headers = {"content-type": "application/json", **self.endpoint.headers, **self.endpoint.secret_headers}
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        try:
            async with asyncio.timeout(limit):
                return await self._http.post(url, content=payload, headers=headers, timeout=timeout)
        except TimeoutError as error:
            raise _Failed("provider_unreachable", f"no answer from {url} within {limit:g} s", retry=True) from error
        except (httpx.RequestError, aiohttp.ClientError) as error:
            # The transport calls most of them a timeout, so only their text tells what happened.
            text = self.endpoint.scrub(f"no answer from {url}: {str(error) or type(error).__name__}")
            raise _Failed("provider_unreachable", text, retry=True) from error

    def _refusal(self, status: int, response: httpx.Response, answer: Any) -> _Failed:
        text = self.endpoint.scrub(_message_of(answer) or response.text or response.reason_phrase)
        exhausted = _code_of(answer) == "insufficient_quota"
        kind = "provider_refused" if exhausted else kind_of(status)
        if status in (400, 413, 422) and CONTEXT_LENGTH.search(f"{_code_of(answer)} {text}"):
            kind = "context_length_exceeded"
        retry = not exhausted and (status in (408, 425, 429) or status >= 500)
        said = f"{self.endpoint.url} answered {status}: {text}"
        asked_wait = retry_after_seconds(response.headers.get("retry-after"))
        if asked_wait is not None and asked_wait > LONGEST_WAIT_SECONDS:
            return _Failed(kind, f"{said} (it asks to wait {asked_wait:.0f} s)", retry=False)
        return _Failed(kind, said, retry=retry, asked_wait=asked_wait)


CONTEXT_LENGTH = re.compile(r"context.?(length|window|size)|maximum context|prompt is too long|too many tokens", re.I)
"""How engines say that a conversation no longer fits: there is no common code."""


def kind_of(status: int) -> str:
    """The failure kind of an HTTP status."""
    if status == 429:
        return "provider_rate_limited"
    return "provider_error" if status >= 500 or status in (408, 425) else "provider_refused"


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


def _status_within(answer: Any) -> int | None:
    """The status of an error that came with status 200, as gateways send it when their own upstream fails."""
    error = answer.get("error") if isinstance(answer, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _message_of(answer: Any) -> str:
    """The text of an error body: `error.message`, `error`, `message` or `detail`; empty for any other shape."""
    if not isinstance(answer, dict):
        return ""
    found = answer.get("error") or answer.get("message") or answer.get("detail") or ""
    found = found.get("message", found) if isinstance(found, dict) else found
    return found if isinstance(found, str) else json.dumps(found)


def _code_of(answer: Any) -> Any:
    error = answer.get("error") if isinstance(answer, dict) else None
    return error.get("code") if isinstance(error, dict) else None
