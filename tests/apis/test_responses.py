from __future__ import annotations

from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse, Usage, message, reasoning, refusal, texts_of


def test_a_text_is_one_user_message() -> None:
    assert ResponsesRequest(input="hi").items() == [{"type": "message", "role": "user", "content": "hi"}]


def test_unknown_fields_travel_on() -> None:
    request = ResponsesRequest.model_validate({"input": [], "store": False})
    assert request.model_dump(exclude_unset=True) == {"input": [], "store": False}


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("a", ["a"]),
        (None, []),
        ([{"type": "input_text", "text": "a"}, {"type": "input_image"}, {"text": None}, "b"], ["a"]),
    ],
)
def test_texts(content: Any, texts: list[str]) -> None:
    assert list(texts_of({"content": content})) == texts


def test_output_text() -> None:
    output = [reasoning("hm"), message("assistant", "a"), refusal("No."), message("assistant", "b")]
    assert ResponsesResponse(output=output).output_text == "a\nb"


DETAILS: list[tuple[Any, Any, Any]] = [
    (None, None, None),
    ({"cached_tokens": 1}, None, {"cached_tokens": 1}),
    ({"cached_tokens": 1}, {"cached_tokens": 2, "other": 3}, {"cached_tokens": 3, "other": 3}),
]


@pytest.mark.parametrize(("left", "right", "expected"), DETAILS)
def test_usages_add_up(left: Any, right: Any, expected: Any) -> None:
    one = Usage(input_tokens=1, output_tokens=2, total_tokens=3, input_tokens_details=left)
    other = Usage(input_tokens=10, output_tokens=20, total_tokens=30, input_tokens_details=right)
    total = one.plus(other)
    assert (total.input_tokens, total.output_tokens, total.total_tokens) == (11, 22, 33)
    assert total.input_tokens_details == expected
    assert one.plus(None) == one
