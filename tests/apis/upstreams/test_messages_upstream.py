"""Responses <-> Anthropic Messages: tables of what becomes what, and a property over random conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym.apis.responses import (
    Item,
    ResponsesRequest,
    ResponsesResponse,
    function_call,
    function_call_output,
    message,
    reasoning,
    refusal,
)
from gym.apis.upstreams.messages import MessagesUpstream
from gym.apis.upstreams.messages_answer import MessagesDecoder
from gym.apis.upstreams.messages_request import REDACTED, THINKING
from gym.failures import EpisodeFailure
from gym.servers.base import ServerError

TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def sent(input_: Any, **fields: Any) -> dict[str, Any]:
    request = {"model": "m", "max_output_tokens": 9, "input": input_, **fields}
    return MessagesUpstream("m").ask(ResponsesRequest.model_validate(request), stream=False)[0]


def from_anthropic(answered: dict[str, Any], model: str) -> ResponsesResponse:
    return MessagesDecoder(model).whole(answered)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def tool_use(call_id: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "add", "input": arguments}


def result(call_id: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


MESSAGES: dict[str, tuple[Any, list[tuple[str, list[dict[str, Any]]]]]] = {
    "a text": ("hi", [("user", [text("hi")])]),
    "messages of one speaker are one": (
        [message("user", "a"), message("user", ""), message("user", "b")],
        [("user", [text("a"), text("b")])],
    ),
    "images": (
        [{"role": "user", "content": [IMAGE, {"type": "input_image", "image_url": "http://h/x.png"}]}],
        [("user", [PNG, {"type": "image", "source": {"type": "url", "url": "http://h/x.png"}}])],
    ),
    "a model turn, its outputs and the next question": (
        [
            message("user", "hi"),
            reasoning("hm", THINKING + "sig"),
            reasoning("", REDACTED + "blob"),
            reasoning("of another provider"),
            reasoning("of another provider", "gAAAA"),
            message("assistant", "Let me see."),
            function_call("add", {"a": 1}, "c1"),
            function_call("add", '{"a": ', "c2"),
            function_call_output("c1", "1"),
            {**function_call_output("c2", ""), "output": [{"type": "input_text", "text": "x"}, IMAGE]},
            message("user", "and?"),
        ],
        [
            ("user", [text("hi")]),
            (
                "assistant",
                [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "redacted_thinking", "data": "blob"},
                    text("Let me see."),
                    tool_use("c1", {"a": 1}),
                    tool_use("c2", {}),
                ],
            ),
            ("user", [result("c1", "1"), result("c2", [text("x"), PNG]), text("and?")]),
        ],
    ),
    "a refusal is text": (
        [message("user", "hi"), refusal("No.")],
        [("user", [text("hi")]), ("assistant", [text("No.")])],
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_input(name: str) -> None:
    given_, expected = MESSAGES[name]
    assert [(m["role"], m["content"]) for m in sent(given_)["messages"]] == expected


def test_instructions_and_leading_messages_are_the_system_prompt() -> None:
    body = sent([message("system", "b"), message("developer", "c"), message("user", "hi")], instructions="a")
    assert body["system"] == "a\n\nb\n\nc"
    assert [m["role"] for m in body["messages"]] == ["user"]


FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.5, "top_p": 0.5}, {"temperature": 0.5, "top_p": 0.5}),
    (
        {"reasoning": {"effort": "minimal", "summary": "auto"}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
    ),
    ({"reasoning": {"effort": "none"}}, {"thinking": {"type": "disabled"}}),
    ({"text": {"format": {"type": "text"}}, "store": True, "include": []}, {}),
    (
        {"tools": [TOOL]},
        {"tools": [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}, "strict": True}]},
    ),
    (
        {"tools": [{"type": "function", "name": "now"}]},
        {"tools": [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]},
    ),
    ({"tool_choice": "none", "parallel_tool_calls": False}, {}),
]


@pytest.mark.parametrize(("fields", "expected"), FIELDS)
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [text("hi")]}]
    assert sent("hi", **fields) == {"model": "m", "max_tokens": 9, "messages": messages, **expected}


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("auto", True, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", None, {"type": "any"}),
        (
            {"type": "function", "name": "add"},
            False,
            {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        ),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        (None, True, None),
    ],
)
def test_tool_choice(choice: Any, parallel: bool | None, expected: Any) -> None:
    assert sent("hi", tools=[TOOL], tool_choice=choice, parallel_tool_calls=parallel).get("tool_choice") == expected


@pytest.mark.parametrize(
    ("input_", "fields", "expected"),
    [
        ("hi", {"seed": 1}, "`seed: 1` cannot be carried to Anthropic Messages"),
        ("hi", {"text": {"format": {"type": "json_object"}}}, "`text.format"),
        ("hi", {"text": {"verbosity": "low"}}, "`text.verbosity: low`"),
        ("hi", {"reasoning": {"effort": "huge"}}, "`reasoning.effort: huge`"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "data:text/plain,x"}]}], {}, "not base64"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], {}, "`input_audio`"),
        ([{"type": "web_search_call"}], {}, "`web_search_call`"),
    ],
)
def test_refused_by_name(input_: Any, fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ServerError, match=expected) as refused:
        sent(input_, **fields)
    assert refused.value.status == 400


def answer(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(blocks), "stop_reason": "end_turn", **fields}


def outline(output: list[Item]) -> list[tuple[Any, ...]]:
    shapes = []
    for item in output:
        said = (item.get("content") or [{}])[0].get("text")
        shapes.append((item["type"], item.get("call_id"), item.get("name"), item.get("arguments"), said))
    return shapes


def test_output() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "redacted_thinking", "data": "blob"},
        {**text("hi"), "citations": None},
        text(""),
        tool_use("c1", {"a": 1}),
    ]
    response = from_anthropic(answer(*blocks, stop_reason="tool_use", model="served"), "m")
    assert outline(response.output) == [
        ("reasoning", None, None, None, "hm"),
        ("reasoning", None, None, None, "unsigned"),
        ("reasoning", None, None, None, None),
        ("message", None, None, None, "hi"),
        ("function_call", "c1", "add", '{"a": 1}', None),
    ]
    sealed = [item.get("encrypted_content") for item in response.output[:3]]
    assert sealed == [THINKING + "sig", None, REDACTED + "blob"]
    assert (response.status, response.model, response.usage) == ("completed", "served", None)


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("max_tokens", "max_output_tokens"),
        ("model_context_window_exceeded", "max_output_tokens"),
        ("refusal", "content_filter"),
    ],
)
def test_stop_reasons(reason: str, why: str) -> None:
    response = from_anthropic(answer(text("hi"), stop_reason=reason), "m")
    assert (response.status, response.incomplete_details) == ("incomplete", {"reason": why})


def test_why_the_model_declined_is_told() -> None:
    details = {"type": "refusal", "explanation": "No weapons."}
    response = from_anthropic(answer(stop_reason="refusal", stop_details=details), "m")
    assert [item["content"] for item in response.output] == [[{"type": "refusal", "refusal": "No weapons."}]]


def test_an_output_format_keeps_its_description() -> None:
    schema = {"type": "object", "description": "An answer."}
    form = {"type": "json_schema", "name": "n", "strict": True, "description": "Short.", "schema": schema}
    sent_form = sent("hi", text={"format": form})["output_config"]["format"]
    assert sent_form == {"type": "json_schema", "schema": {**schema, "description": "Short.\nAn answer."}}


@pytest.mark.parametrize("last", ["", [], [{"type": "input_text", "text": ""}]])
def test_an_empty_last_message_is_refused(last: Any) -> None:
    """The model would go on with its own last message."""
    items = [message("user", "hi"), message("assistant", "x"), {"role": "user", "content": last}]
    with pytest.raises(ServerError, match=r"an empty message at the end \(input\[2\]\) cannot be carried"):
        sent(items)


@pytest.mark.parametrize(
    ("given_", "input_tokens", "details"),
    [
        ({}, 10, None),
        ({"cache_read_input_tokens": 4}, 14, {"cached_tokens": 4}),
        (
            {"cache_read_input_tokens": 4, "cache_creation_input_tokens": 3},
            17,
            {"cached_tokens": 4, "cache_write_tokens": 3},
        ),
    ],
)
def test_usage(given_: dict[str, int], input_tokens: int, details: Any) -> None:
    usage = from_anthropic(answer(usage={"input_tokens": 10, "output_tokens": 5, **given_}), "m").usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (input_tokens, 5, input_tokens + 5)
    assert (usage.input_tokens_details, usage.output_tokens_details) == (details, None)


@pytest.mark.parametrize("bad", [{}, {"content": "hi"}, answer({"type": "server_tool_use"}), answer({"type": "text"})])
def test_malformed_answers(bad: dict[str, Any]) -> None:
    with pytest.raises(EpisodeFailure, match="no message: content") as failure:
        from_anthropic(bad, "m")
    assert failure.value.kind == "malformed_answer"


texts = st.text(min_size=1, max_size=12)
ids = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
objects = st.dictionaries(ids, st.integers() | texts | st.none(), max_size=3)


@settings(deadline=None)
@given(texts, texts, st.lists(st.tuples(ids, ids, objects, texts), max_size=4, unique_by=lambda entry: entry[0]))
def test_a_conversation_comes_back_whole(thought: str, said_text: str, calls: list[tuple[Any, ...]]) -> None:
    """What a model said, sent back and said again: the same reasoning, text, calls, ids and outputs."""
    said = [reasoning(thought, THINKING + "sig"), message("assistant", said_text)]
    said += [function_call(name, arguments, call_id) for call_id, name, arguments, _ in calls]
    outputs = [function_call_output(call_id, output) for call_id, _, _, output in calls]
    user, again, *rest = json.loads(json.dumps(sent([message("user", said_text), *said, *outputs])["messages"]))
    assert user["content"] == [text(said_text)]
    assert outline(from_anthropic(answer(*again["content"]), "m").output) == outline(said)
    results = [block for entry in rest for block in entry["content"]]
    assert results == [result(output["call_id"], output["output"]) for output in outputs]
