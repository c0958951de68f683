"""A server under test, and what it answers: in this process, or at an address."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gym.failures import EpisodeFailure
from gym.servers.base import Server, ServerError
from gym.servers.client import Client, Directory

Json = Mapping[str, Any]
NOWHERE = "http://in-process.invalid"
LONGEST_SECONDS = 600.0


@dataclass(frozen=True)
class Reply:
    """An answer as any client would see it.

    Attributes:
        status: HTTP status.
        body: JSON of the answer; of a refusal, its `detail`.
    """

    status: int
    body: Any
    cookies: dict[str, str] = field(default_factory=dict)

    def expect(self, status: int, what: str) -> Any:
        """The body of an answer with this status.

        Raises:
            AssertionError: It has another one.
        """
        assert self.status == status, f"{what}: expected {status}, got {self.status}: {self.body}"
        return self.body

    def expect_refusal(self, what: str) -> None:
        """Asserts that the request was refused as the caller's fault, with some 4xx."""
        assert 400 <= self.status < 500, f"{what}: expected a refusal (4xx), got {self.status}: {self.body}"


@dataclass(frozen=True)
class Subject:
    """A server under test. Make one with `in_process` or `over_http`.

    Attributes:
        url: Its base URL.
    """

    client: Client
    url: str

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        cookies: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """`POST` of plain JSON.

        Raises:
            AssertionError: No answer, or none within ten minutes.
        """
        sent = {**self.client.auth, **(headers or {})}
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                answer, set_cookies = await self.client.post_json(
                    self.url + path, body, cookies=cookies or {}, headers=sent
                )
        except ServerError as error:
            return Reply(error.status, error.detail)
        except EpisodeFailure as failure:
            if failure.kind == "server_unreachable":
                raise AssertionError(f"POST {path}: {failure.message}") from failure
            return Reply(502, f"{failure.kind}: {failure.message}")
        except TimeoutError as error:
            raise AssertionError(f"POST {path}: no answer within {LONGEST_SECONDS:g} s") from error
        return Reply(200, answer, set_cookies)


def in_process(server: Server[Any]) -> Subject:
    """A server of this process, called without HTTP."""
    directory = Directory(local={server.name: server}, base_url=NOWHERE)
    return Subject(Client(directory, server.context.client.token), directory.url(server.name))


@asynccontextmanager
async def over_http(base_url: str, token: str = "") -> AsyncIterator[Subject]:
    """A server at an address, whoever wrote it; `token` goes with every request as a bearer token."""
    client = Client(Directory(), token)
    try:
        yield Subject(client, base_url.rstrip("/"))
    finally:
        await client.aclose()


def new_id(kind: str) -> str:
    """An id that nobody has used yet."""
    return f"{kind}-{uuid.uuid4().hex}"
