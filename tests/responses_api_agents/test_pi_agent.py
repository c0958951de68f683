"""Pi: its command line and files, and what is read from its events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.harness.adapter import Evidence, Reading, ToolServer
from responses_api_agents.pi_agent.app import PiAgent
from tests.harness.turns import adapter, turn

USAGE = {"input": 600, "output": 50, "cacheRead": 400, "cacheWrite": 0, "reasoning": 7, "totalTokens": 1050}


def said(stop: str, *content: dict[str, Any], **fields: Any) -> str:
    message = {"role": "assistant", "content": content, "usage": USAGE, "stopReason": stop, "responseId": "r", **fields}
    return json.dumps({"type": "message_end", "message": message})


def result(call_id: str, text: str, **fields: Any) -> str:
    message = {"role": "toolResult", "toolCallId": call_id, "content": [{"type": "text", "text": text}], **fields}
    return json.dumps({"type": "message_end", "message": message})


CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}
BROKEN = {
    "type": "toolCall",
    "id": "c2",
    "name": "bash",
    "arguments": {},
    "argumentsError": 'Unterminated string in JSON\n\nReceived arguments:\n{"comm',
}
START = '{"type":"session","version":3,"id":"s1","cwd":"/work"}'
SETTLED = '{"type":"agent_settled","aborted":false}'
ERROR = said("error", errorMessage='500: {"message":"x"}')
EVENTS = [
    START,
    '{"type":"message_end","message":{"role":"system","content":""}}',
    '{"type":"message_end","message":{"role":"user","content":[{"type":"text","text":"do it"}]}}',
    said("toolUse", {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Looking."}, CALL),
    '{"type":"tool_execution_end","toolCallId":"c1","result":{},"isError":false}',
    result("c1", "a", durationMs=11, timestamp=1795984732572),
    said("toolUse", BROKEN),
    result("c2", "Invalid arguments", isError=True),
    said("stop", {"type": "text", "text": "Done."}),
    '{"type":"agent_end","messages":[]}',
    SETTLED,
]


def read(*lines: str) -> Reading:
    return adapter(PiAgent).read(Evidence(stdout="\n".join(lines), exit_code=0))


def test_its_messages_tell_all() -> None:
    reading = read(*EVENTS)
    assert [item["type"] for item in reading.items] == [
        *("reasoning", "message", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert reading.items[4]["arguments"] == '{"comm'
    assert (reading.stop, reading.session, reading.model_calls, reading.error) == ("completed", "s1", 3, None)
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.output_tokens, reading.usage.total_tokens) == (3000, 150, 3150)
    timing = reading.timings["c1"]
    assert (timing.completed_at, timing.duration_ms, timing.failed) == (1795984732.572, 11, False)
    assert reading.timings["c2"].failed


OUTCOMES: list[tuple[list[str], str | None, str | None, int]] = [
    ([START, ERROR, SETTLED], None, '500: {"message":"x"}', 0),
    ([START, ERROR, '{"type":"auto_retry_start"}', said("stop"), SETTLED], "completed", None, 1),
    ([START, ERROR, '{"type":"auto_retry_start"}', ERROR, SETTLED], None, '500: {"message":"x"}', 0),
    ([START, said("length"), SETTLED], "max_output_tokens", None, 1),
    ([START, said("toolUse", CALL)], None, None, 1),
    ([START, said("stop")], None, None, 1),
    ([START, said("stop"), '{"type":"agent_settled","aborted":true}'], None, None, 1),
    ([], None, None, 0),
]


@pytest.mark.parametrize(("lines", "stop", "error", "model_calls"), OUTCOMES)
def test_how_it_ended(lines: list[str], stop: str | None, error: str | None, model_calls: int) -> None:
    reading = read(*lines)
    assert (reading.stop, reading.error, reading.model_calls) == (stop, error, model_calls)


@given(cut=st.integers(0, 2500), junk=st.text(max_size=20))
def test_no_evidence_breaks_it(cut: int, junk: str) -> None:
    whole = "\n".join(EVENTS)
    read(whole[:cut])
    read(whole[:cut] + junk + whole[cut:])


@pytest.mark.parametrize("wrong", [None, 1, "x", [], {}, [1], {"role": "assistant", "content": 5, "usage": "x"}])
def test_no_shape_breaks_it(wrong: Any) -> None:
    read(*(json.dumps({**json.loads(line), "message": wrong, "id": wrong}) for line in EVENTS))


def test_its_files_and_arguments() -> None:
    tools = (ToolServer("grant-a", "http://host:1/mcp", {"authorization": "Bearer $X", "y": "!run"}),)
    made = adapter(PiAgent, enable_tools=False, thinking="low", extra_args=["--x"]).invocation(
        turn(tools=tools, system_prompt="mine {env:HOME}", model_key="$key", max_output_tokens=7)
    )
    provider = json.loads(made.files["agent/models.json"])["providers"]["gym"]
    assert (provider["apiKey"], provider["baseUrl"]) == ("$$key", "http://host:1/policy_model/v1")
    assert (provider["models"][0]["maxTokens"], provider["models"][0]["reasoning"]) == (7, True)
    server = json.loads(made.files["agent/mcp.json"])["mcpServers"]["grant_a"]
    assert server["headers"] == {"authorization": "Bearer $$X", "y": "$!run"}
    assert (server["exposure"], server["timeout"]) == ("direct", 10)
    assert made.files["agent/system.md"] == "mine {env:HOME}"
    assert made.argv[-3:] == ["--append-system-prompt", "/.gym-1/agent/system.md", "--x"]
    assert "--no-builtin-tools" in made.argv
    assert made.stdin == b"do it"


def test_the_system_prompt_takes_the_place_of_its_own() -> None:
    made = adapter(PiAgent, system_prompt_mode="replace").invocation(turn(system_prompt="mine"))
    assert made.argv[-2:] == ["--system-prompt", "/.gym-1/agent/system.md"]
    assert "--no-builtin-tools" not in made.argv


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        ("a: connected, 1 tool (direct)\nb: needs sign-in\n", None),
        ("a: needs sign-in (direct)\n", "a: needs sign-in (direct)"),
        ("", "a: no word of it"),
    ],
)
def test_which_tools_are_not_ready(stdout: str, why: str | None) -> None:
    tools = (ToolServer("a", "u"), ToolServer("b", "u", required=False))
    assert adapter(PiAgent).unready(turn(tools=tools), Evidence(stdout=stdout)) == why
