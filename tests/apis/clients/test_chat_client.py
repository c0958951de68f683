"""Chat Completions as clients speak it: what a request becomes, what is refused, what an answer looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym.apis.clients.chat import ChatClient
from gym.apis.events import unfold
from gym.apis.responses import ResponsesResponse, Usage, function_call, message, reasoning, refusal
from gym.apis.upstreams.messages import MessagesUpstream
from gym.apis.upstreams.responses import ResponsesUpstream
from gym.failures import EpisodeFailure
from gym.servers.base import ServerError

CLIENT = ChatClient()
HI = [{"role": "user", "content": "hi"}]


def given(**fields: Any) -> dict[str, Any]:
    request = CLIENT.request({"messages": HI, **fields})
    return request.model_dump(exclude_unset=True, exclude={"input"})


F_CHOICE = {"type": "function", "function": {"name": "f"}}

FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"model": "m", "temperature": 0, "top_p": 1, "seed": 3}, {"model": "m", "temperature": 0, "top_p": 1, "seed": 3}),
    ({"max_tokens": 7}, {"max_output_tokens": 7}),
    ({"max_tokens": 7, "max_completion_tokens": 5}, {"max_output_tokens": 5}),
    ({"reasoning_effort": "low", "verbosity": "high"}, {"reasoning": {"effort": "low"}, "text": {"verbosity": "high"}}),
    ({"reasoning": {"effort": "low", "exclude": False}}, {"reasoning": {"effort": "low"}}),
    ({"reasoning": {"enabled": True}}, {"reasoning": {"effort": "medium"}}),
    ({"reasoning": {"enabled": False}}, {"reasoning": {"effort": "none"}}),
    ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"tools": [{"type": "function", "strict": False, "name": "f", "parameters": {}}]},
    ),
    (
        {
            "tools": [
                {
                    "type": "custom",
                    "custom": {
                        "name": "p",
                        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}},
                    },
                }
            ]
        },
        {
            "tools": [
                {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}
            ]
        },
    ),
    ({"tool_choice": "required"}, {"tool_choice": "required"}),
    (
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tool_choice": {"type": "function", "name": "f"}},
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [F_CHOICE]}}},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
    ),
    ({"stream": True, "stream_options": {"include_usage": True}, "n": None}, {}),
]


@pytest.mark.parametrize(("fields", "expected"), FIELDS)
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert given(**fields) == expected


def test_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    patch = {"id": "c2", "type": "custom", "custom": {"name": "p", "input": "*"}}
    image = {"type": "image_url", "image_url": {"url": "http://h/x.png", "detail": "low"}}
    request = CLIENT.request(
        {
            "messages": [
                {"role": "developer", "content": "d"},
                {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
                {"role": "assistant", "content": "x", "reasoning": "hm", "tool_calls": [call, patch]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "1"}]},
                {"role": "tool", "tool_call_id": "c2", "content": "2", "name": "p"},
                {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
                {"role": "assistant", "content": None, "refusal": "No."},
            ]
        }
    )
    shapes = [(item["type"], item.get("role") or item.get("call_id")) for item in request.items()]
    assert shapes == [
        ("message", "developer"),
        ("message", "user"),
        ("reasoning", None),
        ("message", "assistant"),
        ("function_call", "c1"),
        ("custom_tool_call", "c2"),
        ("function_call_output", "c1"),
        ("custom_tool_call_output", "c2"),
        ("message", "assistant"),
        ("message", "assistant"),
    ]
    assert request.items()[1]["content"] == [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "http://h/x.png", "detail": "low"},
    ]
    assert request.items()[6]["output"] == [{"type": "input_text", "text": "1"}]
    assert request.items()[8]["content"][0]["text"] == "ab"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages: List should have at least 1 item"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\] has no `tool_call_id`"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, 'the tool call "c" has no `function`'),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "audio"}]}]},
        r"an assistant's part of type `audio` \(messages\[0\].content\[0\]\)",
    ),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, r"`messages\[0\].function_call`"),
    ({"tools": [{"type": "web_search"}]}, r"tools\[0\] is neither a function nor a custom tool"),
    ({"tools": 3}, "tools: Input should be a valid list"),
    ({"metadata": "x"}, "metadata: Input should be a valid dictionary"),
    ({"messages": [{"role": "user", "name": "Ann", "content": "x"}]}, r"`messages\[0\].name`"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "zz": 1}]}]},
        r"`messages\[0\].content\[0\].zz`",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}, "zz": {"a": 1}}]}]},
        r"`messages\[0\].tool_calls\[0\].zz`",
    ),
    ({"tools": [{"type": "function", "function": {"name": "f"}, "zz": 1}]}, r"`tools\[0\].zz`"),
    ({"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]}, r"`messages\[0\].reasoning_content`"),
    ({"text": {"verbosity": "low"}}, "`text`"),
    ({"max_output_tokens": 5}, "`max_output_tokens`"),
    ({"reasoning": {"exclude": True}}, "`reasoning.exclude`"),
    ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, r"a second effort \(reasoning.effort\)"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED)
def test_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError, match=text) as refused:
        CLIENT.request({"messages": HI, **fields})
    assert refused.value.status == 400


@pytest.mark.parametrize("fields", [{"logprobs": True}, {"functions": [{}]}, {"audio": {}}, {"seed": 1}, {"n": 2}])
@pytest.mark.parametrize("upstream", [MessagesUpstream("m"), ResponsesUpstream("m")])
def test_what_the_other_side_lacks_is_refused_by_name(upstream: Any, fields: dict[str, Any]) -> None:
    request = CLIENT.request({"messages": HI, "max_tokens": 9, **fields})
    with pytest.raises(ServerError, match=f"`{next(iter(fields))}"):
        upstream.ask(request, stream=False)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"verbosity": "low"}, "`verbosity: low`"),
        ({"reasoning_effort": "huge"}, "`reasoning_effort: huge`"),
        ({"response_format": {"type": "json_object"}}, "`response_format.type: json_object`"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "zz": 1}}},
            "`response_format.json_schema.zz`",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "zz": 1}}]}, r"`tools\[0\].function.zz`"),
        ({"tools": [{"type": "custom", "custom": {"name": "f", "zz": 1}}]}, r"`tools\[0\].custom.zz`"),
        (
            {"messages": [*HI, {"role": "user", "content": [{"type": "input_audio"}]}]},
            r"\(messages\[1\].content\[0\]\)",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": ""}]},
            r"end \(messages\[1\]\)",
        ),
    ],
)
def test_refusals_name_what_the_client_wrote(fields: dict[str, Any], named: str) -> None:
    request = CLIENT.request({"messages": HI, "max_tokens": 9, **fields})
    with pytest.raises(ServerError, match=f"{named} cannot be carried to Anthropic Messages"):
        MessagesUpstream("m").ask(request, stream=False)


def test_an_empty_turn_of_the_model_stays_one() -> None:
    request = CLIENT.request({"messages": [*HI, {"role": "assistant", "content": ""}, *HI]})
    body, _ = ResponsesUpstream("m").ask(request, stream=False)
    assert [item["role"] for item in body["input"]] == ["user", "assistant", "user"]


ZEROS = {"frequency_penalty": 0, "presence_penalty": 0.0, "n": 1, "logprobs": False, "store": False, "user": "u"}


@pytest.mark.parametrize("upstream", [MessagesUpstream("m"), ResponsesUpstream("m")])
def test_what_changes_nothing_is_dropped(upstream: Any) -> None:
    """As Copilot sends it."""
    request = CLIENT.request({"messages": HI, "max_tokens": 9, "stop": None, "top_p": 0.95, **ZEROS})
    body, _ = upstream.ask(request, stream=False)
    assert not body.keys() & {"frequency_penalty", "presence_penalty", "n", "logprobs", "stop"}


def answered(*output: Any, **fields: Any) -> ResponsesResponse:
    return ResponsesResponse(id="r1", model="m", created_at=1, output=list(output), **fields)


def test_an_answer() -> None:
    usage = Usage(input_tokens=5, output_tokens=2, output_tokens_details={"reasoning_tokens": 1})
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "p", "input": "*"}
    said = answered(reasoning("hm"), message("assistant", "x"), function_call("f", {}, "c1"), custom, usage=usage)
    assert CLIENT.answer(said, {}) == {
        "id": "r1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "logprobs": None,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "x",
                    "refusal": None,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "c2", "type": "custom", "custom": {"name": "p", "input": "*"}},
                    ],
                },
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    }


def chunks(response: ResponsesResponse, body: dict[str, Any]) -> list[Any]:
    encoder = CLIENT.encoder(body)
    text = b"".join(encoder.event(event) for event in unfold(response, 2)).decode()
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def test_usage_is_streamed_where_it_is_asked_for() -> None:
    said = answered(message("assistant", "x"), usage=Usage(input_tokens=5, output_tokens=2))
    assert all("usage" not in chunk for chunk in chunks(said, {}))
    last = chunks(said, {"stream_options": {"include_usage": True}})[-1]
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 7)


def test_several_messages_are_one_text() -> None:
    said = answered(message("assistant", "a"), refusal("No."), message("assistant", "b"))
    streamed = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks(said, {}))
    whole = CLIENT.answer(said, {})["choices"][0]["message"]
    assert streamed == whole["content"] == "a\nb"
    assert whole["refusal"] == "No."


def test_what_has_no_place_is_a_failure() -> None:
    said = answered({"type": "web_search_call", "id": "w"})
    with pytest.raises(EpisodeFailure, match="an item of type `web_search_call` cannot be carried"):
        CLIENT.answer(said, {})
    with pytest.raises(EpisodeFailure, match="an item of type `web_search_call` cannot be carried"):
        chunks(said, {})


def test_sources_of_the_web_are_told() -> None:
    cited = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    part = {"type": "output_text", "text": "b", "annotations": [cited, {"type": "file_citation"}]}
    said = answered(message("assistant", "a"), {"type": "message", "role": "assistant", "content": [part]})
    expected = [{"type": "url_citation", "url_citation": {"url": "u", "title": "t", "start_index": 2, "end_index": 3}}]
    assert CLIENT.answer(said, {})["choices"][0]["message"]["annotations"] == expected
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(said, {})]
    assert [delta["annotations"] for delta in deltas if "annotations" in delta] == [expected]


def test_a_message_without_any_text_that_can_be_carried_is_a_failure() -> None:
    said = answered({"type": "message", "role": "assistant", "content": [{"type": "output_image"}]})
    for answer in (CLIENT.answer, chunks):
        with pytest.raises(EpisodeFailure, match="a part of type `output_image` cannot be carried"):
            answer(said, {})


def test_bookkeeping_of_earlier_answers_is_dropped() -> None:
    """As Hermes and LiteLLM send it back."""
    call = {"id": "c", "call_id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "finish_reason": "tool_calls", "annotations": [], "audio": None, "tool_calls": [call]}
    output = {"role": "tool", "name": "f", "tool_name": "f", "tool_call_id": "c", "content": "x"}
    kinds = [item["type"] for item in CLIENT.request({"messages": [*HI, said, output]}).items()]
    assert kinds == ["message", "function_call", "function_call_output"]
