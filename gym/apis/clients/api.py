"""What an API is to us when a client speaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from gym.apis.errors import ApiError
from gym.apis.events import Event
from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.apis.upstreams.api import ApiName


class Encoder(Protocol):
    """Writes one streamed answer."""

    def event(self, event: Event) -> bytes:
        """What a client is sent for a neutral event; nothing for some.

        Raises:
            EpisodeFailure: `malformed_answer`: the API has no place for what the model said.
        """
        ...


class ClientApi(Protocol):
    """An API that clients speak.

    Attributes:
        path: Its path under the server.
    """

    name: ClassVar[ApiName]
    path: ClassVar[str]

    def request(self, body: Mapping[str, Any]) -> ResponsesRequest:
        """A client's request in neutral form. What other APIs may not know stays in it, to be carried or refused.

        Raises:
            ServerError: 400 for a body that is no request of this API.
        """
        ...

    def answer(self, response: ResponsesResponse, body: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer to a request."""
        ...

    def encoder(self, body: Mapping[str, Any]) -> Encoder:
        """What streams the answer to a request."""
        ...

    def broken_off(self, error: ApiError, sent: bytes, body: Mapping[str, Any]) -> bytes:
        """How a stream that has begun tells its client that it broke off.

        Args:
            sent: What the client was sent, in our words or in a provider's.
            body: The request.
        """
        ...

    def ends(self, event: Mapping[str, Any]) -> bool:
        """Whether an event of a stream, decoded, is the end of its answer."""
        ...

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of an answer with an error status."""
        ...
