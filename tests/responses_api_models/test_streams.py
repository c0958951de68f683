"""Streams on their way through: bytes, timing, ends, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gym.apis import streaming
from gym.apis.responses import ResponsesRequest, ResponsesResponse, message
from gym.servers.base import Call as Asked
from gym.servers.contract import ROLLOUT_HEADER
from gym.servers.model import ModelServer, ModelServerConfig
from tests.capture.recorded import recording
from tests.responses_api_models.provider import Reply, serving
from tests.responses_api_models.servers import Served, instance_over, over, served
from tests.responses_api_models.upstreams import APIS as SPOKEN
from tests.responses_api_models.upstreams import Call, Object, Said, upstream

APIS = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
SAID = Said(thought="hm", text="Hello there.", calls=(Call("c1", "bash", '{"command": "ls"}'),))
BODIES: dict[str, Object] = {
    "chat": {"model": "x", "messages": [{"role": "user", "content": "hi"}], "zz": {"kept": [1, 2.5, None]}},
    "responses": {"model": "x", "input": "hi", "zz": {"kept": [1, 2.5, None]}},
    "messages": {
        "model": "x",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "zz": {"kept": [1, 2.5, None]},
    },
}


def plain(api: str) -> Object:
    return {name: value for name, value in BODIES[api].items() if name != "zz"}


async def post(server: Served, api: str, body: Object) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.post(server.base_url + PATHS[api], json=body, headers=server.headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_one_api_on_both_sides_is_passed_through(api: str, stream: bool) -> None:
    """The request as it is but for the model's name, the answer byte for byte."""
    async with upstream() as provider, over(api, provider.base_url) as server:
        provider.says = [SAID]
        body = {**BODIES[api], "stream": stream}
        got = await post(server, api, body)
        whole, streamed, _ = SPOKEN[PATHS[api].removeprefix("/v1")]
        expected = b"".join(streamed(SAID, body)) if stream else json.dumps(whole(SAID)).encode()
        assert (got.status_code, got.content) == (200, expected)
        assert got.headers["content-type"].partition(";")[0] == ("text/event-stream" if stream else "application/json")
        assert provider.asked[0].body == {**body, "model": "own-name"}
        assert list(provider.asked[0].body) == list(body)


@pytest.mark.parametrize("spoken", APIS)
@pytest.mark.parametrize("api", APIS)
async def test_the_first_piece_is_not_held_back(api: str, spoken: str) -> None:
    """It arrives while the provider has not said the second."""
    async with upstream() as provider, over(spoken, provider.base_url) as server, httpx.AsyncClient() as client:
        provider.says = [SAID]
        provider.gate.clear()
        body = {**plain(api), "stream": True}
        url = server.base_url + PATHS[api]
        async with client.stream("POST", url, json=body, headers=server.headers) as response:
            pieces = response.aiter_raw()
            first = await anext(pieces)
            assert first.startswith((b"event:", b"data:"))
            assert not provider.gate.is_set()
            provider.gate.set()
            rest = b"".join([piece async for piece in pieces])
        assert b"there." in first + rest


@pytest.mark.parametrize("spoken", APIS)
@pytest.mark.parametrize("api", APIS)
async def test_a_client_that_hangs_up_ends_the_upstream_call(api: str, spoken: str) -> None:
    async with upstream() as provider, over(spoken, provider.base_url) as server, httpx.AsyncClient() as client:
        provider.says = [SAID]
        provider.gate.clear()
        url = server.base_url + PATHS[api]
        async with client.stream("POST", url, json={**plain(api), "stream": True}, headers=server.headers) as response:
            await anext(response.aiter_raw())
        async with asyncio.timeout(10):
            await provider.gone.wait()


