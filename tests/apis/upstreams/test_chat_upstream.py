"""Responses <-> Chat Completions: tables of what becomes what, and a property over random conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym.apis.events import fold
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
from gym.apis.sse import Sent
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.chat_answer import ChatDecoder
from gym.apis.upstreams.chat_request import ChatDialect
from gym.failures import EpisodeFailure
from gym.servers.base import ServerError

PLAIN = ChatDialect()
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}


def sent(input_: Any, dialect: ChatDialect = PLAIN, **fields: Any) -> dict[str, Any]:
    request = ResponsesRequest.model_validate({"model": "m", "input": input_, **fields})
    return ChatUpstream("m", dialect).ask(request, stream=False)[0]


def from_chat(answered: dict[str, Any], model: str) -> ResponsesResponse:
    return ChatDecoder(model).whole(answered)


def call(call_id: str, arguments: str = '{"a": 1}') -> Item:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": arguments}


def chat_call(call_id: str, arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low", "file_id": None}

MESSAGES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "a text": ("hi", [{"role": "user", "content": "hi"}]),
    "no type": ([{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
    "parts": ([message("user", "hi")], [{"role": "user", "content": "hi"}]),
    "an image": (
        [{"role": "user", "content": [{"type": "input_text", "text": "see"}, IMAGE]}],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                ],
            }
        ],
    ),
    "system at the head is one message": (
        [message("system", "a"), message("system", "b"), message("user", "hi")],
        [{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "hi"}],
    ),
    "developer stays": (
        [message("developer", "a"), message("user", "hi")],
        [{"role": "developer", "content": "a"}, {"role": "user", "content": "hi"}],
    ),
    "a model turn is one message": (
        [
            message("user", "hi"),
            reasoning("hm"),
            message("assistant", "Let me see."),
            call("c1"),
            call("c2"),
            function_call_output("c1", "1"),
            function_call_output("c2", "2"),
            message("assistant", "3"),
        ],
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": [chat_call("c1"), chat_call("c2")]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
            {"role": "assistant", "content": "3"},
        ],
    ),
    "reasoning alone is not sent": ([message("user", "hi"), reasoning("hm")], [{"role": "user", "content": "hi"}]),
    "a refusal is text": ([refusal("No.")], [{"role": "assistant", "content": "No."}]),
    "output parts": (
        [call("c1"), {**function_call_output("c1", ""), "output": [{"type": "input_text", "text": "x"}]}],
        [
            {"role": "assistant", "content": None, "tool_calls": [chat_call("c1")]},
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        ],
    ),
    "bookkeeping of items is dropped": (
        [{**call("c1"), "id": "fc_1", "status": "completed", "namespace": None, "generation_token_ids": [1, 2]}],
        [{"role": "assistant", "content": None, "tool_calls": [chat_call("c1")]}],
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_input(name: str) -> None:
    given_, expected = MESSAGES[name]
    assert sent(given_)["messages"] == expected


@pytest.mark.parametrize("arguments", ['{"a": 2, "b": ', "", "[1]", "7", "null", '{"a": NaN}', "[" * 100_000])
def test_undecodable_arguments_go_back_as_an_empty_object(arguments: str) -> None:
    assert sent([call("c1", arguments)])["messages"][0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_decodable_arguments_go_back_as_the_model_wrote_them() -> None:
    raw = '{ "b":1.0,"a": "\\u00e9" }'
    assert sent([call("c1", raw)])["messages"][0]["tool_calls"][0]["function"]["arguments"] == raw


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("reasoning_content", {"reasoning_content": "hm"}),
        ("reasoning", {"reasoning": "hm"}),
        ("both", {"reasoning_content": "hm", "reasoning": "hm"}),
    ],
)
def test_reasoning_goes_back_where_it_is_told_to(field: Any, expected: dict[str, str]) -> None:
    items = [message("user", "hi"), reasoning("hm"), message("assistant", "3")]
    messages = sent(items, ChatDialect(reasoning_field=field))["messages"]
    assert messages[1] == {"role": "assistant", "content": "3", **expected}


def test_instructions_and_developer_messages_become_one_system_message() -> None:
    dialect = ChatDialect(replace_developer_role_with_system=True)
    body = sent([message("developer", "b"), message("user", "hi")], dialect, instructions="a")
    assert [(m["role"], m["content"]) for m in body["messages"]] == [("system", "a\n\nb"), ("user", "hi")]


SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None}
FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.0, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
    ({"max_output_tokens": 9}, {"max_tokens": 9}),
    ({"reasoning": {"effort": "high", "summary": "auto"}}, {"reasoning_effort": "high"}),
    ({"reasoning": None, "text": None}, {}),
    ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    (
        {"text": {"format": SCHEMA}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
            }
        },
    ),
    ({"tools": [TOOL]}, {"tools": [{"type": "function", "function": {k: TOOL[k] for k in TOOL if k != "type"}}]}),
    ({"tool_choice": "auto", "parallel_tool_calls": True}, {}),
    (
        {
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "metadata": {"a": "b"},
            "prompt_cache_key": "k",
            "truncation": "disabled",
            "service_tier": "auto",
            "background": False,
            "previous_response_id": None,
        },
        {},
    ),
]


@pytest.mark.parametrize(("fields", "expected"), FIELDS)
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sent("hi", **fields) == {"model": "m", "messages": [{"role": "user", "content": "hi"}], **expected}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tool_choice(choice: Any, expected: Any) -> None:
    body = sent("hi", tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert (body["tool_choice"], body["parallel_tool_calls"]) == (expected, False)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("hi", {"background": True}, "`background: True`"),
    ("hi", {"previous_response_id": "r"}, "`previous_response_id: r`"),
    ("hi", {"conversation": {"id": "c"}}, "`conversation`"),
    ("hi", {"include": ["message.output_text.logprobs"]}, "`include`"),
    ("hi", {"truncation": "auto"}, "`truncation: auto`"),
    ("hi", {"reasoning": {"context": "all"}}, "`reasoning.context: all`"),
    ("hi", {"reasoning": "high"}, "`reasoning` is not a mapping"),
    ("hi", {"text": {"format": {"type": "grammar"}}}, "`text.format"),
    ("hi", {"tools": [{"type": "web_search"}]}, r"type `web_search` \(tools\[0\]\)"),
    ("hi", {"tools": [{"type": "function"}]}, r"tools\[0\] has no `name`"),
    ("hi", {"tools": [{**TOOL, "async": True}]}, r"`tools\[0\].async`"),
    ("hi", {"n": 2}, "`n: 2`"),
    ("hi", {"logprobs": True}, "`logprobs: True`"),
    ("hi", {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ("hi", {"tool_choice": "required"}, "without tools"),
    ([{"type": "local_shell_call", "action": {}}], {}, r"type `local_shell_call` \(input\[0\]\)"),
    ([{"text": "x"}], {}, "type `None`"),
    ([{"role": "critic", "content": "x"}], {}, "role `critic`"),
    ([{"type": "function_call", "name": "add"}], {}, r"input\[0\] has no `call_id`"),
    ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], {}, r"`input_file` \(input\[0\]"),
    ([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}], {}, "file_id"),
    ([{"role": "user", "content": [{"type": "input_text"}]}], {}, r"content\[0\] has no `text`"),
    ([{"role": "user", "content": ["x"]}], {}, "a part of type `str`"),
    ([{"role": "user", "content": 7}], {}, "neither a text nor a list"),
    ([{"role": "system", "content": [IMAGE]}], {}, "`input_image`"),
    ([{**function_call_output("c1", ""), "output": [{"type": "x"}]}], {}, r"`x` \(input\[0\].output\[0\]\)"),
]


def test_system_messages_with_more_than_a_text_stay_apart() -> None:
    """What a client of the same API sends goes on as it is."""
    messages = [{"role": "system", "name": "A", "content": "s"}, {"role": "developer", "content": "d"}]
    sent = ChatUpstream("m", ChatDialect(replace_developer_role_with_system=True)).native({"messages": messages})
    assert sent["messages"] == [messages[0], {"role": "system", "content": "d"}]


@pytest.mark.parametrize(("input_", "fields", "expected"), REFUSED)
def test_refused_by_name(input_: Any, fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ServerError, match=expected) as refused:
        sent(input_, **fields)
    assert refused.value.status == 400


def answer(message_: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "choices": [{"message": message_, "finish_reason": fields.pop("finish_reason", "stop")}],
        **fields,
    }


def outline(output: list[Item]) -> list[tuple[Any, ...]]:
    shapes = []
    for item in output:
        content = item.get("content") or [{}]
        text = content[0].get("text", content[0].get("refusal"))
        shapes.append((item["type"], item.get("call_id"), item.get("name"), item.get("arguments"), text))
    return shapes


OUTPUTS: list[tuple[dict[str, Any], list[tuple[Any, ...]]]] = [
    ({"content": "hi"}, [("message", None, None, None, "hi")]),
    ({"content": None, "refusal": "No."}, [("message", None, None, None, "No.")]),
    (
        {"content": "hi", "reasoning_content": "hm"},
        [("reasoning", None, None, None, "hm"), ("message", None, None, None, "hi")],
    ),
    ({"content": "", "reasoning": "hm"}, [("reasoning", None, None, None, "hm")]),
    (
        {"content": None, "tool_calls": [chat_call("c1"), chat_call("c2", '{"a": ')]},
        [("function_call", "c1", "add", '{"a": 1}', None), ("function_call", "c2", "add", '{"a": ', None)],
    ),
    (
        {"tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}]},
        [("function_call", "c1", "add", '{"a": 1}', None)],
    ),
    ({"tool_calls": [{"id": "c1", "function": {"name": "add"}}]}, [("function_call", "c1", "add", "{}", None)]),
    ({"content": ""}, []),
]


@pytest.mark.parametrize(("message_", "expected"), OUTPUTS)
def test_output(message_: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    response = from_chat(answer(message_), "m")
    assert outline(response.output) == expected
    assert (response.status, response.model) == ("completed", "m")


PAGE = {"url": "u", "start_index": 0, "end_index": 1}
CITED = {"type": "url_citation", "url_citation": PAGE}


def read_whole(said: dict[str, Any]) -> ResponsesResponse:
    return from_chat(answer(said), "m")


def read_stream(said: dict[str, Any]) -> ResponsesResponse:
    decoder = ChatDecoder("m")
    deltas = [{"delta": {key: value}} for key, value in said.items()]
    chunks = [*deltas, {"delta": {}, "finish_reason": "stop"}]
    events = [event for chunk in chunks for event in decoder.feed(Sent("", json.dumps({"choices": [chunk]})))]
    return fold([*events, *decoder.end()])


@pytest.mark.parametrize("read", [read_whole, read_stream])
def test_what_an_answer_has_beside_its_text(read: Callable[[dict[str, Any]], ResponsesResponse]) -> None:
    told = read({"role": "assistant", "content": "x", "annotations": [CITED], "images": [{"a": 1}]})
    assert told.output[0]["content"][0]["annotations"] == [{"type": "url_citation", **PAGE}]
    [call] = read({"function_call": {"name": "add", "arguments": "{}"}}).output
    assert (call["name"], call["arguments"]) == ("add", "{}")
    with pytest.raises(EpisodeFailure, match="the answer is only `images`, which cannot be carried"):
        read({"role": "assistant", "content": "", "images": [{"a": 1}]})


def test_a_call_without_id_gets_one() -> None:
    output = from_chat(answer({"tool_calls": [{"function": {"name": "add"}}]}), "m").output
    assert output[0]["call_id"].startswith("call_")


@pytest.mark.parametrize(("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_stop_reasons(reason: str, why: str) -> None:
    response = from_chat(answer({"content": "hi"}, finish_reason=reason, model="served"), "m")
    assert (response.status, response.incomplete_details, response.model) == ("incomplete", {"reason": why}, "served")


def test_usage() -> None:
    counts = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    usage = from_chat(answer({"content": "hi"}, usage=counts), "m").usage
    assert usage is not None
    assert usage.model_dump() == {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None, "completion_tokens": 3}])
def test_unknown_usage_stays_unknown(usage: Any) -> None:
    assert from_chat(answer({"content": "hi"}, usage=usage), "m").usage is None


@pytest.mark.parametrize(
    "bad", [{}, {"choices": []}, {"choices": [{}]}, answer({"content": 7}), answer({"tool_calls": [{"id": "c"}]})]
)
def test_malformed_answers(bad: dict[str, Any]) -> None:
    with pytest.raises(EpisodeFailure, match="no chat completion: choices") as failure:
        from_chat(bad, "m")
    assert failure.value.kind == "malformed_answer"


texts = st.text(min_size=1, max_size=12)
ids = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
objects = st.dictionaries(ids, st.integers() | texts | st.none(), max_size=3)


@settings(deadline=None)
@given(texts, texts, st.lists(st.tuples(ids, ids, objects, texts), max_size=4, unique_by=lambda entry: entry[0]))
def test_a_conversation_comes_back_whole(thought: str, text: str, calls: list[tuple[Any, ...]]) -> None:
    """What a model said, sent back and said again: the same reasoning, text, calls, ids and outputs."""
    said = [reasoning(thought), message("assistant", text)]
    said += [function_call(name, arguments, call_id) for call_id, name, arguments, _ in calls]
    outputs = [function_call_output(call_id, output) for call_id, _, _, output in calls]
    body = sent([message("user", text), *said, *outputs], ChatDialect(reasoning_field="reasoning_content"))
    user, again, *results = json.loads(json.dumps(body["messages"]))
    assert user == {"role": "user", "content": text}
    assert outline(from_chat(answer(again), "m").output) == outline(said)
    assert [(m["tool_call_id"], m["content"]) for m in results] == [(o["call_id"], o["output"]) for o in outputs]
