"""How a stream ended, by its events, in bytes of any size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym.apis.clients.api import ClientApi
from gym.apis.clients.chat import ChatClient
from gym.apis.clients.messages import MessagesClient
from gym.apis.clients.responses import ResponsesClient
from gym.apis.ending import BROKEN_OFF, Ending
from gym.apis.errors import ProviderFailure

CLIENTS: dict[str, ClientApi] = {"chat": ChatClient(), "messages": MessagesClient(), "responses": ResponsesClient()}


def event(data: Any, name: str = "") -> str:
    return (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def chunk(text: str = "", finish: str | None = None, **more: Any) -> str:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}]})


def created(**more: Any) -> str:
    return event({"type": "response.created", "response": {"status": "in_progress", "output": [], **more}})


def completed(**more: Any) -> str:
    return event({"type": "response.completed", "response": {"output": [], **more}})


DONE = "data: [DONE]\n\n"
WORDS = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "event: message_stop"}}

CASES: dict[str, tuple[str, str, str]] = {
    "complete": ("chat", chunk("a") + chunk(finish="stop") + DONE, "complete"),
    "complete, without its last line": ("chat", chunk("a") + chunk(finish="length"), "complete"),
    "the end in the text": ("chat", chunk('say [DONE] and "finish_reason": "stop"'), "open"),
    "nothing but an end": ("chat", DONE, BROKEN_OFF),
    "an end before the finish reason": ("chat", chunk("a") + DONE, BROKEN_OFF),
    "an error": ("chat", chunk("a") + event({"error": {"message": "no", "code": 429}}) + DONE, "429 no"),
    "an error that is a text": ("chat", event({"error": "plain"}), "500 plain"),
    "no error": ("chat", event({"error": None, "choices": [{"finish_reason": "stop"}]}), "complete"),
    "an error by its name": ("chat", event({"message": "named"}, "error"), "500 named"),
    "a choice that failed": (
        "chat",
        chunk("a") + chunk(finish="error", error={"code": 502, "message": "Boom"}),
        "Boom",
    ),
    "a choice that was given up": ("chat", chunk(finish="abort"), "the answer ended with the finish reason `abort`"),
    "no JSON": ("chat", event("{oops") + chunk(finish="stop"), "malformed"),
    "no JSON, and an end": ("chat", event("{oops") + DONE, "an event is no JSON object: {oops"),
    "a message": ("messages", event({"type": "message_stop"}, "message_stop"), "complete"),
    "a message with the end in its text": ("messages", event(WORDS, "content_block_delta"), "open"),
    "a message's error": (
        "messages",
        event({"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}, "error"),
        "529 Busy",
    ),
    "a response": ("responses", created() + completed(status="completed"), "complete"),
    "a response with the end in its instructions": ("responses", created(instructions="response.completed"), "open"),
    "a response that failed": (
        "responses",
        event({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "slow"}}}),
        "429 slow",
    ),
    "a response's error": ("responses", event({"type": "error", "code": "x", "message": "no"}, "error"), "500 no"),
    "a response that was cancelled": (
        "responses",
        completed(status="cancelled"),
        "the response ended with the status `cancelled`",
    ),
}


def ending_of(api: str, pieces: list[bytes]) -> str:
    ending = Ending(CLIENTS[api].ends)
    try:
        for piece in pieces:
            ending.feed(piece)
    except ProviderFailure as failure:
        return failure.message
    if ending.failure is not None:
        return f"{ending.failure.status} {ending.failure.message}"
    return "malformed" if ending.malformed else "complete" if ending.complete else "open"


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_how_a_stream_ends(name: str, size: int) -> None:
    api, text, expected = CASES[name]
    raw = text.encode()
    assert ending_of(api, [raw[at : at + size] for at in range(0, len(raw), size)]) == expected