async def test_a_stream_that_still_runs_at_the_end_is_ended() -> None:
    async with upstream() as provider, httpx.AsyncClient() as client:
        provider.says = [SAID]
        provider.gate.clear()
        async with over("chat", provider.base_url) as server:
            url, body = server.base_url + PATHS["messages"], {**plain("messages"), "stream": True}
            sent = client.build_request("POST", url, json=body, headers=server.headers)
            response = await client.send(sent, stream=True)
            await anext(response.aiter_raw())
        async with asyncio.timeout(10):
            await provider.gone.wait()
        await response.aclose()


async def test_a_slot_is_free_again_after_a_hang_up() -> None:
    async with upstream() as provider, over("chat", provider.base_url, max_concurrent_requests=1) as server:
        provider.says = [SAID]
        provider.gate.clear()
        async with httpx.AsyncClient() as client:
            url, body = server.base_url + PATHS["chat"], {**plain("chat"), "stream": True}
            async with client.stream("POST", url, json=body, headers=server.headers) as response:
                await anext(response.aiter_raw())
            provider.gate.set()
            async with asyncio.timeout(10):
                assert (await post(server, "chat", plain("chat"))).status_code == 200


def error_in(api: str, text: str) -> str:
    """The text of the error that a stream ends with."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    match api:
        case "chat":
            assert "[DONE]" not in text
            return str(events[-1]["error"]["message"])
        case "responses":
            assert events[-1]["type"] == "response.failed"
            assert len({event["response"]["id"] for event in events if "response" in event}) == 1
            return str(events[-1]["response"]["error"]["message"])
    assert (events[-1]["type"], "message_stop" in text) == ("error", False)
    return str(events[-1]["error"]["message"])


@pytest.mark.parametrize("spoken", APIS)
@pytest.mark.parametrize("api", APIS)
async def test_a_stream_that_ends_too_early_is_a_failure(api: str, spoken: str) -> None:
    """Harnesses take a stream without an end for a short answer, or ask again for ever."""
    async with upstream() as provider, over(spoken, provider.base_url) as server:
        provider.says, provider.cut = [SAID], 3
        got = await post(server, api, {**plain(api), "stream": True})
        assert got.status_code == 200
        assert error_in(api, got.text) == "the stream ended before the answer did"


@pytest.mark.parametrize("spoken", APIS)
async def test_the_official_client_hears_why_a_stream_broke_off(spoken: str) -> None:
    """It refuses a last event of another response."""
    async with upstream() as provider, over(spoken, provider.base_url) as server:
        provider.says, provider.cut = [Said(text="Hello there.")], 3 if spoken == "chat" else 4
        async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=server.key) as client:
            async with client.responses.stream(model="m", input="hi") as stream:
                events = [event async for event in stream]
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last: Any = events[-1]
    assert last.type == "response.failed"
    assert last.response.error.message == "the stream ended before the answer did"
    assert "".join(part.text for item in last.response.output for part in item.content) == said
    assert said.startswith("Hello ")


ODD: dict[str, tuple[Object, str]] = {
    "chat": ({"hello": 1}, "malformed_answer"),
    "messages": ({"hello": 1}, "malformed_answer"),
    "responses": (
        {"status": "failed", "output": [], "error": {"code": "server_error", "message": "m"}},
        "provider_error",
    ),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("spoken", APIS)
async def test_what_is_no_answer_is_none_where_it_is_passed_through_too(spoken: str, api: str) -> None:
    told, kind = ODD[spoken]
    async with upstream() as provider, over(spoken, provider.base_url) as server:
        provider.refuses = 200, told, {}
        got = await post(server, api, plain(api))
    assert got.status_code in (500, 502)
    assert (got.json()["failure"]["kind"], got.headers["x-should-retry"]) == (kind, "false")


BROKEN: dict[str, bytes] = {
    "chat": b'data: {"error": {"message": "sk-key-of-the-provider"}}\n\n',
    "messages": b'event: error\ndata: {"type": "error", "error": {"message": "sk-key-of-the-provider"}}\n\n',
    "responses": b'data: {"type":"response.failed","response":{"error":{"message":"sk-key-of-the-provider"}}}\n\n',
    "no JSON": b'data: {oops sk-key-of-the-provider\n\ndata: {"choices": [{"finish_reason": "stop"}]}\n\n',
}


@pytest.mark.parametrize("what", BROKEN)
async def test_the_record_says_what_a_passed_stream_tells_that_went_wrong(what: str, tmp_path: Path) -> None:
    api = what if what in APIS else "chat"
    async with serving() as provider:
        sent = BROKEN[what] + (b"data: [DONE]\n\n" if api == "chat" else b"")
        provider.replies = [Reply(200, sent.decode(), {"content-type": "text/event-stream"})]
        async with recording(instance_over(api, provider.base_url), tmp_path) as server:
            got = await server.post(api, {**plain(api), "stream": True})
            (call,) = server.calls()
    assert (got.status_code, got.content, call.answer) == (200, sent, sent)
    assert call.error is not None
    assert (call.error["kind"], "***" in call.error["message"]) == (
        "malformed_answer" if what == "no JSON" else "provider_error",
        True,
    )


async def test_an_event_that_was_broken_off_is_not_passed_on() -> None:
    async with serving() as provider, over("chat", provider.base_url) as server:
        whole = 'data: {"choices": []}\r\n\r\n'
        provider.replies = [Reply(200, whole + 'data: {"choi', {"content-type": "text/event-stream"})]
        got = await post(server, "chat", {**plain("chat"), "stream": True})
    assert got.text.startswith(whole + 'data: {"error":')


@pytest.mark.parametrize("api", APIS)
async def test_silence_is_filled(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.01)
    async with upstream() as provider, over("chat", provider.base_url) as server, httpx.AsyncClient() as client:
        provider.says = [SAID]
        provider.gate.clear()
        url, body = server.base_url + PATHS[api], {**plain(api), "stream": True}
        async with client.stream("POST", url, json=body, headers=server.headers) as response:
            pieces = response.aiter_raw()
            got = b""
            while got.count(b": keep-alive\n\n") < 3:
                got += await anext(pieces)
            provider.gate.set()
            got += b"".join([piece async for piece in pieces])
        assert b"there." in got


async def test_an_error_after_a_keep_alive_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.01)
    async with upstream() as provider, over("chat", provider.base_url, max_attempts=2) as server:
        provider.refuses = 503, {"error": {"message": "busy"}}, {"retry-after": "0.1"}
        got = await post(server, "chat", {**plain("chat"), "stream": True})
        assert got.status_code == 200
        assert got.text.startswith(": keep-alive\n\n")
        assert error_in("chat", got.text) == "busy"


async def test_a_provider_that_falls_silent() -> None:
    async with upstream() as provider, over("chat", provider.base_url, request_timeout_seconds=0.1) as server:
        provider.says = [SAID]
        provider.gate.clear()
        got = await post(server, "responses", {**plain("responses"), "stream": True})
        assert "within 0.1 s" in error_in("responses", got.text)


REFUSALS: list[tuple[int, Any, dict[str, Any], dict[str, Any]]] = [
    (
        401,
        {"error": {"message": "bad key sk-key-of-the-provider", "type": "invalid_request_error", "code": "bad_key"}},
        {"message": "bad key ***", "type": "invalid_request_error", "param": None, "code": "bad_key"},
        {"message": "bad key ***", "type": "invalid_request_error"},
    ),
    (
        429,
        {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}},
        {"message": "slow down", "type": "rate_limit_error", "param": None, "code": "provider_rate_limited"},
        {"message": "slow down", "type": "rate_limit_error"},
    ),
    (
        529,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"message": "Overloaded", "type": "overloaded_error", "param": None, "code": "provider_error"},
        {"message": "Overloaded", "type": "overloaded_error"},
    ),
    (
        400,
        {"detail": "This model's maximum context length is 9 tokens"},
        {
            "message": "This model's maximum context length is 9 tokens",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
        },
        {
            "message": "prompt is too long: This model's maximum context length is 9 tokens",
            "type": "invalid_request_error",
        },
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("spoken", APIS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("status", "told", "openai", "anthropic"), REFUSALS)
async def test_errors_keep_their_status_and_text(
    status: int, told: Any, openai: Object, anthropic: Object, api: str, spoken: str, stream: bool
) -> None:
    async with upstream() as provider, over(spoken, provider.base_url, max_attempts=1) as server:
        provider.refuses = status, told, {"retry-after": "7"}
        got = await post(server, api, {**plain(api), "stream": stream})
        assert got.status_code == status
        assert got.headers["retry-after"] == "7"
        assert got.json()["error"] == (anthropic if api == "messages" else openai)
        assert got.json().get("type") == ("error" if api == "messages" else None)


async def test_a_stream_is_tried_again_until_it_begins() -> None:
    async with upstream() as provider, over("chat", provider.base_url) as server:
        provider.says = [SAID]
        provider.refuses = 503, {"error": {"message": "busy"}}, {"retry-after": "0"}
        task = asyncio.create_task(post(server, "messages", {**plain("messages"), "stream": True}))
        async with asyncio.timeout(10):
            while not provider.asked:
                await asyncio.sleep(0)
        provider.refuses = None
        got = await task
        assert "message_stop" in got.text
        assert len(provider.asked) >= 2


async def test_nobody_there(unused_tcp_port: int) -> None:
    async with over("chat", f"http://127.0.0.1:{unused_tcp_port}", max_attempts=1) as server:
        for api in APIS:
            for stream in (False, True):
                got = await post(server, api, {**plain(api), "stream": stream})
                assert got.status_code == 502
                assert "no answer from" in got.json()["error"]["message"]
                assert got.json()["failure"]["kind"] == "provider_unreachable"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (b"{", 400, "the body is no JSON"),
        (b"[]", 400, "the body is no JSON object"),
        (b"{}", 400, "Field required"),
        (b'{"messages": 7, "input": 7, "max_tokens": 9}', 400, ": Input should be"),
    ],
)
async def test_bad_bodies(api: str, content: bytes, status: int, text: str) -> None:
    spoken = "chat" if api != "chat" else "messages"
    async with upstream() as provider, over(spoken, provider.base_url) as server, httpx.AsyncClient() as client:
        got = await client.post(server.base_url + PATHS[api], content=content, headers=server.headers)
        assert (got.status_code, text in got.json()["error"]["message"]) == (status, True)
        assert not provider.asked


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_that_comes_as_json_is_refused(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream() as provider, over(api, provider.base_url) as server:
        provider.refuses = 200, {"choices": []}, {}
        got = await post(server, api, {**plain(api), "stream": True})
        assert got.status_code == 502
        assert "was asked for a stream and answered with JSON" in got.json()["error"]["message"]


class Listening(ModelServer[ModelServerConfig]):
    """Says whose rollout it is asked for."""

    async def respond(self, request: ResponsesRequest, call: Asked) -> ResponsesResponse:
        return ResponsesResponse(output=[message("assistant", call.headers[ROLLOUT_HEADER])])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_path_can_name_the_rollout(api: str, stream: bool) -> None:
    """For harnesses that cannot carry a header; a subclass needs only `respond` for all of this."""
    async with served(Listening) as server, httpx.AsyncClient() as client:
        url = f"{server.base_url}/ng-rollout/r7{PATHS[api]}"
        got = await client.post(url, json={**plain(api), "stream": stream}, headers=server.headers)
        assert got.status_code == 200
        # A stream may cut the word in pieces.
        assert "r7" in "".join(re.findall(r'"(?:content|text)":\s*"([^"]*)"', got.text))


async def test_unknown_counts_stay_unknown_for_the_run() -> None:
    """A harness's client gets the numbers that its API demands; a server of the run gets what is known."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    async with upstream() as provider, over("chat", provider.base_url) as server, httpx.AsyncClient() as client:
        provider.refuses = 200, {"choices": [{"message": {"content": "x"}}], "usage": usage}, {}
        got = {}
        for name, key in (("run", server.token), ("harness", server.key)):
            url, headers = server.base_url + PATHS["responses"], {"authorization": f"Bearer {key}"}
            got[name] = (await client.post(url, json=plain("responses"), headers=headers)).json()
    details = {name: answer["usage"]["input_tokens_details"] for name, answer in got.items()}
    assert details == {"run": None, "harness": {"cached_tokens": 0, "cache_write_tokens": 0}}
    assert "tools" in got["harness"]
    assert "tools" not in got["run"]
    assert got["run"]["id"].startswith("resp_")


