"""Every API over every upstream, whole and streamed, with the official clients over real HTTP."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest

from tests.responses_api_models.clients import CLIENTS, PNG, Client, Heard
from tests.responses_api_models.servers import KEY, over
from tests.responses_api_models.upstreams import Call, Object, Said, Upstream, upstream

APIS = ("chat", "responses", "messages")
CALLS = (Call("call_1", "bash", '{"command": "ls"}'), Call("call_2", "bash", '{"command": "echo h\\u00e9"}'))
FIRST = Said(thought="Let me think.\nYes.", text="I look \u2028 around.", calls=CALLS)
LAST = Said(text="Done: 42.")
REASONS = {
    "chat": {"calls": "tool_calls", "end": "stop", "length": "length"},
    "responses": {"calls": "completed", "end": "completed", "length": "max_output_tokens"},
    "messages": {"calls": "tool_use", "end": "end_turn", "length": "max_tokens"},
}

pytestmark = [
    pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"]),
    pytest.mark.parametrize("client", APIS),
    pytest.mark.parametrize("spoken", APIS),
]


async def converse(conversation: Client, client: str, provider: Upstream, stream: bool) -> tuple[Heard, Heard]:
    provider.says = [FIRST, LAST]
    first = await conversation.ask(stream=stream)
    image = client != "chat"
    conversation.outputs([("call_1", "a b", False), ("call_2", "hé", image)])
    last = await conversation.ask(stream=stream)
    return first, last


async def test_a_conversation(spoken: str, client: str, stream: bool) -> None:
    async with upstream() as provider, over(spoken, provider.base_url) as server:
        async with aclosing(CLIENTS[client](server.base_url, server.key, "Be brief.", "What is there?")) as talk:
            first, last = await converse(talk, client, provider, stream)
    calls = [("call_1", "bash", {"command": "ls"}), ("call_2", "bash", {"command": "echo hé"})]
    assert (first.text, first.calls, first.reason) == (FIRST.text, calls, REASONS[client]["calls"])
    assert (last.text, last.calls, last.reason) == (LAST.text, [], REASONS[client]["end"])
    assert first.thought == FIRST.thought
    assert (first.usage, first.model) == ((100, 40, 30, 7), "served")
    assert first.id == {"chat": "chatcmpl-1", "responses": "resp_1", "messages": "msg_1"}[spoken]
    asked = provider.asked[0]
    assert (
        asked.path == {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}[spoken]
    )
    assert (asked.body["model"], bool(asked.body.get("stream"))) == ("own-name", stream)
    assert asked.headers["x-api-key" if spoken == "messages" else "authorization"].removeprefix("Bearer ") == KEY
    SEEN[spoken](asked.body, provider.asked[1].body, client)


def seen_by_chat(first: Object, second: Object, client: str) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    system, user = first["messages"]
    assert system == {"role": "system", "content": "Be brief."} or client == "chat"
    assert user["content"][0] == {"type": "text", "text": "What is there?"}
    assert user["content"][1]["image_url"]["url"] == image["image_url"]["url"]  # type: ignore[index]
    assert first["tools"][0]["function"]["name"] == "bash"
    limits = [first.get(name) for name in ("max_tokens", "max_completion_tokens")]
    assert limits == [900, None]
    said, one, two = second["messages"][2:5]
    assert [call["id"] for call in said["tool_calls"]] == ["call_1", "call_2"]
    assert json.loads(said["tool_calls"][1]["function"]["arguments"]) == {"command": "echo hé"}
    assert said["content"] == FIRST.text
    assert said["reasoning_content"] == FIRST.thought
    assert [(entry["tool_call_id"], entry["content"]) for entry in (one, two)] == [("call_1", "a b"), ("call_2", "hé")]
    shown = second["messages"][5:]
    assert len(shown) == (client != "chat")
    if shown:
        assert shown[0]["content"][1]["image_url"]["url"].endswith(PNG)


def seen_by_responses(first: Object, second: Object, client: str) -> None:
    texts = (
        [part["text"] for item in first["input"] for part in item["content"] if "text" in part and part != "t"]
        if client != "chat"
        else ["What is there?"]
    )
    assert "What is there?" in texts
    assert first.get("instructions") == ("Be brief." if client == "messages" else None)
    assert first["max_output_tokens"] == 900
    assert first["tools"][0]["name"] == "bash"
    kinds = [item["type"] for item in second["input"]]
    sealed = [item for item in second["input"] if item["type"] == "reasoning"]
    assert [item["encrypted_content"] for item in sealed] == (["sealed-by-provider"] if client != "chat" else [])
    assert kinds[-4:] == ["function_call", "function_call", "function_call_output", "function_call_output"]
    outputs = second["input"][-2:]
    assert [item["call_id"] for item in outputs] == ["call_1", "call_2"]
    if client != "chat":
        assert outputs[1]["output"][1]["image_url"].endswith(PNG)
        assert first["store"] is False


def seen_by_messages(first: Object, second: Object, client: str) -> None:
    system = first["system"]
    assert system == ("Be brief." if client != "messages" else [{"type": "text", "text": "Be brief."}])
    assert first["messages"][0]["content"][0] == {"type": "text", "text": "What is there?"}
    assert first["messages"][0]["content"][1]["source"]["data"] == PNG
    assert first["max_tokens"] == 900
    assert first["tools"][0]["input_schema"]["required"] == ["command"]
    said, heard = second["messages"][1:]
    thought = {"type": "thinking", "thinking": FIRST.thought, "signature": "signed-by-provider"}
    kinds = [block["type"] for block in said["content"]]
    assert kinds == ["text", "tool_use", "tool_use"] if client == "chat" else said["content"][0] == thought
    assert [block["input"] for block in said["content"][-2:]] == [{"command": "ls"}, {"command": "echo hé"}]
    assert [block["tool_use_id"] for block in heard["content"]] == ["call_1", "call_2"]
    if client != "chat":
        assert heard["content"][1]["content"][1]["source"]["data"] == PNG


SEEN: dict[str, Any] = {"chat": seen_by_chat, "responses": seen_by_responses, "messages": seen_by_messages}
STOPS = {"chat": "length", "responses": "max_output_tokens", "messages": "max_tokens"}


async def test_an_answer_that_was_cut(spoken: str, client: str, stream: bool) -> None:
    async with upstream() as provider, over(spoken, provider.base_url) as server:
        provider.says = [Said(text="On and on", stop=STOPS[spoken])]
        async with aclosing(CLIENTS[client](server.base_url, server.key, "s", "u")) as talk:
            heard = await talk.ask(stream=stream)
    assert (heard.text, heard.reason) == ("On and on", REASONS[client]["length"])


async def test_a_refusal(spoken: str, client: str, stream: bool) -> None:
    async with upstream() as provider, over(spoken, provider.base_url) as server:
        provider.says = [Said(refusal="I will not.")]
        async with aclosing(CLIENTS[client](server.base_url, server.key, "s", "u")) as talk:
            heard = await talk.ask(stream=stream)
    assert heard.text + heard.refusal == "I will not."
    if spoken == client or client == "messages":
        assert heard.reason in ("stop", "completed", "refusal")
    if spoken == "messages":
        assert heard.reason in ("content_filter", "refusal")
