"""The model servers over a provider, against a real HTTP server: requests, responses, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from gym.apis.responses import (
    ResponsesRequest,
    ResponsesResponse,
    function_call,
    function_call_output,
    message,
    reasoning,
)
from gym.failures import EpisodeFailure
from gym.responses_api_models.anthropic_model.app import AnthropicModel
from gym.responses_api_models.openai_model.app import OpenAIModel
from gym.responses_api_models.provider_model import ProviderModel
from gym.responses_api_models.vllm_model.app import VLLMModel
from gym.servers.base import Call, ServerError
from gym.servers.model import CHAT as CHAT_CLIENT
from gym.servers.model import MESSAGES
from tests.responses_api_models.provider import Provider, Reply, context

Server = type[ProviderModel[Any]]
HELLO = ResponsesRequest(input=[message("user", "hi")], model="another", max_output_tokens=7)
CHAT = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
ANSWER = {"content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"}

SETTINGS: dict[Server, Mapping[str, Any]] = {
    VLLMModel: {"base_url": "{url}/v1/", "api_key": "secret-key\n", "model": "m"},
    OpenAIModel: {"openai_base_url": "{url}/v1", "openai_api_key": "secret-key", "openai_model": "m"},
    AnthropicModel: {"anthropic_base_url": "{url}", "anthropic_api_key": "secret-key", "anthropic_model": "m"},
}
ANSWERS: dict[Server, Any] = {VLLMModel: CHAT, OpenAIModel: CHAT, AnthropicModel: ANSWER}


def server(kind: Server, url: str, **more: Any) -> ProviderModel[Any]:
    settings = {key: value.format(url=url) for key, value in SETTINGS[kind].items()}
    return kind(kind.config_type.model_validate({**settings, "retry_backoff_seconds": 0.001, **more}), context())


async def answer(started: ProviderModel[Any], request: ResponsesRequest) -> ResponsesResponse:
    """The answer over the server's own route, as callers get it."""
    await started.start()
    try:
        got = await started.routes["/v1/responses"](request, Call())
        assert isinstance(got, ResponsesResponse)
        return got
    finally:
        await started.stop()


REQUESTS: list[tuple[Server, str, dict[str, Any], str, dict[str, str]]] = [
    (
        VLLMModel,
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7},
        "authorization",
        {},
    ),
    (
        OpenAIModel,
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 7},
        "authorization",
        {},
    ),
    (
        AnthropicModel,
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 7},
        "x-api-key",
        {"anthropic-version": "2023-06-01"},
    ),
]


@pytest.mark.parametrize(("kind", "path", "body", "key_header", "headers"), REQUESTS)
async def test_what_is_sent(
    provider: Provider, kind: Server, path: str, body: dict[str, Any], key_header: str, headers: dict[str, str]
) -> None:
    provider.replies = [Reply(body=ANSWERS[kind])]
    response = await answer(server(kind, provider.base_url, temperature=0.5, extra_body={"seed": 1}), HELLO)
    assert (response.output_text, response.model) == ("hello", "m")
    assert (provider.paths, provider.bodies) == ([path], [{**body, "model": "m", "temperature": 0.5, "seed": 1}])
    assert provider.headers[0][key_header].removeprefix("Bearer ") == "secret-key"
    assert headers.items() <= provider.headers[0].items()


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (Reply(401, {"error": {"message": "bad key secret-key"}}), "provider_refused"),
        (Reply(429, {"error": {"message": "slow down"}}, {"retry-after": "0"}), "provider_rate_limited"),
        (Reply(500, {"error": {"message": "crashed"}}), "provider_error"),
        (Reply(200, {"object": "list"}), "malformed_answer"),
        (Reply(200, "<html>"), "malformed_answer"),
    ],
)
async def test_failures(provider: Provider, kind: Server, reply: Reply, failure: str) -> None:
    provider.replies = [reply]
    with pytest.raises(EpisodeFailure) as raised:
        await answer(server(kind, provider.base_url), HELLO)
    assert raised.value.kind == failure
    assert "secret-key" not in raised.value.message


@pytest.mark.parametrize("kind", SETTINGS)
async def test_what_cannot_be_carried_is_not_sent(provider: Provider, kind: Server) -> None:
    with pytest.raises(ServerError, match="input_file"):
        await answer(
            server(kind, provider.base_url),
            ResponsesRequest(input=[{"role": "user", "content": [{"type": "input_file"}]}]),
        )
    assert not provider.bodies


