"""What an API is to us when an upstream speaks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, Literal, Protocol

from gym.apis.events import Event, fold, unfold
from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.apis.sse import Parser, Sent
from gym.apis.tools import Names, Restorer

ApiName = Literal["responses", "chat", "messages"]
TITLES: dict[ApiName, str] = {
    "responses": "Responses",
    "chat": "Chat Completions",
    "messages": "Anthropic Messages",
}
"""What messages call the APIs."""


class Decoder(Protocol):
    """Reads one answer: whole, or event by event."""

    def whole(self, answer: Mapping[str, Any]) -> ResponsesResponse:
        """The response that a JSON answer is.

        Raises:
            EpisodeFailure: `malformed_answer`, or what the answer itself says that failed.
        """
        ...

    def feed(self, sent: Sent) -> list[Event]:
        """The neutral events that are due after one event of the upstream.

        Raises:
            EpisodeFailure: As `whole`.
        """
        ...

    def end(self) -> list[Event]:
        """The last events, when the stream has ended.

        Raises:
            EpisodeFailure: `provider_error`: the stream ended before the answer did.
        """
        ...


class UpstreamApi(Protocol):
    """An API that an upstream speaks."""

    name: ClassVar[ApiName]

    @property
    def limit_fields(self) -> tuple[str, ...]:
        """Request fields that bound the output tokens; the first one is sent."""
        ...

    def ask(self, request: ResponsesRequest, *, stream: bool) -> tuple[dict[str, Any], Decoder]:
        """The body to send, and what reads the answer to it.

        Raises:
            ServerError: 400 for what the API has no place for.
        """
        ...

    def check(self, answer: Mapping[str, Any]) -> None:
        """Looks whether a whole answer is one of this API; what it has is left to who reads it.

        Raises:
            EpisodeFailure: `malformed_answer`.
        """
        ...

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """A body that a client wrote in this very API, as this upstream wants it."""
        ...


def restored(decoder: Decoder, names: Names) -> Decoder:
    """The decoder whose answers have the tools' own names and types again; see `gym.apis.tools`."""
    return _Restored(decoder, names) if names else decoder


class _Restored:
    def __init__(self, decoder: Decoder, names: Names) -> None:
        self._decoder = decoder
        self._restore = Restorer(names)

    def whole(self, answer: Mapping[str, Any]) -> ResponsesResponse:
        return fold(self._restore(list(unfold(self._decoder.whole(answer)))))

    def feed(self, sent: Sent) -> list[Event]:
        return self._restore(self._decoder.feed(sent))

    def end(self) -> list[Event]:
        return self._restore(self._decoder.end())


async def decoded(pieces: AsyncIterator[bytes], decoder: Decoder) -> AsyncIterator[list[Event]]:
    """A stream of an upstream as neutral events, in the lots in which they come."""
    parser = Parser()
    async for piece in pieces:
        if due := [event for sent in parser.feed(piece) for event in decoder.feed(sent)]:
            yield due
    if due := decoder.end():
        yield due
