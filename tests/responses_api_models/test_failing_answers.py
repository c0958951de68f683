"""Answers that failed upstream although they came with status 200, and streams that only look complete."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.servers.contract import ROLLOUT_HEADER
from tests.capture.recorded import PATHS, POLICY, recording
from tests.responses_api_models.provider import Reply, serving
from tests.responses_api_models.servers import instance_over, over
from tests.responses_api_models.upstreams import Object

APIS = ("chat", "responses", "messages")
SSE = {"content-type": "text/event-stream"}


def body_of(api: str, **more: Any) -> Object:
    if api == "responses":
        return {"model": "x", "input": "hi", **more}
    return {"model": "x", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **more}


def events(*told: Any) -> Reply:
    """A stream of these events, each with its type as its name."""
    lines = (
        one if isinstance(one, str) else f"event: {one.get('type', 'chunk')}\ndata: {json.dumps(one)}" for one in told
    )
    return Reply(200, "".join(line + "\n\n" for line in lines), SSE)


def chunk(text: str = "", finish: str | None = None, **more: Any) -> Object:
    return {"id": "c1", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}]}


BOOM = {"code": 502, "message": "Provider exploded"}
PAR = {"message": {"content": "par"}, "finish_reason": "error", "error": BOOM}
UNFINISHED = {"id": "r", "output": []}
FAILED: dict[str, tuple[str, bool, Reply, str]] = {
    "a choice": ("chat", False, Reply(200, {"choices": [PAR]}), "Provider exploded"),
    "a streamed choice": (
        "chat",
        True,
        events(chunk("par"), chunk(finish="error", error=BOOM), "data: [DONE]"),
        "Provider exploded",
    ),
    "a choice that was given up": (
        "chat",
        True,
        events(chunk("par"), chunk(finish="abort"), "data: [DONE]"),
        "the finish reason `abort`",
    ),
    "an end without an answer": ("chat", True, events("data: [DONE]"), "the stream ended before the answer did"),
    "a cancelled response": ("responses", False, Reply(200, {**UNFINISHED, "status": "cancelled"}), "`cancelled`"),
    "an unfinished one": ("responses", False, Reply(200, {**UNFINISHED, "status": "in_progress"}), "`in_progress`"),
    "an error of Anthropic": ("messages", False, Reply(200, {"type": "error", "error": {"message": "Busy"}}), "Busy"),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", FAILED)
async def test_a_generation_that_failed_is_no_answer(name: str, api: str, tmp_path: Path) -> None:
    """Whether it is converted or passed through: the harness hears of it, and the record has a failure."""
    spoken, stream, reply, text = FAILED[name]
    async with serving() as provider:
        provider.replies = [reply]
        async with recording(instance_over(spoken, provider.base_url, max_attempts=1), tmp_path) as server:
            got = await server.post(api, body_of(api, stream=stream))
            (call,) = server.calls()
    assert got.status_code >= 500
    assert text in json.dumps(got.json()["error"])
    assert got.json()["failure"]["kind"] == "provider_error"
    assert call.error is not None
    assert (call.error["kind"], call.status) == ("provider_error", got.status_code)


HEAD = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 5}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "event: message_stop"}}
CUT: dict[str, Reply] = {
    "chat": events(chunk("print [DONE] and wait")),
    "messages": events({"type": "message_start", "message": HEAD}, TEXT),
    "responses": events(
        {"type": "response.created", "response": {"id": "r", "output": [], "instructions": "say response.completed"}}
    ),
}


@pytest.mark.parametrize("api", APIS)
async def test_an_end_in_the_text_is_no_end(api: str, tmp_path: Path) -> None:
    async with serving() as provider:
        provider.replies = [CUT[api]]
        async with recording(instance_over(api, provider.base_url), tmp_path) as server:
            said = (await server.post(api, body_of(api, stream=True))).text
            (call,) = server.calls()
    assert said.startswith(str(CUT[api].body))
    assert "the stream ended before the answer did" in said
    assert call.error is not None
    assert (call.status, call.error["kind"]) == (502, "provider_error")


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"message": "maximum context length is 10 tokens", "code": 400}, "context_length_exceeded", 400),
        ({"message": "slow", "type": "rate_limit_error", "code": "rate_limit_exceeded"}, "provider_rate_limited", 429),
    ],
)
async def test_an_error_in_a_stream_is_the_upstreams_own(error: Object, kind: str, status: int, tmp_path: Path) -> None:
    """Passed through it is told once; the record says the same of it as of a conversion."""
    async with serving() as provider:
        provider.replies = [events(chunk("a"), {"error": error})]
        async with recording(instance_over("chat", provider.base_url, max_attempts=1), tmp_path) as server:
            got = await server.post("chat", body_of("chat", stream=True))
            await server.post("responses", body_of("responses", stream=True))
            passed, converted = server.calls()
    assert (got.status_code, got.text) == (200, provider.replies[0].body)
    for call in (passed, converted):
        assert call.error is not None
        assert (call.error["kind"], call.status) == (kind, status)


async def test_half_of_a_surrogate_pair_loses_nothing(tmp_path: Path) -> None:
    """UTF-8 has no place for it; the call is answered, recorded and counted all the same."""
    usage = {"prompt_tokens": 5, "completion_tokens": 5}
    answer = json.dumps({"choices": [{"message": {"content": "a\ud83d b"}, "finish_reason": "stop"}], "usage": usage})
    stream = events(chunk("a\ud83d b"), {**chunk(finish="stop"), "usage": usage})
    async with serving() as provider:
        provider.replies = [Reply(200, answer)]
        made = instance_over("chat", provider.base_url, budgets={"max_policy_tokens": 2000})
        async with recording(made, tmp_path) as server:
            asked, headers = ResponsesRequest(input="hi"), {ROLLOUT_HEADER: "task.0"}
            async with asyncio.timeout(10):
                for _ in range(3):
                    got = await server.launched.client.post(
                        POLICY, "/v1/responses", asked, ResponsesResponse, headers=headers
                    )
                assert got.body.output_text == "a\ud83d b"
                for api in APIS:
                    assert (await server.post(api, body_of(api))).status_code == 200
                provider.replies = [stream]
                for api in APIS:
                    assert (await server.post(api, body_of(api, stream=True))).status_code == 200
            assert [(call.status, call.error, call.tokens.total) for call in server.calls()] == [(200, None, 10)] * 9


MALFORMED: list[tuple[str, str, Object, str]] = [
    ("responses", "chat", {"include": 5}, "include"),
    ("responses", "responses", {"include": 5, "reasoning": {"effort": "low"}, "stream": False}, ""),
    ("chat", "messages", {"stream_options": "x"}, "stream_options"),
    ("chat", "chat", {"messages": 5}, "messages"),
    ("messages", "chat", {"tool_choice": {"type": []}}, "tool_choice"),
    ("messages", "chat", {"output_config": {"format": 5}}, "output_config"),
    ("responses", "chat", {"tools": [{"type": "namespace", "name": "n", "tools": "x"}]}, "tools"),
    ("responses", "messages", {"tools": [{"type": "custom", "name": "n", "format": 5}]}, "tools"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("api", "spoken", "body", "name"), MALFORMED)
async def test_a_malformed_body_is_refused(
    api: str, spoken: str, body: Object, name: str, stream: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as provider:
        provider.replies = [Reply(200, {"output": []})]
        async with recording(instance_over(spoken, provider.base_url), tmp_path) as server:
            got = await server.post(api, {**body_of(api, stream=stream), **body})
    if name:
        assert (got.status_code, provider.bodies) == (400, [])
        assert name in got.json()["error"]["message"]
    assert "Traceback" not in caplog.text


async def test_a_reason_behind_a_gateway_goes_on_with_its_lines() -> None:
    async with serving() as provider, over("chat", provider.base_url, max_attempts=1) as server:
        told = {"message": "Provider returned error", "code": 400, "metadata": {"raw": "line 1\nline 2" + "x" * 1000}}
        provider.replies = [Reply(400, {"error": told})]
        async with httpx.AsyncClient() as client:
            got = await client.post(server.base_url + PATHS["chat"], json=body_of("chat"), headers=server.headers)
    assert got.json()["error"]["message"] == "Provider returned error: line 1\nline 2" + "x" * 1000
    assert "error: line 1 line 2" in got.json()["detail"]