async def test_models_are_listed() -> None:
    async with upstream() as provider, over("chat", provider.base_url) as server, httpx.AsyncClient() as client:
        got = (await client.get(server.base_url + "/v1/models", headers=server.headers)).json()
        assert [entry["id"] for entry in got["data"]] == ["own-name"]
        for name in ("own-name", "vendor/other"):
            one = await client.get(f"{server.base_url}/v1/models/{name}", headers=server.headers)
            assert (one.status_code, one.json()) == (200, got["data"][0])


@pytest.mark.parametrize(
    ("spoken", "expected"),
    [("messages", {"input_tokens": 12}), ("chat", {"input_tokens": 1, "estimated": True})],
)
async def test_tokens_are_counted(spoken: str, expected: Object) -> None:
    async with upstream() as provider, over(spoken, provider.base_url) as server, httpx.AsyncClient() as client:
        body = {"model": "x", "messages": [{"role": "user", "content": "hi"}]}
        got = await client.post(server.base_url + "/v1/messages/count_tokens", json=body, headers=server.headers)
        assert got.json() == expected
        assert [asked.path for asked in provider.asked] == ["/v1/messages/count_tokens"] * (spoken == "messages")


async def test_beta_headers_go_on() -> None:
    more = {"anthropic_default_headers": {"anthropic-beta": "ours"}}
    async with upstream() as provider, over("messages", provider.base_url, **more) as server:
        provider.says = [SAID]
        async with httpx.AsyncClient() as client:
            headers = {**server.headers, "anthropic-beta": "theirs", "anthropic-version": "2029-01-01", "x-other": "1"}
            url = server.base_url + PATHS["messages"] + "?beta=true"
            await client.post(url, json=plain("messages"), headers=headers)
        sent = provider.asked[0].headers
        assert (sent["anthropic-beta"], sent["anthropic-version"]) == ("ours,theirs", "2029-01-01")
        assert "x-other" not in sent
        assert "authorization" not in sent


