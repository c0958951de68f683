"""OpenAI Responses as clients speak it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gym.apis.carry import neutral
from gym.apis.clients.responses_answer import ResponsesEncoder, Seal, echoed, to_response
from gym.apis.clients.responses_failure import response_failed
from gym.apis.clients.seals import with_seal, without_seal
from gym.apis.errors import RESPONSE_ENDS, ApiError, openai_error
from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse
from gym.apis.upstreams.api import ApiName

ENCRYPTED = "reasoning.encrypted_content"


class ResponsesClient:
    """`POST /v1/responses`."""

    name: ClassVar[ApiName] = "responses"
    path: ClassVar[str] = "/v1/responses"

    def request(self, body: Mapping[str, Any]) -> ResponsesRequest:
        """The request itself, with the reasoning that our own answers had sealed."""
        request = neutral(body)
        if isinstance(request.input, str):
            return request
        return request.model_copy(update={"input": [without_seal(item) for item in request.input]})

    def answer(self, response: ResponsesResponse, body: Mapping[str, Any]) -> dict[str, Any]:
        """The response, with what it repeats of its request."""
        return to_response(response, body, _seal(body))

    def encoder(self, body: Mapping[str, Any]) -> ResponsesEncoder:
        """A stream of typed events."""
        return ResponsesEncoder(echoed(body), _seal(body))

    def broken_off(self, error: ApiError, sent: bytes, body: Mapping[str, Any]) -> bytes:
        """A failed response, with what was said before."""
        return response_failed(error, sent, body)

    def ends(self, event: Mapping[str, Any]) -> bool:
        """An event that has the response in its end."""
        return event.get("type") in RESPONSE_ENDS

    def error(self, error: ApiError) -> dict[str, Any]:
        """OpenAI's shape, and what Gym's own clients read."""
        return {"error": openai_error(error), **error.extra}


def _seal(body: Mapping[str, Any]) -> Seal:
    return with_seal if ENCRYPTED in (body.get("include") or []) else _as_it_is


def _as_it_is(item: Item) -> Item:
    return item