@pytest.mark.parametrize(("kind", "named"), [(VLLMModel, "Chat Completions"), (AnthropicModel, "Anthropic Messages")])
async def test_a_refusal_names_the_api_of_the_provider(provider: Provider, kind: Server, named: str) -> None:
    client = MESSAGES if kind is VLLMModel else CHAT_CLIENT
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi", "zz": 1}]}
    with pytest.raises(ServerError, match=rf"`messages\[0\].zz` cannot be carried to {named}"):
        await server(kind, provider.base_url).answered(client, body, Call())
    assert not provider.bodies


async def test_of_two_limits_the_smaller_one_is_kept(provider: Provider) -> None:
    provider.replies = [Reply(body=CHAT)]
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, "max_completion_tokens": 7}
    started = server(VLLMModel, provider.base_url)
    await started.answered(CHAT_CLIENT, body, Call())
    await started.stop()
    assert provider.bodies == [{"messages": body["messages"], "max_tokens": 7, "model": "m"}]


async def test_requests_win_over_settings(provider: Provider) -> None:
    provider.replies = [Reply(body=CHAT)]
    request = ResponsesRequest(input="hi", temperature=0.0, top_p=1.0)
    await answer(server(VLLMModel, provider.base_url, temperature=0.5, top_p=0.5, max_output_tokens=9), request)
    body = provider.bodies[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.0, 1.0, 9)


async def test_anthropic_always_has_a_limit(provider: Provider) -> None:
    provider.replies = [Reply(body=ANSWER)]
    await answer(server(AnthropicModel, provider.base_url + "/v1"), ResponsesRequest(input="hi"))
    assert provider.bodies[0]["max_tokens"] == 16384
    assert provider.paths == ["/v1/messages"]


async def test_settings_of_an_engine(provider: Provider) -> None:
    provider.replies = [Reply(body=CHAT)]
    started = server(
        VLLMModel,
        provider.base_url,
        api_key=None,
        default_headers={"x-team": "blue"},
        chat_template_kwargs={"enable_thinking": False},
        replace_developer_role_with_system=True,
        reasoning_field="reasoning",
    )
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    await answer(started, ResponsesRequest(input=[message("developer", "x"), thought, message("assistant", "y")]))
    assert provider.bodies[0] == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "x"},
            {"role": "assistant", "content": "y", "reasoning": "hm"},
        ],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert provider.headers[0]["x-team"] == "blue"
    assert "authorization" not in provider.headers[0]


async def test_token_ids_are_asked_for_and_kept(provider: Provider) -> None:
    choice = {"message": {"content": "hi"}, "token_ids": [3], "logprobs": {"content": [{"token": "x", "logprob": -1}]}}
    provider.replies = [Reply(body={"prompt_token_ids": [1, 2], "choices": [choice]})]
    response = await answer(server(VLLMModel, provider.base_url, return_token_ids=True), HELLO)
    asked = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
    assert asked.items() <= provider.bodies[0].items()
    kept = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-1.0]}
    assert kept.items() <= response.output[0].items()


async def test_a_responses_upstream_keeps_what_it_does_not_know(provider: Provider) -> None:
    provider.replies = [Reply(body={"id": "r1", "output": [{"type": "odd", "x": 1}], "extra": 7})]
    started = server(OpenAIModel, provider.base_url, api="responses")
    request = ResponsesRequest.model_validate({"input": "hi", "previous_response_id": "r0", "store": True})
    response = await answer(started, request)
    expected = {"model": "m", "input": [message("user", "hi") | {"content": "hi"}], "store": True}
    assert (provider.paths, provider.bodies) == (["/v1/responses"], [{**expected, "previous_response_id": "r0"}])
    assert response.model_dump()["extra"] == 7
    assert response.output == [{"type": "odd", "x": 1}]


