"""Namespaces, custom tools and tools that come as items, over APIs that know only functions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gym.apis.events import Event, ItemDone, ItemStarted, fold
from gym.apis.responses import ResponsesRequest
from gym.apis.sse import Sent
from gym.apis.tools import LONGEST_NAME, flat_name
from gym.apis.upstreams.api import Decoder, UpstreamApi
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.messages import MessagesUpstream
from gym.servers.base import ServerError

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches files.", "format": GRAMMAR}
LOOKUP = {"type": "function", "name": "lookup", "description": "Looks up.", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "mcp__gym", "description": "Of the gym.", "tools": [LOOKUP]}
BROUGHT = {"type": "additional_tools", "role": "developer", "tools": [{**LOOKUP, "name": "late"}]}
UPSTREAMS: list[UpstreamApi] = [ChatUpstream("m"), MessagesUpstream("m")]


def ask(api: UpstreamApi, **fields: Any) -> tuple[dict[str, Any], Decoder]:
    given = {"input": "hi", "tools": [PATCH, SPACE], "max_output_tokens": 9, **fields}
    return api.ask(ResponsesRequest.model_validate(given), stream=True)


def tools_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in (entry.get("function", entry) for entry in body["tools"])}


@pytest.mark.parametrize("api", UPSTREAMS)
def test_they_are_offered_as_functions(api: UpstreamApi) -> None:
    items = [{"role": "user", "content": "hi"}, BROUGHT]
    offered = tools_of(ask(api, input=items)[0])
    assert list(offered) == ["apply_patch", "mcp__gym__lookup", "late"]
    assert offered["apply_patch"]["description"] == (
        'Patches files.\n\n`input` is text of this lark grammar:\nstart: "x"'
    )
    schema = offered["apply_patch"].get("parameters") or offered["apply_patch"]["input_schema"]
    assert schema["required"] == ["input"]
    assert offered["mcp__gym__lookup"]["description"] == "Looks up.\n\nAbout the tools `mcp__gym__*`: Of the gym."


HISTORY = [
    {"role": "user", "content": "hi"},
    {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** é\n"},
    {"type": "function_call", "call_id": "c2", "name": "lookup", "namespace": "mcp__gym", "arguments": "{}"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
    {"type": "function_call_output", "call_id": "c2", "output": "7"},
]


def test_their_calls_go_back_as_function_calls() -> None:
    body, _ = ask(ChatUpstream("m"), input=HISTORY, tool_choice={"type": "custom", "name": "apply_patch"})
    calls = [(call["id"], call["function"]) for call in body["messages"][1]["tool_calls"]]
    assert calls == [
        ("c1", {"name": "apply_patch", "arguments": json.dumps({"input": "*** é\n"}, ensure_ascii=False)}),
        ("c2", {"name": "mcp__gym__lookup", "arguments": "{}"}),
    ]
    assert [(entry["tool_call_id"], entry["content"]) for entry in body["messages"][2:]] == [("c1", "ok"), ("c2", "7")]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "apply_patch"}}


CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("apply_patch", '{"input": "*** é"}', {"type": "custom_tool_call", "name": "apply_patch", "input": "*** é"}),
    ("apply_patch", '{"patch": "x"}', {"type": "custom_tool_call", "name": "apply_patch", "input": '{"patch": "x"}'}),
    ("apply_patch", "*** raw", {"type": "custom_tool_call", "name": "apply_patch", "input": "*** raw"}),
    (
        "mcp__gym__lookup",
        '{"key": 1}',
        {"type": "function_call", "name": "lookup", "namespace": "mcp__gym", "arguments": '{"key": 1}'},
    ),
    ("other", "{}", {"type": "function_call", "name": "other", "arguments": "{}"}),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), CALLS)
def test_calls_come_out_as_the_client_knows_them(name: str, arguments: str, expected: dict[str, Any]) -> None:
    whole_call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    answer = {"choices": [{"message": {"content": "x", "tool_calls": [whole_call]}, "finish_reason": "tool_calls"}]}
    streamed = read(ask(ChatUpstream("m"))[1], chunks(name, arguments))
    for response in (ask(ChatUpstream("m"))[1].whole(answer), fold(streamed)):
        text, call = response.output
        assert text["type"] == "message"
        assert expected.items() <= call.items()
        assert call["call_id"] == "c1"
        assert ("arguments" in call) == ("arguments" in expected)
        assert call["id"].startswith("ctc_" if expected["type"] == "custom_tool_call" else "fc_")
    started = [event.item for event in streamed if isinstance(event, ItemStarted)]
    done = [event.item for event in streamed if isinstance(event, ItemDone)]
    assert [(item["type"], item["id"], item.get("name"), item.get("namespace")) for item in started] == [
        (item["type"], item["id"], item.get("name"), item.get("namespace")) for item in done
    ]


def chunks(name: str, arguments: str) -> list[dict[str, Any]]:
    half = len(arguments) // 2
    deltas: list[dict[str, Any]] = [
        {"content": "x"},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": name, "arguments": arguments[:half]}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": arguments[half:]}}]},
    ]
    finish = {"delta": {}, "finish_reason": "tool_calls"}
    return [*({"choices": [{"delta": delta}]} for delta in deltas), {"choices": [finish]}]


def read(decoder: Decoder, given: list[dict[str, Any]]) -> list[Event]:
    events = [event for chunk in given for event in decoder.feed(Sent("", json.dumps(chunk)))]
    return [*events, *decoder.end()]


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = (flat_name("mcp__" + "x" * 60, name) for name in ("a", "b"))
    assert len(first) == len(second) == LONGEST_NAME
    assert first != second
    assert flat_name("mcp__", "a") == "mcp__a"
    assert flat_name(None, "a") == "a"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ServerError, match="two tools have the name `mcp__gym__lookup`"):
        ask(ChatUpstream("m"), tools=[SPACE, {**LOOKUP, "name": "mcp__gym__lookup"}])


@pytest.mark.parametrize("kind", ["web_search", "local_shell", "apply_patch", "tool_search", "mcp"])
@pytest.mark.parametrize("api", UPSTREAMS)
def test_tools_that_the_provider_runs_are_refused_by_name(api: UpstreamApi, kind: str) -> None:
    with pytest.raises(ServerError, match=rf"a tool of type `{kind}` \(tools\[1\]\) cannot be carried to") as refused:
        ask(api, tools=[LOOKUP, {"type": kind}])
    assert refused.value.status == 400


CALL = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{**PATCH, "zz": 1}]}, "`tools[0].zz`"),
        ({"tools": [LOOKUP, {**PATCH, "allowed_callers": ["programmatic"]}]}, "`tools[1].allowed_callers`"),
        ({"tools": [{**PATCH, "format": {**GRAMMAR, "zz": 1}}]}, "`tools[0].format.zz`"),
        ({"tools": [{**PATCH, "format": {"type": "regex"}}]}, "`tools[0].format: regex`"),
        ({"tools": [{**SPACE, "zz": 1}]}, "`tools[0].zz`"),
        ({"tools": [PATCH, {**SPACE, "tools": [LOOKUP, {**LOOKUP, "name": "b", "zz": 1}]}]}, "`tools[1].tools[1].zz`"),
        ({"tools": [{**SPACE, "tools": [SPACE]}]}, "a tool of type `namespace` (tools[0].tools[0])"),
        ({"input": [{**BROUGHT, "zz": 1}]}, "`input[0].zz`"),
        ({"input": [BROUGHT, {"role": "user", "content": [{"type": "x"}]}]}, "`x` (input[1].content[0])"),
        ({"input": [{**CALL, "zz": 1}]}, "`input[0].zz`"),
        ({"tool_choice": {"type": "custom", "name": "apply_patch", "zz": 1}}, "`tool_choice.zz`"),
    ],
)
@pytest.mark.parametrize("api", UPSTREAMS)
def test_what_functions_have_no_place_for_is_refused_by_name(
    api: UpstreamApi, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ServerError, match=re.escape(f"{named} cannot be carried to")):
        ask(api, **fields)
