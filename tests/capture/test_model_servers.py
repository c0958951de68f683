"""What model servers record and count: every call once, whose it was, and what it used."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.capture.budget import PolicyCalls
from gym.capture.reader import CallFile, files
from gym.capture.usage import Tokens
from gym.failures import EpisodeFailure, exhausted_budget
from gym.responses_api_models.replay_model.app import ReplayModel
from gym.servers.contract import INVOCATION_HEADER, ROLLOUT_HEADER, SESSION_HEADER
from gym.servers.model import COUNT_TOKENS, RolloutName
from tests.capture.recorded import PATHS, POLICY, Recorded, recording
from tests.responses_api_models.provider import Reply, serving
from tests.responses_api_models.servers import KEY, instance, instance_over
from tests.responses_api_models.upstreams import Call, Said, upstream

APIS = ("chat", "responses", "messages")
SAID = Said(thought="hm", text="Hello there.", calls=(Call("c1", "bash", '{"command": "ls"}'),))
PRICES = {"own-*": {"input": 1.0, "cached_input": 0.1, "output": 2.0}}
COST = (60 * 1.0 + 40 * 0.1 + 30 * 2.0) / 1e6


def body_of(api: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    if api == "responses":
        return {"model": "x", "input": said, "max_output_tokens": 9, **more}
    return {"model": "x", "messages": said, "max_tokens": 9, **more}


async def used(server: Recorded, rollout: str) -> PolicyCalls:
    client = server.launched.client
    return (await client.post(POLICY, "/policy_calls", RolloutName(rollout=rollout), PolicyCalls)).body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("spoken", APIS)
async def test_every_call_is_recorded_once(spoken: str, api: str, stream: bool, tmp_path: Path) -> None:
    async with upstream() as provider:
        made = instance_over(spoken, provider.base_url, prices=PRICES)
        async with recording(made, tmp_path) as server:
            provider.says = [SAID]
            body = body_of(api, stream=stream)
            key = server.key("task.0", "session-7", 2)
            got = await server.post(api, body, key=key, **{INVOCATION_HEADER: "start-1", ROLLOUT_HEADER: "forged"})
            (call,) = server.calls()
            count = await used(server, "task.0")
    assert call.answer == got.content
    assert (call.api, call.path, call.stream, call.request, call.status) == (api, PATHS[api], stream, body, 200)
    who = (call.rollout, call.session, call.activation, call.invocation, call.instance)
    assert who == ("task.0", "session-7", 2, "start-1", "policy_model")
    assert (call.first_byte_seconds is not None) == stream
    assert call.error is None
    assert call.model == "own-name"
    if stream and (spoken, api) == ("chat", "chat"):
        assert call.tokens == Tokens()  # the harness did not ask the provider for them
        assert (count.calls_without_usage, count.calls_without_price) == (1, 1)
    else:
        assert call.tokens == Tokens(100, 40, 30, 7, None if spoken == "chat" else 0)
        assert call.cost_source == "table"
        assert call.cost_usd == pytest.approx(COST)
        assert count.cost_usd == pytest.approx(COST)
        assert (count.calls, count.input_tokens, count.cached_input_tokens, count.output_tokens) == (1, 100, 40, 30)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "model_calls").iterdir())
    assert KEY.encode() not in stored
    assert key.encode() not in stored


async def test_calls_of_servers_of_the_process_and_of_persons(tmp_path: Path) -> None:
    async with upstream() as provider, recording(instance_over("chat", provider.base_url), tmp_path) as server:
        provider.says = [Said(text="Hello.")]
        client, request = server.launched.client, ResponsesRequest(input="hi", max_output_tokens=9)
        headers = {ROLLOUT_HEADER: "task.1", SESSION_HEADER: "s"}
        answer = await client.post(POLICY, "/v1/responses", request, ResponsesResponse, headers=headers)
        await client.post(POLICY, "/ng-rollout/task.2/v1/responses", request, ResponsesResponse)
        await server.post("chat", body_of("chat"), key=server.launched.token)
        first, second, third = server.calls()
    assert (first.rollout, first.session, second.rollout) == ("task.1", "s", "task.2")
    assert (third.rollout, third.session, third.api) == (None, None, "chat")
    assert first.request == {"input": "hi", "max_output_tokens": 9}
    assert ResponsesResponse.model_validate_json(first.answer) == answer.body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
async def test_the_tokens_ids_of_an_engine_are_kept(api: str, stream: bool, tmp_path: Path) -> None:
    """In the answer, or beside it where its API has no place for them; a replay keeps them too."""
    said = {"content": "hi"}
    choice = {"delta" if stream else "message": said, "token_ids": [3], "finish_reason": "stop"}
    answer = json.dumps({"prompt_token_ids": [1, 2], "choices": [choice]})
    kept = {"prompt_token_ids": [1, 2], "generation_token_ids": [3]}
    async with serving() as provider:
        sse = {"content-type": "text/event-stream"}
        provider.replies = [Reply(200, f"data: {answer}\n\n", sse) if stream else Reply(200, answer)]
        made = instance_over("chat", provider.base_url, return_token_ids=True)
        async with recording(made, tmp_path / "a") as server:
            await server.post(api, body_of(api, stream=stream))
            (call,) = server.calls()
    async with recording(instance(ReplayModel, replay_from=str(tmp_path / "a")), tmp_path / "b") as server:
        await server.post(api, body_of(api, stream=stream))
        (again,) = server.calls()
    assert (again.answer, again.token_ids) == (call.answer, call.token_ids)
    if api == "responses":
        told = call.answer_json()
        (item,) = told[-1]["response"]["output"] if stream else told["output"]
        assert kept.items() <= item.items()
    assert call.token_ids == (kept if api == "messages" else {})
    assert (b"token_ids" in call.answer) == (api != "messages")


async def test_counts_of_tokens_are_recorded_apart_and_played_back(tmp_path: Path) -> None:
    """They draw on no budget, and a replay asks nobody for them."""
    body = body_of("messages", "long " * 20)

    async def count(server: Recorded, rollout: str) -> tuple[int, Any]:
        url = server.launched.directory.url("policy_model") + COUNT_TOKENS
        got = await server.http.post(url, json=body, headers={"x-api-key": server.key(rollout)})
        return got.status_code, got.json().get("input_tokens")

    async with upstream() as provider:
        made = instance_over("messages", provider.base_url, budgets={"max_policy_calls": 1}, max_attempts=1)
        async with recording(made, tmp_path / "a") as server:
            provider.says = [SAID]
            await server.post("messages", body_of("messages"))
            live = [await count(server, "task.0"), await count(server, "task.0")]
            provider.refuses = (503, {"type": "error", "error": {"type": "api_error", "message": "down"}}, {})
            live.append(await count(server, "task.1"))
            assert (await used(server, "task.0")).calls == 1
            assert [call.path for call in server.calls()] == [PATHS["messages"]]
    assert live == [(200, 12), (200, 12), (503, None)]
    (file,) = files(tmp_path / "a")
    with CallFile(file) as recorded:
        counts = [recorded.at(head) for head in recorded.counts]
    assert [(one.path, one.status, one.request) for one in counts] == [
        (COUNT_TOKENS, status, body) for status in (200, 200, 503)
    ]
    async with recording(instance(ReplayModel, replay_from=str(tmp_path / "a")), tmp_path / "b") as server:
        await server.post("messages", body_of("messages"))
        assert [await count(server, rollout) for rollout in ("task.0", "task.0", "task.1")] == live
        assert (await count(server, "task.0"))[0] == 400
        assert await count(server, "task.7") == (200, 25)


@pytest.mark.parametrize("spoken", ["chat", "messages"])
async def test_the_providers_own_price_wins(spoken: str, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.0042}
    answer = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": usage}
    async with upstream() as provider:
        provider.refuses = (200, answer, {})
        async with recording(instance_over("chat", provider.base_url, prices=PRICES), tmp_path) as server:
            await server.post(spoken, body_of(spoken))
            (call,) = server.calls()
    assert (call.cost_usd, call.cost_source, call.tokens.total) == (0.0042, "provider", 15)


@pytest.mark.parametrize(
    ("prices", "warning"),
    [
        ({}, "no price for the model own-name: its cost is unknown; see `prices`"),
        (PRICES, "a call of the model own-name told no token counts: its cost is unknown"),
    ],
)
async def test_an_unknown_cost_is_told_once(
    prices: Any, warning: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with upstream() as provider:
        provider.refuses = (200, {"choices": [{"message": {"content": "hi"}}]}, {})
        async with recording(instance_over("chat", provider.base_url, prices=prices), tmp_path) as server:
            for _ in range(3):
                await server.post("chat", body_of("chat"))
            assert [call.cost_usd for call in server.calls()] == [None] * 3
    assert [record.message for record in caplog.records if "cost is" in record.message] == [f"policy_model: {warning}"]


@pytest.mark.parametrize("told", [True, False], ids=["told", "estimated"])
async def test_a_budget_in_money_holds_where_nobody_tells_tokens(told: bool, tmp_path: Path) -> None:
    """What a call takes is 100 input tokens, estimated where it does not tell; its own cost stays unknown then."""
    usage = {"usage": {"prompt_tokens": 100, "completion_tokens": 5}} if told else {}
    async with upstream() as provider:
        provider.refuses = (200, {"choices": [{"message": {"content": "hi"}}], **usage}, {})
        budget = {"max_policy_cost_usd": 250e-6}
        made = instance_over("chat", provider.base_url, prices={"*": {"input": 1, "output": 0}}, budgets=budget)
        async with recording(made, tmp_path) as server:
            body = body_of("chat", "x" * (400 - 77))
            statuses = [(await server.post("chat", body)).status_code for _ in range(4)]
            count = await used(server, "task.0")
    assert statuses == [200, 200, 200, 400]
    assert (count.exhausted, count.calls_without_price) == (["max_policy_cost_usd"], 0 if told else 3)
    assert count.cost_usd == (pytest.approx(300e-6) if told else None)


async def test_a_stream_that_tells_no_tokens_counts_by_its_words(tmp_path: Path) -> None:
    """Not by the bytes of its events."""
    chunks = [{"id": "c1", "choices": [{"index": 0, "delta": {"content": "word"}}]}] * 100
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    async with serving() as provider:
        told = "".join(f"data: {json.dumps(one)}\n\n" for one in (*chunks, end))
        provider.replies = [Reply(200, told, {"content-type": "text/event-stream"})]
        made = instance_over("chat", provider.base_url, budgets={"max_policy_tokens": 299})
        async with recording(made, tmp_path) as server:
            statuses = [(await server.post("chat", body_of("chat", stream=True))).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 400]  # 100 tokens each, and a few of the request


@pytest.mark.parametrize("limit", [{"max_output_tokens": 900}, {"extra_body": {"max_tokens": 900}}])
async def test_the_servers_own_limit_is_reserved(limit: dict[str, Any], tmp_path: Path) -> None:
    """Ten at once are let in one by one while they may need 900 tokens each, and the budget is not overrun."""
    usage = {"prompt_tokens": 100, "completion_tokens": 900}
    async with upstream() as provider:
        provider.refuses = (200, {"choices": [{"message": {"content": "hi"}}], "usage": usage}, {})
        made = instance_over("chat", provider.base_url, budgets={"max_run_tokens": 2000}, **limit)
        body = {"model": "x", "messages": [{"role": "user", "content": "hi"}]}
        async with recording(made, tmp_path) as server:
            asked = (server.post("chat", body, key=server.key(f"task.{number}")) for number in range(10))
            statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert sorted(statuses) == [200] * 2 + [400] * 8


async def test_failures_are_recorded_with_what_the_provider_said(tmp_path: Path) -> None:
    told = {"error": {"message": "no such thing", "code": "odd"}}
    async with upstream() as provider, recording(instance_over("chat", provider.base_url), tmp_path) as server:
        provider.refuses = (418, told, {})
        for stream in (False, True):
            assert (await server.post("messages", body_of("messages", stream=stream))).status_code == 418
        provider.refuses, provider.says, provider.cut = None, [SAID], 3
        broken = await server.post("responses", body_of("responses", stream=True))
        refused = await server.post("responses", {"input": "hi", "tools": [{"type": "web_search"}]})
        first, second, third, fourth = server.calls()
        count = await used(server, "task.0")
        provider.refuses = (503, told, {})
        await server.post("chat", body_of("chat"))
        assert [call.attempts for call in server.calls()] == [1, 1, 1, None, 3]
    assert (first.status, first.error and first.error["kind"], first.answer) == (418, "provider_refused", b"")
    assert first.error == second.error
    assert third.error is not None
    assert third.error["kind"] == "provider_error"
    assert broken.content.startswith(third.answer)
    assert len(third.answer) > 50
    assert (fourth.status, refused.status_code) == (400, 400)
    assert fourth.error is not None
    assert "web_search" in fourth.error["message"]
    assert (count.calls, count.failed, count.calls_without_price) == (4, 3, 1)


async def test_a_client_that_leaves_is_recorded_with_what_it_had(tmp_path: Path) -> None:
    async with upstream() as provider, recording(instance_over("chat", provider.base_url), tmp_path) as server:
        provider.says = [SAID]
        provider.gate.clear()
        url = server.launched.directory.url("policy_model") + PATHS["chat"]
        headers = {"authorization": f"Bearer {server.key()}"}
        async with server.http.stream("POST", url, json=body_of("chat", stream=True), headers=headers) as response:
            first = await anext(response.aiter_raw())
        async with asyncio.timeout(10):
            await provider.gone.wait()
    (call,) = server.calls()
    assert (call.status, call.answer) == (499, first)
    assert call.error == {"kind": "cancelled", "message": "the client left before the end"}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_budget_that_is_used_up_is_an_error_of_the_api(api: str, stream: bool, tmp_path: Path) -> None:
    async with upstream() as provider:
        made = instance_over("chat", provider.base_url, budgets={"max_policy_calls": 2, "max_run_calls": 5})
        async with recording(made, tmp_path) as server:
            provider.says = [SAID]
            statuses = [(await server.post(api, body_of(api, stream=stream))).status_code for _ in range(2)]
            refused = await server.post(api, body_of(api, stream=stream))
            others = [await server.post(api, body_of(api), key=server.key(f"task.{n}")) for n in (1, 2, 3, 4)]
            count = await used(server, "task.0")
            with pytest.raises(EpisodeFailure) as failure:
                await server.launched.client.post(
                    POLICY, "/v1/responses", ResponsesRequest(input="hi"), ResponsesResponse
                )
    assert statuses == [200, 200]
    assert refused.status_code == 400
    assert_names(refused, "budget_exhausted", "max_policy_calls")
    assert [answer.status_code for answer in others] == [200, 200, 200, 400]
    assert_names(others[-1], "run_budget_exhausted", "max_run_calls")
    assert (count.calls, count.exhausted) == (2, ["max_policy_calls"])
    assert failure.value.kind == "run_budget_exhausted"
    assert [call.status for call in server.calls()] == [200, 200, 400, 200, 200, 200, 400, 400]


def assert_names(answer: httpx.Response, kind: str, name: str) -> None:
    told = answer.json()
    assert told["failure"]["kind"] == kind
    assert told["error"]["type"] == "invalid_request_error"
    assert exhausted_budget(told["error"]["message"]) == (kind, name)
    assert exhausted_budget(json.dumps(told)) == (kind, name)


@pytest.mark.parametrize("leaves", [False, True], ids=["cut", "left"])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("spoken", APIS)
async def test_tokens_of_a_broken_stream_count(spoken: str, api: str, leaves: bool, tmp_path: Path) -> None:
    """A harness tries it again, and the provider bills both. What it did not tell is no zero."""
    async with upstream() as provider:
        made = instance_over(spoken, provider.base_url, budgets={"max_policy_tokens": 60})
        async with recording(made, tmp_path) as server:
            provider.says, provider.cut = [SAID], 4
            body = body_of(api, "long " * 400, stream=True)
            if leaves:
                provider.gate.clear()
                url, headers = server.launched.directory.url("policy_model") + PATHS[api], {"x-api-key": server.key()}
                async with server.http.stream("POST", url, json=body, headers=headers) as response:
                    await anext(response.aiter_raw())
                async with asyncio.timeout(10):
                    await provider.gone.wait()
            else:
                await server.post(api, body)
            provider.gate.set()
            assert (await server.post(api, body)).status_code == 400
            call = server.calls()[0]
    assert call.error is not None
    assert call.tokens == (Tokens(60) if spoken == api == "messages" else Tokens())