async def test_settings_fill_in_what_a_client_leaves_open() -> None:
    more = {"temperature": 0.5, "max_output_tokens": 77, "extra_body": {"seed": 1, "reasoning_effort": None}}
    async with upstream() as provider, over("chat", provider.base_url, **more) as server:
        provider.says = [SAID]
        given = {"max_completion_tokens": 5, "top_p": 0.9, "reasoning_effort": "high"}
        await post(server, "chat", {**plain("chat"), **given})
        await post(server, "chat", plain("chat"))
        await post(server, "messages", {**plain("messages"), "output_config": {"effort": "high"}})
        rest = [{k: v for k, v in asked.body.items() if k not in ("model", "messages")} for asked in provider.asked]
        assert rest == [
            {"max_tokens": 5, "top_p": 0.9, "temperature": 0.5, "seed": 1},
            {"max_tokens": 77, "temperature": 0.5, "seed": 1},
            {"max_tokens": 9, "temperature": 0.5, "seed": 1},
        ]


async def test_developers_are_system_for_engines() -> None:
    async with upstream() as provider, over("chat", provider.base_url) as server:
        provider.says = [SAID]
        messages = [
            {"role": "developer", "content": "a"},
            {"role": "system", "content": "b"},
            *plain("chat")["messages"],
        ]
        await post(server, "chat", {**plain("chat"), "messages": messages})
        roles = [(entry["role"], entry["content"]) for entry in provider.asked[0].body["messages"]]
        assert roles == [("system", "a\n\nb"), ("user", "hi")]
