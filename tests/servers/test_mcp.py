"""The MCP side of a resources server on the wire: what clients of all kinds send, and what they get."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import gym
from gym.failures import EpisodeFailure
from tests.servers.toolbox import Hosted, hosted, request

LATEST = "2025-11-25"
TOOLS = ["fail", "give", "increment", "locate", "wait"]


@pytest.fixture
async def box() -> AsyncIterator[Hosted]:
    async with hosted() as running:
        yield running


# The protocol --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        (LATEST, LATEST),
        ("2024-11-05", LATEST),
        ("2026-07-28", LATEST),
        (None, LATEST),
    ],
)
async def test_the_version_is_the_clients_where_we_speak_it(box: Hosted, asked: str | None, spoken: str) -> None:
    hello: dict[str, Any] = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    answer = await box.post(await box.headers(), request("initialize", **hello))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in answer.headers
    assert answer.json() == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "protocolVersion": spoken,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "toolbox", "version": gym.__version__},
        },
    }


NO_METHOD, INVALID, BAD_PARAMS, NO_JSON = -32601, -32600, -32602, -32700
UNKNOWN_TOOL: dict[str, Any] = {"name": "incrment", "arguments": {}}


@pytest.mark.parametrize(
    ("body", "status", "code", "text"),
    [
        (request("server/discover"), 200, NO_METHOD, "no method `server/discover`: "),
        (request("resources/list"), 200, NO_METHOD, "no method"),
        (request("prompts/list"), 200, NO_METHOD, "no method"),
        (request("logging/setLevel", level="debug"), 200, NO_METHOD, "no method"),
        (request("tools/call", **UNKNOWN_TOOL), 200, BAD_PARAMS, "no tool `incrment`; did you mean `increment`?"),
        (request("tools/call", name="verify"), 200, BAD_PARAMS, "no tool `verify`; the tools are: fail, give, "),
        (request("tools/call"), 200, BAD_PARAMS, "there is no tool"),
        ({**request("tools/list"), "params": [1]}, 200, BAD_PARAMS, "`params` is no object"),
        ({**request("ping"), "jsonrpc": "1.0"}, 400, INVALID, "no JSON-RPC 2.0 message"),
        ({**request("ping"), "id": True}, 400, INVALID, "the id of a request is an integer or a string"),
        ({**request("ping"), "id": None}, 400, INVALID, "the id of a request is an integer or a string"),
        ([], 400, INVALID, "no JSON-RPC 2.0 message"),
        ("ping", 400, INVALID, "no JSON-RPC 2.0 message"),
        (b"{", 400, NO_JSON, "the body is no JSON: "),
        (b"\xff", 400, NO_JSON, "the body is no JSON: "),
    ],
)
async def test_what_cannot_be_answered_is_a_json_rpc_error(
    box: Hosted, body: Any, status: int, code: int, text: str
) -> None:
    headers = await box.headers()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await box.http.post(f"{box.url}/mcp", content=content, headers=headers)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert text in error["message"]
    assert answer.json()["id"] == (1 if status == 200 else None)


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}},
        {"jsonrpc": "2.0", "id": 4, "result": {}},
        [{"jsonrpc": "2.0", "method": "notifications/initialized"}],
    ],
)
async def test_what_needs_no_answer_gets_none(box: Hosted, body: Any) -> None:
    answer = await box.post(await box.headers(), body)
    assert (answer.status_code, answer.content) == (202, b"")


async def test_the_other_verbs(box: Hosted) -> None:
    headers = await box.headers()
    answers = {verb: await box.http.request(verb, f"{box.url}/mcp", headers=headers) for verb in ("GET", "DELETE")}
    assert answers["GET"].status_code == 405
    assert answers["GET"].headers["allow"] == "POST, DELETE"
    assert answers["DELETE"].status_code == 200
    assert (await box.call(headers, "increment"))["structuredContent"] == {"count": 1}


async def test_a_batch_is_answered_as_one(box: Hosted) -> None:
    calls = [request("tools/call", n, name="increment", arguments={"by": n}) for n in (1, 2)]
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    answer = await box.post(await box.headers(), [*calls, note, request("nope", "x")])
    assert answer.status_code == 200
    assert [one["id"] for one in answer.json()] == [1, 2, "x"]
    assert answer.json()[1]["result"]["structuredContent"] == {"count": 3}
    assert answer.json()[2]["error"]["code"] == NO_METHOD


@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/event-stream", None])
@pytest.mark.parametrize("version", [None, "2025-03-26", "2026-07-28", "nonsense"])
async def test_headers_that_say_little_or_too_much_do_no_harm(
    box: Hosted, accept: str | None, version: str | None
) -> None:
    headers = await box.headers()
    headers |= {"mcp-session-id": "of another server"}
    headers |= {"accept": accept or ""} | ({"mcp-protocol-version": version} if version else {})
    assert (await box.call(headers, "increment"))["structuredContent"] == {"count": 1}


async def test_tools_are_listed_with_their_schemas(box: Hosted) -> None:
    answer = await box.post(await box.headers(), request("tools/list"))
    tools = {tool["name"]: tool for tool in answer.json()["result"]["tools"]}
    assert sorted(tools) == TOOLS
    assert tools["increment"] == {
        "name": "increment",
        "description": "Add to the counter.\n\nTells how it stands then.",
        "inputSchema": {
            "type": "object",
            "properties": {"by": {"type": "integer", "default": 1}},
            "additionalProperties": False,
        },
    }
    schema = tools["locate"]["inputSchema"]
    assert schema["required"] == ["point"]
    assert schema["properties"]["unit"] == {"type": "string", "enum": ["m", "ft"], "default": "m"}
    assert schema["properties"]["digits"]["description"] == "Decimal places."
    assert schema["$defs"]["Point"]["required"] == ["x"]


# Results -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "text", "structured"),
    [
        ("text", "ein Wört", None),
        ("nothing", "null", None),
        ("number", "3", None),
        ("list", '[1, "two"]', None),
        ("model", '{"x": 1.0, "y": 0.0}', {"x": 1.0, "y": 0.0}),
        ("day", '{"day": "2026-01-02", "1": null}', {"day": "2026-01-02", "1": None}),
    ],
)
async def test_what_a_tool_returns(box: Hosted, what: str, text: str, structured: Any) -> None:
    result = await box.call(await box.headers(), "give", what=what)
    assert result["content"] == [{"type": "text", "text": text}]
    assert result["isError"] is False
    assert result.get("structuredContent") == structured


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("increment", {"by": "many"}, "`increment` refused the call: by: Input should be a valid integer"),
        ("increment", {"by": 1, "to": 2}, "`increment` refused the call: to: Extra inputs are not permitted"),
        ("increment", [1], "`increment` refused the call: body: Input should be a valid dictionary"),
        ("locate", {"point": {"y": 1}}, "`locate` refused the call: point.x: Field required"),
        ("fail", {"how": "refused"}, "`fail` refused the call: how: too much"),
    ],
)
async def test_what_the_model_can_mend_is_a_result(box: Hosted, tool: str, arguments: Any, text: str) -> None:
    headers = await box.headers()
    _, cookies = await box.seed()
    answer = await box.post(headers, request("tools/call", name=tool, arguments=arguments))
    result = answer.json()["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith(text)
    assert "\n" not in result["content"][0]["text"]
    assert (await box.verify(cookies)).reward == 1.0


FAILURES = [
    ("fail", {"how": "unreachable"}, "tool_server_error", "tool fail of toolbox: the simulator is down"),
    ("fail", {"how": "failure"}, "sandbox_lost", "the sandbox is gone"),
    ("fail", {"how": "crash"}, "tool_server_error", "tool fail of toolbox: KeyError: 'crash'"),
    ("give", {"what": "unfit"}, "tool_server_error", "tool give of toolbox: PydanticSerializationError: "),
]


@pytest.mark.parametrize("transport", ["mcp", "direct_http"])
@pytest.mark.parametrize(("tool", "arguments", "kind", "text"), FAILURES)
async def test_what_fails_is_told_and_remembered(
    box: Hosted, transport: str, tool: str, arguments: dict[str, str], kind: str, text: str
) -> None:
    headers, (_, cookies) = await box.headers(), await box.seed()
    if transport == "mcp":
        result = await box.call(headers, tool, **arguments)
        assert result["isError"] is True
        assert result["content"][0]["text"].startswith(f"`{tool}` failed: {text}")
    else:
        answer = await box.direct(headers, cookies, tool, **arguments)
        assert answer.status_code == 502
        assert answer.json()["failure"] == {"kind": kind, "stage": "agent"}
    for _ in range(2):
        with pytest.raises(EpisodeFailure) as caught:
            await box.verify(cookies)
        assert caught.value.kind == kind
        assert caught.value.stage == "agent"
        assert caught.value.message.startswith(text)


async def test_the_first_failure_is_the_one_that_counts(box: Hosted) -> None:
    headers, (_, cookies) = await box.headers(), await box.seed()
    await box.call(headers, "fail", how="failure")
    await box.call(headers, "fail", how="crash")
    assert (await box.call(headers, "increment"))["isError"] is False
    with pytest.raises(EpisodeFailure, match="the sandbox is gone"):
        await box.verify(cookies)
