"""Items that grow side by side, and streams of engines with habits of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym.apis.events import Delta, Event, Flow, ItemDone, ItemStarted, begun, begun_call, fold
from gym.apis.responses import Item
from gym.apis.sse import Sent
from gym.apis.upstreams.chat_answer import ChatDecoder
from gym.failures import EpisodeFailure


def names(events: list[Event]) -> list[str]:
    shown = []
    for event in events:
        match event:
            case ItemStarted(item):
                shown.append(f"start {item.get('call_id', item['type'])}")
            case Delta(_, text):
                shown.append(text)
            case ItemDone(item):
                shown.append(f"done {item.get('call_id', item['type'])}")
    return shown


def test_items_come_one_after_another() -> None:
    flow = Flow()
    first, second = flow.open(begun_call("a", "c1"), "arguments"), flow.open(begun_call("b", "c2"), "arguments")
    flow.add(second, "2")
    flow.add(first, "1")
    assert names(flow.take()) == ["start c1", "1"]
    flow.add(first, "1")
    flow.close(second)
    assert names(flow.take()) == ["1"]
    third = flow.open(begun("text"), "text")
    flow.add(third, "x")
    flow.close(first)
    assert names(flow.take()) == ["done c1", "start c2", "2", "done c2", "start message", "x"]
    flow.close(third)
    flow.close(third)
    assert names(flow.take()) == ["done message"]
    assert flow.take() == []


def call(**fields: Any) -> dict[str, Any]:
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {"tool_calls": [{**fields, "function": function}]}


TWO = [("c1", "a", {"x": 1}), ("c2", "b", {"y": 2})]
HABITS: dict[str, list[dict[str, Any]]] = {
    "as the reference says": [
        call(index=0, id="c1", name="a", arguments=""),
        call(index=0, arguments='{"x"'),
        call(index=0, arguments=": 1}"),
        call(index=1, id="c2", name="b", arguments='{"y": 2}'),
    ],
    "side by side": [
        call(index=0, id="c1", name="a", arguments='{"x"'),
        call(index=1, id="c2", name="b", arguments='{"y"'),
        call(index=0, arguments=": 1}"),
        call(index=1, arguments=": 2}"),
    ],
    "always the same index": [
        call(index=0, id="c1", name="a", arguments='{"x": 1}'),
        call(index=0, id="c2", name="b", arguments='{"y": 2}'),
    ],
    "no index": [
        call(id="c1", name="a", arguments='{"x":'),
        call(arguments=" 1}"),
        call(id="c2", name="b", arguments='{"y": 2}'),
    ],
    "arguments as objects": [
        call(index=0, id="c1", name="a", arguments={"x": 1}),
        call(index=1, id="c2", name="b", arguments={"y": 2}),
    ],
    "the id again and again": [
        call(index=0, id="c1", name="a", arguments='{"x":'),
        call(index=0, id="c1", arguments=" 1}"),
        call(index=1, id="c2", name="b", arguments='{"y": 2}'),
    ],
    "the name later": [
        call(index=0, id="c1", arguments='{"x":'),
        call(index=0, name="a", arguments=" 1}"),
        call(index=1, id="c2", name="b", arguments='{"y": 2}'),
    ],
    "white space at the end": [
        call(index=0, id="c1", name="a", arguments='{"x": 1}'),
        call(index=1, id="c2", name="b", arguments='{"y": 2}'),
        call(index=0, arguments="\n"),
    ],
}


def fed(deltas: list[dict[str, Any]], finish: str | None = "tool_calls") -> list[Item]:
    decoder = ChatDecoder("m")
    events = []
    for delta in deltas:
        events += decoder.feed(Sent("", json.dumps({"choices": [{"delta": delta, "finish_reason": None}]})))
    events += decoder.feed(Sent("", json.dumps({"choices": [{"delta": None, "finish_reason": finish}], "usage": {}})))
    events += decoder.feed(Sent("", json.dumps({"choices": None, "usage": None})))
    return fold([*events, *decoder.end()]).output


@pytest.mark.parametrize("habit", HABITS)
def test_parallel_calls_of_any_engine(habit: str) -> None:
    output = fed(HABITS[habit])
    assert [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in output] == TWO


def test_a_call_without_arguments_and_id() -> None:
    [item] = fed([call(index=0, name="a")])
    assert (item["arguments"], item["call_id"][:5]) == ("{}", "call_")


def test_thought_and_speech_that_alternate_stay_in_order() -> None:
    output = fed([{"reasoning": "a"}, {"reasoning_content": "b"}, {"content": "c"}, {"reasoning": "d"}], "stop")
    assert [(item["type"], item["content"][0]["text"]) for item in output] == [
        ("reasoning", "ab"),
        ("message", "c"),
        ("reasoning", "d"),
    ]


def test_a_call_without_a_name_goes_on_as_it_is() -> None:
    (item,) = fed([call(index=0, id="c1", arguments='{"a": '), call(index=0, arguments="1}")], "tool_calls")
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "", '{"a": 1}')


@pytest.mark.parametrize(
    ("deltas", "text"),
    [
        (
            [call(index=0, id="c1", name="a", arguments="{}"), {"content": "x"}, call(index=0, arguments="{}")],
            "more arguments for the call c1",
        ),
        ([{"content": 7}], "choices.0.delta.content"),
    ],
)
def test_what_makes_no_sense_is_malformed(deltas: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(EpisodeFailure, match=text) as failure:
        fed(deltas)
    assert failure.value.kind == "malformed_answer"


ERRORS: list[tuple[Any, str, int | None]] = [
    ({"error": {"message": "gone", "code": 503}}, "provider_error", 503),
    ({"error": {"message": "slow", "type": "rate_limit_error"}}, "provider_rate_limited", 429),
    ({"error": "odd"}, "provider_error", 500),
    ({"error": {"message": "m", "code": "context_length_exceeded"}}, "context_length_exceeded", 400),
]


@pytest.mark.parametrize(("event", "kind", "status"), ERRORS)
def test_errors_within_a_stream(event: Any, kind: str, status: int) -> None:
    with pytest.raises(EpisodeFailure) as failure:
        ChatDecoder("m").feed(Sent("", json.dumps(event)))
    assert (failure.value.kind, getattr(failure.value, "status", None)) == (kind, status)


def test_token_ids_are_kept_on_the_last_item() -> None:
    decoder = ChatDecoder("m", keep_token_ids=True)
    events = []
    for number, delta in enumerate(({"reasoning": "a"}, {"content": "b"}, {"content": "c"})):
        logprobs = {"content": [{"token": f"token_id:{number}", "logprob": -0.5 * number}]}
        choice = {"delta": delta, "logprobs": logprobs, "token_ids": [number + 10]}
        events += decoder.feed(Sent("", json.dumps({"prompt_token_ids": [1, 2], "choices": [choice]})))
    events += decoder.feed(Sent("", json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})))
    first, last = fold([*events, *decoder.end()]).output
    assert "generation_token_ids" not in first
    kept = {"prompt_token_ids": [1, 2], "generation_token_ids": [10, 11, 12], "generation_log_probs": [0.0, -0.5, -1.0]}
    assert kept.items() <= last.items()


WHOLE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"prompt_token_ids": [1], "choices": [{"message": {"content": "x"}, "token_ids": [2]}]},
        {"prompt_token_ids": [1], "generation_token_ids": [2]},
    ),
    (
        {
            "choices": [
                {
                    "message": {"content": "x"},
                    "logprobs": {"content": [{"token": "token_id:5", "logprob": -1}, {"token": "b", "logprob": -2}]},
                }
            ]
        },
        {"generation_token_ids": [5], "generation_log_probs": [-1.0, -2.0]},
    ),
    (
        {
            "choices": [
                {
                    "message": {"content": "", "prompt_token_ids": [1], "generation_token_ids": [2]},
                    "token_ids": [3],
                }
            ]
        },
        {"prompt_token_ids": [1], "generation_token_ids": [2]},
    ),
    ({"choices": [{"message": {"content": "x"}}]}, {}),
]


@pytest.mark.parametrize(("answer", "expected"), WHOLE)
def test_sources_of_token_ids(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    [item] = ChatDecoder("m", keep_token_ids=True).whole(answer).output
    assert {key: value for key, value in item.items() if "_token_ids" in key or "_probs" in key} == expected