@pytest.mark.parametrize("field", [None, "reasoning_content"])
async def test_open_reasoning_goes_back_to_an_engine_where_it_is_told_to(provider: Provider, field: Any) -> None:
    provider.replies = [Reply(body={"id": "r1", "output": []})]
    started = server(VLLMModel, provider.base_url, api="responses", reasoning_field=field)
    await answer(started, ResponsesRequest(input=[message("user", "hi"), reasoning("hm")]))
    kinds = [item["type"] for item in provider.bodies[0]["input"]]
    assert kinds == ["message", "reasoning"][: 2 if field else 1]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (
            {"status": "failed", "output": [], "error": {"code": "rate_limit_exceeded", "message": "slow"}},
            "rate_limited",
        ),
        ({"status": "failed", "output": [], "error": {"code": "server_error", "message": "broke"}}, "error"),
    ],
)
async def test_a_response_that_failed(provider: Provider, body: Any, kind: str) -> None:
    provider.replies = [Reply(body=body)]
    with pytest.raises(EpisodeFailure) as raised:
        await answer(server(OpenAIModel, provider.base_url, api="responses"), HELLO)
    assert raised.value.kind == f"provider_{kind}"


async def test_no_secret_in_what_an_answer_tells(provider: Provider) -> None:
    error = {"code": "x", "message": "bad key secret-key"}
    provider.replies = [Reply(body={"status": "failed", "output": [], "error": error})]
    with pytest.raises(EpisodeFailure) as raised:
        await answer(server(OpenAIModel, provider.base_url, api="responses"), HELLO)
    assert raised.value.message == f"{provider.base_url}/v1/responses answered 500: bad key *** (3 attempts)"


async def test_openrouter_limits_by_another_field(provider: Provider) -> None:
    provider.replies = [Reply(body=CHAT)]
    await answer(server(OpenAIModel, provider.base_url, output_limit_field="max_tokens"), HELLO)
    assert provider.bodies[0]["max_tokens"] == 7


async def test_a_malformed_call_is_kept_and_not_sent_back(provider: Provider) -> None:
    """The response keeps what the model wrote; the next request has `{}` in its place."""
    raw = '{"a": 2, "b": '
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": raw}}
    provider.replies = [Reply(body={"choices": [{"message": {"tool_calls": [call]}}]}), Reply(body=CHAT)]
    started = server(VLLMModel, provider.base_url)
    first = await answer(started, HELLO)
    assert first.output[0]["arguments"] == raw
    history = [message("user", "hi"), *first.output, function_call_output("c1", "the JSON breaks at the end")]
    await answer(started, ResponsesRequest(input=history))
    sent = provider.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {}
    assert history[1] == first.output[0]


async def test_over_http_forms_too(provider: Provider) -> None:
    """A body of plain JSON is validated by the route, with the nulls that clients send."""
    provider.replies = [Reply(body=CHAT)]
    started = server(VLLMModel, provider.base_url)
    body = {"input": [function_call("add", {}, "c1")], "store": False, "include": [], "truncation": None}
    got = await started.routes["/v1/responses"](body, Call())
    await started.stop()
    assert got.output_text == "hello"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"base_url": "localhost:8000"}, "base_url\n.*not an address such as"),
        ({"base_url": "http://user:word@h/v1"}, "use a key or headers"),
        ({"base_url": "http://h/v1", "modle": "m"}, "modle\n.*Extra inputs"),
        ({"base_url": "http://h/v1", "max_attempts": 0}, "max_attempts"),
        ({"base_url": "http://h/v1"}, "model\n.*Field required"),
        ({"base_url": "http://h/v1", "model": "m", "api": "messages"}, "api\n"),
        (
            {"base_url": "http://h/v1", "model": "m", "api": "responses", "return_token_ids": True},
            "return_token_ids needs `api: chat`",
        ),
    ],
)
def test_wrong_settings(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        VLLMModel.config_type.model_validate(settings)


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_are_described_and_marked(kind: Server) -> None:
    fields = kind.config_type.model_fields
    assert all(field.description for field in fields.values())
    marks = {name: field.json_schema_extra or {} for name, field in fields.items()}
    secret = {name for name, mark in marks.items() if isinstance(mark, dict) and mark.get("secret")}
    assert secret == {name for name in fields if name.endswith("api_key")}
    identity = {name for name, mark in marks.items() if isinstance(mark, dict) and not mark.get("operational")}
    assert {"temperature", "top_p", "max_output_tokens", "extra_body"} < identity
    assert not any(name.endswith(("url", "key", "headers", "attempts", "seconds")) for name in identity)
    assert "secret-key" not in repr(server(kind, "http://h").config)
