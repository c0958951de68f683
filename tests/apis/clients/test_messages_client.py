"""Anthropic Messages as clients speak it: what a request becomes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym.apis.clients.messages import MessagesClient
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.messages_request import REDACTED, THINKING
from gym.apis.upstreams.responses import ResponsesUpstream
from gym.servers.base import ServerError

CLIENT = MessagesClient()
HI = [{"role": "user", "content": "hi"}]


def given(**fields: Any) -> dict[str, Any]:
    request = CLIENT.request({"max_tokens": 9, "messages": HI, **fields})
    dumped = request.model_dump(exclude_unset=True, exclude={"input"})
    assert dumped.pop("max_output_tokens") == 9
    return dumped


BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"}
FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"system": "s"}, {"instructions": "s"}),
    (
        {"system": [BILLING, {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"text": "b"}]},
        {"instructions": "a\n\nb"},
    ),
    ({"stop_sequences": ["x"], "top_k": 5}, {"stop": ["x"], "top_k": 5}),
    ({"thinking": {"type": "adaptive", "display": "summarized"}}, {}),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, {"reasoning": {"effort": "high"}}),
    ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, {"reasoning": {"effort": "low"}}),
    ({"thinking": {"type": "enabled", "budget_tokens": 10000}}, {"reasoning": {"effort": "medium"}}),
    ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, {"reasoning": {"effort": "high"}}),
    ({"thinking": {"type": "disabled"}}, {}),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, {}),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"text": {"format": {"name": "answer", "type": "json_schema", "schema": {}}}},
    ),
    (
        {"tools": [{"name": "f", "input_schema": {"type": "object"}, "defer_loading": True}]},
        {"tools": [{"type": "function", "strict": False, "name": "f", "parameters": {"type": "object"}}]},
    ),
    (
        {"output_format": {"type": "json_schema", "schema": {}}},
        {"text": {"format": {"name": "answer", "type": "json_schema", "schema": {}}}},
    ),
    (
        {"tools": [{"name": "f", "input_schema": {"type": "object"}, "input_examples": [{"a": 1}]}]},
        {
            "tools": [
                {
                    "type": "function",
                    "strict": False,
                    "name": "f",
                    "parameters": {"type": "object", "examples": [{"a": 1}]},
                }
            ]
        },
    ),
    ({"service_tier": "standard_only"}, {"service_tier": "default"}),
    ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
    (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": "auto", "parallel_tool_calls": False},
    ),
    ({"tool_choice": {"type": "tool", "name": "f"}}, {"tool_choice": {"type": "function", "name": "f"}}),
]


@pytest.mark.parametrize(("fields", "expected"), FIELDS)
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert given(**fields) == expected


def test_messages() -> None:
    png = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    request = CLIENT.request(
        {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "see"}, png]},
                {"role": "system", "content": "mind the gap"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "sig"},
                        {"type": "redacted_thinking", "data": "blob"},
                        {"type": "text", "text": "x"},
                        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": [png], "is_error": True},
                        {"type": "text", "text": "and?"},
                    ],
                },
            ],
        }
    )
    items = request.items()
    assert [(item["type"], item.get("role")) for item in items] == [
        ("message", "user"),
        ("message", "system"),
        ("reasoning", None),
        ("reasoning", None),
        ("message", "assistant"),
        ("function_call", None),
        ("function_call_output", None),
        ("message", "user"),
    ]
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    assert (items[0]["content"][1], items[6]["output"]) == (
        image,
        [{"type": "input_text", "text": "The tool call failed:"}, image],
    )
    assert [item["encrypted_content"] for item in items[2:4]] == [THINKING + "sig", REDACTED + "blob"]


DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Moo."}}


def said(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


@pytest.mark.parametrize("upstream", [ChatUpstream("m"), ResponsesUpstream("m")])
def test_what_a_block_tells_beside_its_text_is_carried(upstream: Any) -> None:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}, "caller": {"type": "direct"}}
    failed = {"type": "tool_result", "tool_use_id": "c", "content": "no such file", "is_error": True}
    document = {**DOCUMENT, "title": "Cows", "context": "a farm", "citations": {"enabled": False}}
    messages = [*said(call, role="assistant")["messages"], *said(failed, document)["messages"]]
    sent = json.dumps(upstream.ask(CLIENT.request({"max_tokens": 9, "messages": messages}), stream=False)[0])
    assert r'"The tool call failed:\nno such file"' in sent
    assert r'"title: Cows\ncontext: a farm\nMoo."' in sent


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages: List should have at least 1 item"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, r"`video` \(messages\[0\].content\[0\]\)"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "has no `tool_use_id`"),
    ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "`server_tool_use`"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, r"a tool of type `bash_20250124` \(tools\[0\]\)"),
    ({"tool_choice": {"type": "some"}}, "`tool_choice.type: some`"),
    ({"output_config": {"task_budget": 3}}, "`output_config.task_budget`"),
    (
        {"system": [{"type": "image", "source": {"type": "url", "url": "u"}}]},
        r"a part of type `image` in a system prompt \(system\[0\]\)",
    ),
    ({"messages": [{**HI[0], "zz": 1}]}, r"`messages\[0\].zz`"),
    (said({"type": "text", "text": "x", "zz": 1}), r"`messages\[0\].content\[0\].zz`"),
    (said({"type": "tool_result", "tool_use_id": "c", "zz": 1}), r"`messages\[0\].content\[0\].zz`"),
    (
        said({"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x", "zz": 1}]}),
        r"`messages\[0\].content\[0\].content\[0\].zz`",
    ),
    (said({"type": "tool_use", "id": "c", "name": "f", "input": {}, "zz": 1}, role="assistant"), r"content\[0\].zz`"),
    (said({"type": "thinking", "thinking": "x", "zz": 1}, role="assistant"), r"content\[0\].zz`"),
    (said({"type": "redacted_thinking", "data": "x", "zz": 1}, role="assistant"), r"content\[0\].zz`"),
    (said({"type": "image", "source": {"type": "url", "url": "u", "zz": 1}}), r"content\[0\].source.zz`"),
    ({"thinking": {"type": "zigzag"}}, "`thinking.type: zigzag`"),
    ({"thinking": {"type": "adaptive", "zz": 1}}, "`thinking.zz`"),
    ({"tool_choice": {"type": "auto", "zz": 1}}, "`tool_choice.zz`"),
    ({"tool_choice": {"type": "auto", "name": "f"}}, "`tool_choice.name`"),
    ({"instructions": "x"}, "`instructions`"),
    ({"parallel_tool_calls": True}, "`parallel_tool_calls`"),
    ({"tools": [{"name": "f", "parameters": {}}]}, r"`tools\[0\].parameters`"),
    (said({**DOCUMENT, "citations": {"enabled": True}}), r"`messages\[0\].content\[0\].citations`"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED)
def test_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError, match=text) as refused:
        CLIENT.request({"max_tokens": 9, "messages": HI, **fields})
    assert refused.value.status == 400


@pytest.mark.parametrize("empty", ["", [], [{"type": "text", "text": ""}]])
def test_a_message_without_words_is_a_turn_all_the_same(empty: Any) -> None:
    turns = [*HI, {"role": "assistant", "content": empty}, {"role": "user", "content": empty}]
    body, _ = ChatUpstream("m").ask(CLIENT.request({"max_tokens": 9, "messages": turns}), stream=False)
    assert [(entry["role"], entry["content"]) for entry in body["messages"]] == [
        ("user", "hi"),
        ("assistant", ""),
        ("user", ""),
    ]


@pytest.mark.parametrize("upstream", [ChatUpstream("m"), ResponsesUpstream("m")])
def test_server_side_features_are_refused_by_name(upstream: Any) -> None:
    request = CLIENT.request({"max_tokens": 9, "messages": HI, "mcp_servers": [{"url": "x"}]})
    with pytest.raises(ServerError, match="`mcp_servers` cannot be carried"):
        upstream.ask(request, stream=False)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"stop_sequences": ["x"]}, "`stop_sequences`"),
        ({"betas": ["x"]}, "`betas`"),
        ({"top_k": 3}, "`top_k: 3`"),
    ],
)
def test_refusals_name_what_the_client_wrote(fields: dict[str, Any], named: str) -> None:
    request = CLIENT.request({"max_tokens": 9, "messages": HI, **fields})
    with pytest.raises(ServerError, match=f"{named} cannot be carried to Responses"):
        ResponsesUpstream("m").ask(request, stream=False)


CLAUDE_CODE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 32000,
    "stream": True,
    "system": [BILLING, {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Do it.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "A reminder."},
    ],
    "tools": [
        {"name": "Bash", "description": "Runs.", "input_schema": {"type": "object"}, "eager_input_streaming": True},
        {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True},
    ],
    "metadata": {"user_id": "u"},
    "thinking": {"type": "adaptive", "display": "summarized"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}


def test_claude_code_over_chat() -> None:
    body, _ = ChatUpstream("m").ask(CLIENT.request(CLAUDE_CODE), stream=True)
    functions = [
        {"name": "Bash", "description": "Runs.", "parameters": {"type": "object"}},
        {"name": "DeferredToolPlaceholder", "parameters": {"type": "object"}},
    ]
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are Claude Code."},
            {"role": "user", "content": "Do it."},
            {"role": "system", "content": "A reminder."},
        ],
        "tools": [{"type": "function", "function": function} for function in functions],
        "max_tokens": 32000,
        "reasoning_effort": "high",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_claude_code_over_responses() -> None:
    body, _ = ResponsesUpstream("m").ask(CLIENT.request(CLAUDE_CODE), stream=True)
    assert body["instructions"] == "You are Claude Code."
    assert [item["role"] for item in body["input"]] == ["user", "system"]
    assert (body["store"], body["include"], body["stream"]) == (False, ["reasoning.encrypted_content"], True)
    assert not body.keys() & {"context_management", "thinking", "output_config"}
