"""The promise of the conversions: what a client sends is found again in what goes upstream, or refused by its name."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym.apis.clients.api import ClientApi
from gym.apis.clients.chat import ChatClient
from gym.apis.clients.messages import MessagesClient
from gym.apis.clients.responses import ResponsesClient
from gym.apis.upstreams.api import UpstreamApi
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.chat_request import ChatDialect
from gym.apis.upstreams.messages import MessagesUpstream
from gym.apis.upstreams.messages_request import THINKING
from gym.apis.upstreams.responses import ResponsesUpstream
from gym.servers.base import ServerError

CLIENTS: dict[str, ClientApi] = {"chat": ChatClient(), "responses": ResponsesClient(), "messages": MessagesClient()}
UPSTREAMS: dict[str, UpstreamApi] = {
    "chat": ChatUpstream("m", ChatDialect(reasoning_field="reasoning_content")),
    "responses": ResponsesUpstream("m", open_reasoning=True),
    "messages": MessagesUpstream("m"),
}
PAIRS = [(client, upstream) for client in CLIENTS for upstream in UPSTREAMS if client != upstream]
PNG = "data:image/png;base64,AA=="
SCHEMA = {"type": "object"}

CHAT: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "x"}, {"type": "refusal", "refusal": "no"}],
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "2", "type": "custom", "custom": {"name": "c", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "o"}]},
        {"role": "tool", "tool_call_id": "2", "content": "o"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
        {"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {"syntax": "lark"}}}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "max_output_tokens": 9,
    "instructions": "i",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": PNG, "detail": "low"},
            ],
        },
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "r"}],
            "encrypted_content": THINKING + "sig",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "f", "namespace": "ns", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "2", "name": "c", "input": "x"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "o"}]},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "o"},
    ],
    "tools": [
        {"type": "namespace", "name": "ns", "description": "d", "tools": [{"type": "function", "name": "f"}]},
        {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "custom", "name": "d", "format": {"type": "text"}},
    ],
    "tool_choice": {"type": "custom", "name": "c"},
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                {"type": "image", "source": {"type": "url", "url": "http://h/x.png"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Moo."}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "gym:{}"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "o"}, {"type": "tool_reference", "tool_name": "f"}],
                }
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
REQUESTS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
OPEN = ("parameters", "input_schema", "schema", "input")
"""Objects whose keys are the tools' own."""

Place = tuple[str | int, ...]


def objects(value: Any, place: Place = ()) -> Iterator[Place]:
    """The places of all objects in a request."""
    if isinstance(value, dict):
        yield place
        for name, inner in value.items():
            if not (name in OPEN and isinstance(inner, dict)):
                yield from objects(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, (*place, index))


def at(request: Any, place: Place) -> Any:
    for step in place:
        request = request[step]
    return request


def with_field(request: dict[str, Any], place: Place, name: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(request)
    at(changed, place)[name] = value
    return changed


def told(place: Place, name: str) -> str:
    """A field as refusals write it."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*place, name)]
    return "".join(steps).removeprefix(".")


def sent(client: str, upstream: str, request: dict[str, Any], *, stream: bool = False) -> str:
    return json.dumps(UPSTREAMS[upstream].ask(CLIENTS[client].request(request), stream=stream)[0], ensure_ascii=False)


def outcome(client: str, upstream: str, request: dict[str, Any], stream: bool) -> str:
    try:
        return sent(client, upstream, request, stream=stream)
    except ServerError as refused:
        return f"{refused.status} {refused.detail}"


MARK = "#mark#"
OF_OTHERS = ("input", "instructions", "max_output_tokens", "messages", "output_config", "source", "system", "text")
"""Names that mean something elsewhere: a place that has another meaning for them must not take them."""

names = st.from_regex(r"zz_[a-z]{1,6}", fullmatch=True) | st.sampled_from(OF_OTHERS)
values = st.sampled_from([MARK, [MARK], {"a": MARK}, {"type": MARK}])


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
@settings(deadline=None, max_examples=150)
@given(data=st.data(), name=names, value=values, stream=st.booleans())
def test_an_unknown_field_is_carried_or_refused(
    client: str, upstream: str, data: Any, name: str, value: Any, stream: bool
) -> None:
    request = REQUESTS[client]
    place = data.draw(st.sampled_from([place for place in objects(request) if name not in at(request, place)]))
    became = outcome(client, upstream, with_field(request, place, name, value), stream)
    assert (told(place, name) if became.startswith("400 ") else MARK) in became


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
def test_the_requests_themselves_are_carried(client: str, upstream: str) -> None:
    assert sent(client, upstream, REQUESTS[client])
