"""Anthropic Messages as clients speak it: what an answer looks like, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym.apis.clients.messages import MessagesClient
from gym.apis.events import unfold
from gym.apis.responses import ResponsesResponse, Usage, function_call, message, reasoning, refusal
from gym.failures import EpisodeFailure

CLIENT = MessagesClient()


def answered(*output: Any, **fields: Any) -> ResponsesResponse:
    return ResponsesResponse(id="r1", model="m", output=list(output), **fields)


@pytest.mark.parametrize(
    ("output", "fields", "reason"),
    [
        ([message("assistant", "x")], {}, "end_turn"),
        ([message("assistant", "x")], {"stop_sequence": "END"}, "stop_sequence"),
        ([function_call("f", {}, "c")], {}, "tool_use"),
        ([refusal("No.")], {}, "refusal"),
        ([], {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_tokens"),
        ([], {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "refusal"),
    ],
)
def test_stop_reasons(output: list[Any], fields: dict[str, Any], reason: str) -> None:
    said = answered(*output, **fields)
    whole = CLIENT.answer(said, {})
    delta = next(event for event in events(said) if event["type"] == "message_delta")["delta"]
    told = {"stop_reason": reason, "stop_sequence": fields.get("stop_sequence")}
    assert (delta, {key: whole[key] for key in told}) == (told, told)


def events(response: ResponsesResponse) -> list[Any]:
    encoder = CLIENT.encoder({})
    text = b"".join(encoder.event(event) for event in unfold(response, 2)).decode()
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def test_blocks_open_and_close_in_order() -> None:
    said = answered(reasoning("hm"), message("assistant", ""), message("assistant", "x"), function_call("f", {}, "c"))
    shape = [(event["type"], event.get("index")) for event in events(said)]
    of = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [kind for kind, _ in shape[:1] + shape[-2:]] == ["message_start", "message_delta", "message_stop"]
    blocks = [entry for entry in shape if entry[0] in of]
    assert [kind for kind, index in blocks if index == 0] == [of[0], of[1], of[1], of[1], of[2]]
    assert [kind for kind, index in blocks if index == 1] == [of[0], of[1], of[2]]
    assert [kind for kind, index in blocks if index == 2] == [of[0], of[1], of[1], of[2]]
    assert blocks == sorted(blocks, key=lambda entry: entry[1] or 0)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("{}", {}),
        ('{"a": ', {"malformed_arguments": '{"a": '}),
        ("[1]", {"malformed_arguments": "[1]"}),
    ],
)
def test_arguments_are_an_object(raw: str, expected: Any) -> None:
    assert CLIENT.answer(answered(function_call("f", raw, "c")), {})["content"][0]["input"] == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, {"input_tokens": 0, "output_tokens": 0}),
        (Usage(input_tokens=9, output_tokens=2), {"input_tokens": 9, "output_tokens": 2}),
        (
            Usage(
                input_tokens=9,
                output_tokens=2,
                input_tokens_details={"cached_tokens": 4, "cache_write_tokens": 3},
                output_tokens_details={"reasoning_tokens": 1},
            ),
            {
                "input_tokens": 2,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 3,
                "output_tokens": 2,
                "output_tokens_details": {"thinking_tokens": 1},
            },
        ),
    ],
)
def test_usage(usage: Usage | None, expected: dict[str, int]) -> None:
    assert CLIENT.answer(answered(usage=usage), {})["usage"] == expected


def test_what_has_no_place_is_a_failure() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "*"}
    image = {"type": "message", "role": "assistant", "content": [{"type": "output_image"}]}
    for item, kind in ((custom, "custom_tool_call"), (image, "output_image")):
        with pytest.raises(EpisodeFailure, match=f"`{kind}` cannot be carried to Anthropic Messages"):
            CLIENT.answer(answered(item), {})
        with pytest.raises(EpisodeFailure, match=f"`{kind}` cannot be carried to Anthropic Messages"):
            events(answered(item))


SEALED = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
    "encrypted_content": "sealed",
}


def test_reasoning_comes_back_with_what_its_provider_had_sealed() -> None:
    for said, expected in ((SEALED, ("rs_1", "sealed", "a\nb")), (reasoning("open"), (None, None, "open"))):
        block = CLIENT.answer(answered(said), {})["content"][0]
        streamed: dict[str, str] = {"thinking": "", "signature": ""}
        for event in events(answered(said)):
            for key in streamed.keys() & event.get("delta", {}).keys():
                streamed[key] += event["delta"][key]
        assert streamed == {"thinking": block["thinking"], "signature": block["signature"]}
        [item] = CLIENT.request({"max_tokens": 9, "messages": [{"role": "assistant", "content": [block]}]}).items()
        text = "".join(part["text"] for part in item.get("content") or item["summary"])
        assert (item["id"] if expected[0] else None, item.get("encrypted_content"), text) == expected


def test_a_broken_seal_is_open_reasoning() -> None:
    block = {"type": "thinking", "thinking": "x", "signature": "gym:{"}
    [item] = CLIENT.request({"max_tokens": 9, "messages": [{"role": "assistant", "content": [block]}]}).items()
    assert "encrypted_content" not in item
