"""The embedded script behind all three APIs, played by harnesses that name their tools in their own way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym.apis.responses import ResponsesRequest, function_call, message
from gym.responses_api_models.embedded_model.aliases import aliased, offered, played
from gym.responses_api_models.embedded_model.app import EmbeddedModel
from tests.responses_api_models.clients import CLIENTS, Client
from tests.responses_api_models.servers import Served, served

SCRIPT: list[dict[str, Any]] = [
    {
        "task": "answer",
        "match": "answer.txt",
        "turns": [
            [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "I think."}]},
                {"say": "Let me write it."},
                {"call": "shell", "arguments": {"command": "echo 42 > answer.txt"}},
                {"call": "shell", "arguments": {"command": "cat answer.txt"}},
            ],
            [{"say": "It is written."}],
        ],
    }
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, SCRIPT)))
    async with served(EmbeddedModel, script=str(path)) as started:
        yield started


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_script_over_every_api(server: Served, client: str, stream: bool) -> None:
    """The turn follows from the conversation, in whatever API it comes."""
    async with aclosing(CLIENTS[client](server.base_url, server.key, "Be brief.", "Write answer.txt, now.")) as talk:
        await play(talk, stream)


async def play(conversation: Client, stream: bool) -> None:
    first = await conversation.ask(stream=stream)
    assert (first.thought, first.text) == ("I think.", "Let me write it.")
    ids = ["call_1_3", "call_1_4"]
    commands = [{"command": "echo 42 > answer.txt"}, {"command": "cat answer.txt"}]
    assert first.calls == [(id_, "bash", command) for id_, command in zip(ids, commands, strict=True)]
    conversation.outputs([(ids[0], "", False), (ids[1], "42", False)])
    last = await conversation.ask(stream=stream)
    assert (last.text, last.calls, last.model) == ("It is written.", [], "embedded-script")


async def test_a_text_comes_in_several_deltas(server: Served) -> None:
    body = {"input": "answer.txt", "stream": True}
    async with httpx.AsyncClient() as client:
        got = await client.post(server.base_url + "/v1/responses", json=body, headers=server.headers)
    assert got.text.count("event: response.output_text.delta") == 4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "nothing"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "nothing"}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "nothing"}]}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_exhausted_script_is_nothing_to_try_again(
    server: Served, path: str, body: dict[str, Any], stream: bool
) -> None:
    async with httpx.AsyncClient() as client:
        got = await client.post(server.base_url + path, json={**body, "stream": stream}, headers=server.headers)
    assert got.status_code == 400
    assert "no line of the script" in got.json()["error"]["message"]
    assert got.json()["failure"]["kind"] == "script_exhausted"


def tool(name: str, *arguments: str, required: tuple[str, ...] = (), **types: Any) -> dict[str, Any]:
    properties = {argument: types.get(argument, {"type": "string"}) for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "name": name, "parameters": schema}


def space(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "", "tools": list(tools)}


LIST = {"type": "array", "items": {"type": "string"}}
SHELL = ("shell", {"command": "ls"})
LOOKUP = ("lookup_value", {"key": "a"})
PLAYED: dict[str, tuple[list[dict[str, Any]], tuple[str, Any], tuple[str, str | None, Any]]] = {
    "codex": (
        [tool("write_stdin", "chars"), tool("exec_command", "cmd", "yield_time_ms")],
        SHELL,
        ("exec_command", None, {"cmd": "ls"}),
    ),
    "codex, older": (
        [tool("shell", "command", "workdir", command=LIST)],
        SHELL,
        ("shell", None, {"command": ["bash", "-lc", "ls"]}),
    ),
    "claude code": (
        [tool("Edit", "path"), tool("Bash", "command", "description")],
        SHELL,
        ("Bash", None, {"command": "ls"}),
    ),
    "copilot": (
        [tool("bash", "command", "description", required=("command", "description"))],
        SHELL,
        ("bash", None, {"command": "ls", "description": "ls"}),
    ),
    "openclaw": ([tool("process", "id"), tool("exec", "command")], SHELL, ("exec", None, {"command": "ls"})),
    "opencode, pi, mini-swe": ([tool("bash", "command")], SHELL, ("bash", None, {"command": "ls"})),
    "hermes": ([tool("terminal", "command"), tool("process", "id")], SHELL, ("terminal", None, {"command": "ls"})),
    "further arguments": (
        [tool("exec_command", "cmd")],
        ("bash", {"command": "ls", "timeout": 3}),
        ("exec_command", None, {"cmd": "ls", "timeout": 3}),
    ),
    "an own shell": ([tool("shell", "command"), tool("bash", "command")], SHELL, ("shell", None, {"command": "ls"})),
    "another shape": (
        [tool("exec_command", "cmd")],
        ("shell", {"lines": ["ls"]}),
        ("exec_command", None, {"lines": ["ls"]}),
    ),
    "no shell": ([tool("read", "path")], SHELL, ("shell", None, {"command": "ls"})),
    "no tools": ([], SHELL, ("shell", None, {"command": "ls"})),
    "mcp of claude code": (
        [tool("mcp__gym_res__lookup_value", "key")],
        LOOKUP,
        ("mcp__gym_res__lookup_value", None, {"key": "a"}),
    ),
    "mcp of copilot": ([tool("gym_res-lookup_value", "key")], LOOKUP, ("gym_res-lookup_value", None, {"key": "a"})),
    "mcp of codex": (
        [space("mcp__gym_res", tool("lookup_value", "key"))],
        LOOKUP,
        ("lookup_value", "mcp__gym_res", {"key": "a"}),
    ),
    "its own name": (
        [tool("lookup_value", "key"), tool("x_lookup_value")],
        LOOKUP,
        ("lookup_value", None, {"key": "a"}),
    ),
    "two that fit": ([tool("a_lookup_value"), tool("b_lookup_value")], LOOKUP, ("lookup_value", None, {"key": "a"})),
    "an unknown tool": ([tool("add", "a")], ("ad", {"a": 1}), ("ad", None, {"a": 1})),
}


@pytest.mark.parametrize("harness", PLAYED)
def test_calls_are_played_with_the_tools_that_are_offered(harness: str) -> None:
    tools, (name, arguments), expected = PLAYED[harness]
    item = {"type": "function_call", "call_id": "c", "name": name, "arguments": json.dumps(arguments)}
    as_tools = offered(ResponsesRequest(input="hi", tools=tools))
    as_item = offered(ResponsesRequest(input=[{"type": "additional_tools", "role": "developer", "tools": tools}]))
    for known in (as_tools, as_item):
        made = aliased(item, known)
        assert (made["name"], made.get("namespace"), json.loads(made["arguments"])) == expected


def test_broken_arguments_are_played_as_they_are() -> None:
    item = {"type": "function_call", "call_id": "c", "name": "shell", "arguments": '{"command": '}
    made = aliased(item, offered(ResponsesRequest(input="hi", tools=[tool("exec_command", "cmd")])))
    assert (made["name"], made["arguments"]) == ("exec_command", '{"command": ')
    said = {"type": "message", "role": "assistant", "content": []}
    assert aliased(said, []) is said


BASH = [tool("bash", "command")]
BY_COMMANDS = "Finish with `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`."
TOOLS = f"{BY_COMMANDS}\n\n    sh /.gym-1/tool NAME 'ARGUMENTS'\n\n### mcp__grant__lookup_value\n"


@pytest.mark.parametrize(
    ("prompt", "tools", "item", "commands"),
    [
        (BY_COMMANDS, BASH, message("assistant", "Done."), ["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]),
        (BY_COMMANDS, BASH, function_call("shell", {"command": "ls"}), ["ls"]),
        (TOOLS, BASH, function_call(*LOOKUP), ['sh /.gym-1/tool mcp__grant__lookup_value \'{"key": "a"}\'']),
        (BY_COMMANDS, BASH, function_call(*LOOKUP), [None]),
        ("Do it.", BASH, message("assistant", "Done."), []),
        (BY_COMMANDS, [*BASH, tool("read", "path")], message("assistant", "Done."), []),
    ],
)
def test_a_harness_with_nothing_but_a_shell(
    prompt: str, tools: list[dict[str, Any]], item: dict[str, Any], commands: list[str | None]
) -> None:
    items = played([item], ResponsesRequest(input=[{"role": "user", "content": prompt}], tools=tools))
    calls = [json.loads(item["arguments"]).get("command") for item in items if item["type"] == "function_call"]
    assert calls == commands
