"""OpenAI Responses as clients speak it, as Codex does: seals, custom tools, namespaces, and the order of events."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gym.apis.clients.responses import ResponsesClient
from gym.apis.errors import ApiError
from gym.apis.events import Delta, ItemDone, deltas_of, unfold
from gym.apis.responses import Item, ResponsesResponse, function_call, message, reasoning
from gym.apis.upstreams.api import UpstreamApi
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.chat_request import ChatDialect
from gym.apis.upstreams.messages import MessagesUpstream
from gym.apis.upstreams.messages_request import THINKING
from gym.servers.base import ServerError

CLIENT = ResponsesClient()
INCLUDE = {"include": ["reasoning.encrypted_content"]}


def events(response: ResponsesResponse, body: dict[str, Any]) -> list[Any]:
    encoder = CLIENT.encoder(body)
    text = b"".join(encoder.event(event) for event in unfold(response, 2)).decode()
    lines = text.split("\n")
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [line[7:] for line in lines if line.startswith("event: ")] == [event["type"] for event in data]
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    return data


def test_the_order_of_events() -> None:
    said = ResponsesResponse(output=[reasoning("hm"), message("assistant", "abcd"), function_call("f", "{}", "c1")])
    kinds = [event["type"].removeprefix("response.") for event in events(said, {})]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_items_have_one_id_throughout() -> None:
    said = ResponsesResponse(output=[message("assistant", "x"), function_call("f", "{}", "c1")])
    told = events(said, {})
    ids = [
        [event["item"]["id"] for event in told if event["type"] == f"response.output_item.{what}"]
        for what in ("added", "done")
    ]
    assert ids[0] == ids[1] == [item["id"] for item in told[-1]["response"]["output"]]
    assert {event["item_id"] for event in told if "item_id" in event} == set(ids[0])
    assert ids[0][1] == "fc_c1"


def test_summaries_and_custom_calls() -> None:
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "p", "input": "*"}
    said = ResponsesResponse(output=[{"type": "reasoning", "id": "rs", "summary": summary}, custom])
    told = events(said, {})
    done = [event for event in told if event["type"].endswith(("summary_text.done", "tool_call_input.done"))]
    assert [(event.get("summary_index"), event.get("text", event.get("input"))) for event in done] == [
        (0, "a"),
        (1, "b"),
        (None, "*"),
    ]


@pytest.mark.parametrize("status", ["incomplete", "completed"])
def test_how_it_ends(status: str) -> None:
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    said = ResponsesResponse(status=status, incomplete_details=details, output=[message("assistant", "x")])
    last = events(said, {"temperature": 0.5, "tools": [{"type": "function"}], "instructions": "long"})[-1]
    assert last["type"] == f"response.{status}"
    response = last["response"]
    assert (response["status"], response["incomplete_details"], response["temperature"]) == (status, details, 0.5)
    assert response.keys() >= {"id", "object", "created_at", "model", "output", "parallel_tool_calls", "tools", "usage"}


def test_a_failure_has_what_was_said_before() -> None:
    output = [reasoning("hm"), message("assistant", "xyz"), function_call("f", {"a": 1})]
    said = [*unfold(ResponsesResponse(id="r1", model="m", output=output), 2)]
    for cut in range(len(said)):
        encoder = CLIENT.encoder({"temperature": 0.5})
        sent = b"".join(map(encoder.event, said[:cut])) + b"event: x\ndata: {oops\n\ndata: {}\n\n"
        last = json.loads(CLIENT.broken_off(ApiError(500, "broke", "provider_error"), sent, {}).split(b"data: ")[1])
        assert (last["type"], last["sequence_number"]) == ("response.failed", sent.count(b"sequence_number"))
        response = last["response"]
        assert (response["status"], response["id"] == "r1", response["model"]) == (
            "failed",
            cut > 0,
            "m" if cut else "",
        )
        assert response["error"] == {"code": "provider_error", "message": "broke"}
        told = "".join(delta.text for item in response["output"] for delta in deltas_of(item))
        assert told == "".join(event.text for event in said[:cut] if isinstance(event, Delta))
        done = [item for item in response["output"] if item.get("status") != "incomplete"]
        assert len(done) >= sum(isinstance(event, ItemDone) for event in said[:cut])


def replayed(item: Item) -> Item:
    """As Codex replays reasoning: without its content."""
    return {key: value for key, value in item.items() if key != "content"}


def test_reasoning_survives_a_client_that_replays_only_what_is_encrypted() -> None:
    for sealed in (None, THINKING + "sig"):
        said = reasoning("hm", sealed)
        streamed = events(ResponsesResponse(output=[said]), INCLUDE)[-1]["response"]["output"][0]
        whole = CLIENT.answer(ResponsesResponse(output=[said]), INCLUDE)["output"][0]
        assert streamed == whole
        [back] = CLIENT.request({"input": [replayed(whole)]}).items()
        assert (back.get("encrypted_content"), back["content"]) == (sealed, said["content"])
    plain = CLIENT.answer(ResponsesResponse(output=[reasoning("hm")]), {})["output"][0]
    assert "encrypted_content" not in plain


CODEX: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "store": False,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"x": "y"},
    "input": [
        {
            "type": "message",
            "id": "m0",
            "role": "developer",
            "content": [{"type": "input_text", "text": "You are Codex."}],
        },
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Permissions."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]},
        {"type": "function_call", "id": "f1", "call_id": "c1", "name": "exec_command", "arguments": '{"cmd": "ls"}'},
        {"type": "function_call", "call_id": "c2", "name": "lookup_value", "namespace": "mcp__res", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "Output:\nx"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "value"}]},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "ok"},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}},
        {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "text"}},
        {
            "type": "namespace",
            "name": "mcp__res",
            "description": "",
            "tools": [{"type": "function", "name": "lookup_value", "parameters": {"type": "object"}}],
        },
    ],
}


def test_codex_over_chat() -> None:
    dialect = ChatDialect(replace_developer_role_with_system=True)
    body, _ = ChatUpstream("m", dialect).ask(CLIENT.request(CODEX), stream=True)
    roles = [entry["role"] for entry in body["messages"]]
    assert roles == ["system", "user", "user", "assistant", "tool", "tool", "tool"]
    assert body["messages"][0]["content"] == "You are Codex.\n\nPermissions."
    names = ["exec_command", "mcp__res__lookup_value", "apply_patch"]
    assert [call["function"]["name"] for call in body["messages"][3]["tool_calls"]] == names
    assert sorted(tool["function"]["name"] for tool in body["tools"]) == sorted(names)
    assert [entry["content"] for entry in body["messages"][4:]] == ["Output:\nx", "value", "ok"]


def test_codex_over_messages() -> None:
    body, _ = MessagesUpstream("m").ask(CLIENT.request({**CODEX, "max_output_tokens": 9}), stream=True)
    assert body["system"] == "You are Codex.\n\nPermissions."
    assert [entry["role"] for entry in body["messages"]] == ["user", "assistant", "user"]
    assert [block["name"] for block in body["messages"][1]["content"]] == [
        "exec_command",
        "mcp__res__lookup_value",
        "apply_patch",
    ]


@pytest.mark.parametrize("api", [ChatUpstream("m"), MessagesUpstream("m")])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, r"an item of type `compaction` \(input\[0\]\)"),
        ({"input": [{"type": "local_shell_call", "action": {}}]}, "an item of type `local_shell_call`"),
        ({"tools": [{"type": "web_search"}]}, "a tool of type `web_search`"),
        ({"previous_response_id": "r"}, "`previous_response_id: r`"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(api: UpstreamApi, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError, match=text) as refused:
        api.ask(CLIENT.request({**CODEX, "max_output_tokens": 9, **change}), stream=True)
    assert refused.value.status == 400


def test_a_late_developer_message_over_messages() -> None:
    items = [message("user", "hi"), message("assistant", "x"), message("developer", "Now stop.")]
    body, _ = MessagesUpstream("m").ask(CLIENT.request({"input": items, "max_output_tokens": 9}), stream=False)
    assert body["messages"][2] == {
        "role": "user",
        "content": [{"type": "text", "text": "<system>\nNow stop.\n</system>"}],
    }


@pytest.mark.parametrize("upstream", [ChatUpstream("m"), MessagesUpstream("m")])
@pytest.mark.parametrize(
    ("item", "name"),
    [
        ({**message("user", "x"), "zz": 1}, "zz"),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x", "zz": 1}]},
            "content[0].zz",
        ),
        ({**function_call("f", {}, "c"), "caller": {"type": "program"}}, "caller"),
        ({"type": "function_call_output", "call_id": "c", "output": "x", "zz": 1}, "zz"),
        ({**reasoning("hm"), "zz": 1}, "zz"),
    ],
)
def test_what_an_item_has_is_carried_or_refused_by_name(upstream: UpstreamApi, item: Item, name: str) -> None:
    request = CLIENT.request({"input": [item], "max_output_tokens": 9})
    with pytest.raises(ServerError, match=re.escape(f"`input[0].{name}` cannot be carried")):
        upstream.ask(request, stream=False)
