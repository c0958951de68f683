"""What is malformed in a request is named, whoever stumbles over it."""

from __future__ import annotations

from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest
from gym.servers.base import ServerError
from gym.servers.understood import understood


def reading(body: dict[str, Any]) -> int:
    if body.get("tools") == "refused":
        raise ServerError(400, "tools cannot be carried")
    count: int = (body.get("options") or {}).get("count", 0)
    return sum(len(text) for text in body.get("texts") or []) + count


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"texts": ["ab"], "options": {"count": 1}}, 3),
        ({"texts": 5, "a": 1}, "`texts` is malformed: TypeError: 'int' object is not iterable"),
        ({"texts": ["a", 5]}, "`texts` is malformed: TypeError: object of type 'int' has no len()"),
        (
            {"texts": ["a"], "options": "x"},
            "`options` is malformed: AttributeError: 'str' object has no attribute 'get'",
        ),
        ({"texts": 5, "options": 5}, "the request is malformed: AttributeError: 'int' object has no attribute 'get'"),
        ({"tools": "refused", "texts": 5}, "tools cannot be carried"),
    ],
)
def test_a_field_that_is_malformed_is_named(body: dict[str, Any], expected: Any) -> None:
    if isinstance(expected, int):
        assert understood(reading, body) == expected
        return
    with pytest.raises(ServerError) as refused:
        understood(reading, body)
    assert (refused.value.status, refused.value.detail) == (400, expected)


def test_a_typed_request_too() -> None:
    def ask(request: ResponsesRequest) -> int:
        return len((request.model_extra or {})["include"] or []) + len(request.items())

    request = ResponsesRequest.model_validate({"input": "hi", "include": 5, "tools": []})
    with pytest.raises(ServerError, match="`include` is malformed: TypeError: object of type 'int' has no len"):
        understood(ask, request)
