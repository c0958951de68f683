"""Codex: its configuration, and what is read from its session file and its events."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.harness.adapter import Evidence, ToolServer
from responses_api_agents.codex_agent.app import CodexAgent, toml
from responses_api_agents.codex_agent.session import read
from tests.harness.turns import adapter, turn

USAGE = {"input_tokens": 2000, "cached_input_tokens": 800, "output_tokens": 100, "reasoning_output_tokens": 14}
AT = "2026-11-29T20:38:45.{:03d}Z"


def line(at: int, kind: str, payload: dict[str, Any]) -> str:
    return json.dumps({"timestamp": AT.format(at), "type": kind, "payload": payload})


def own(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "internal_chat_message_metadata_passthrough": {"turn_id": "t"}}


SESSION = [
    line(1, "session_meta", {"id": "thread-1", "cli_version": "0.171.0"}),
    line(
        2, "response_item", {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]}
    ),
    line(3, "response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do it"}]}),
    line(4, "response_item", own({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None})),
    line(
        5, "response_item", own({"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "c1"})
    ),
    line(6, "token_usage_record", {"response_id": "resp_1", "usage": {}}),
    line(9, "response_item", own({"type": "function_call_output", "call_id": "c1", "output": "Output:\n42\n"})),
    line(
        10,
        "response_item",
        {"type": "function_call", "name": "look", "namespace": "mcp__tools", "arguments": "{}", "call_id": "c2"},
    ),
    line(
        11,
        "response_item",
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "value"}]},
    ),
    line(12, "event_msg", {"type": "token_count", "info": {"total_token_usage": USAGE}}),
    line(13, "response_item", {"type": "message", "id": "m", "role": "assistant", "content": [{"text": "Done."}]}),
    line(14, "token_usage_record", {"response_id": "resp_2", "usage": {}}),
    line(15, "event_msg", {"type": "task_complete", "last_agent_message": "Done."}),
]
EVENTS = [
    '{"type":"thread.started","thread_id":"thread-1"}',
    '{"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata not found."}}',
    '{"type":"turn.started"}',
    '{"type":"item.completed","item":{"id":"item_1","type":"reasoning","text":"hm"}}',
    '{"type":"item.started","item":{"id":"item_2","type":"command_execution","command":"ls","exit_code":null}}',
    '{"type":"item.completed","item":{"id":"item_2","type":"command_execution","command":"ls","aggregated_output":"a"}}',
    '{"type":"item.completed","item":{"id":"item_3","type":"mcp_tool_call","server":"tools","tool":"look",'
    '"arguments":{"key":"k"},"result":{"content":[{"type":"text","text":"value"}]},"error":null}}',
    '{"type":"item.completed","item":{"id":"item_4","type":"agent_message","text":"Done."}}',
    json.dumps({"type": "turn.completed", "usage": USAGE}),
]
FAILED = '{"type":"turn.failed","error":{"message":"unexpected status 401 Unauthorized"}}'


def evidence(session: list[str] | None = None, events: list[str] = EVENTS, stderr: str = "") -> Evidence:
    files = {} if session is None else {"2026/11/29/rollout-x.jsonl": "\n".join(session).encode()}
    return Evidence(stdout="\n".join(events), stderr=stderr, files=files, exit_code=0)


def test_the_session_file_tells_all() -> None:
    reading = read(evidence(SESSION))
    assert [item["type"] for item in reading.items] == [
        *("reasoning", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert all("internal_chat_message_metadata_passthrough" not in item for item in reading.items)
    assert (reading.items[3]["name"], reading.items[4]["output"]) == ("mcp__tools__look", "value")
    assert (reading.stop, reading.session, reading.model_calls) == ("completed", "thread-1", 2)
    assert reading.responses == ["resp_1", "resp_2"]
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.total_tokens) == (2000, 2100)
    assert reading.timings["c1"].duration_ms == pytest.approx(4, abs=0.2)
    assert reading.gaps == []


def test_without_it_the_events_do() -> None:
    reading = read(evidence())
    assert [item["type"] for item in reading.items] == [
        *("reasoning", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert (reading.stop, reading.session) == ("completed", "thread-1")
    assert reading.usage is not None
    assert reading.usage.output_tokens_details == {"reasoning_tokens": 14}
    assert reading.gaps == ["no session file: call ids are not the model's own"]


def test_a_run_that_was_cut_short_keeps_what_it_did() -> None:
    reading = read(evidence([*SESSION[:9], '{"timestamp": "2026'], EVENTS[:3]))
    assert len(reading.items) == 5
    assert (reading.stop, reading.error) == (None, None)


def test_failures() -> None:
    failed = read(evidence(SESSION[:-1], [*EVENTS[:-1], FAILED]))
    assert (failed.stop, failed.error) == (None, "unexpected status 401 Unauthorized")
    no_tools = read(evidence(None, [], "x\nError: required MCP servers failed to initialize: tools: 401"))
    assert (no_tools.error_kind, no_tools.stop) == ("tool_server_error", None)
    assert no_tools.error is not None


@given(cut=st.integers(0, 4000), junk=st.binary(max_size=20))
def test_no_evidence_breaks_it(cut: int, junk: bytes) -> None:
    session = "\n".join(SESSION).encode()
    read(Evidence(stdout="\n".join(EVENTS)[:cut], files={"a/rollout-1.jsonl": session[:cut] + junk + session[cut:]}))


@pytest.mark.parametrize("wrong", [None, 1, "x", [], {}, [1], {"info": 3}, {"content": 5}])
def test_no_shape_breaks_it(wrong: Any) -> None:
    lines = [json.dumps({**json.loads(text), "payload": wrong}) for text in SESSION]
    lines += [json.dumps({**json.loads(text), "timestamp": wrong}) for text in SESSION]
    events = [json.dumps({**json.loads(text), "item": wrong, "usage": wrong, "error": wrong}) for text in EVENTS]
    read(evidence(lines, events))
    read(evidence(None, events))


def test_its_configuration() -> None:
    hostile = 'a "quoted" \\ {env:X}\n\ttext \x7f \U0001f600'
    tools = (ToolServer("a.b", "http://host:1/mcp", {"authorization": "Bearer x"}),)
    made = adapter(CodexAgent, extra_config={"features": {"x": True}, "list": [1, "a"], "none": None}).invocation(
        turn(tools=tools, system_prompt=hostile)
    )
    config = tomllib.loads(made.files["codex/config.toml"])
    assert config["developer_instructions"] == hostile
    assert config["model_providers"]["gym"]["base_url"] == "http://host:1/policy_model/v1"
    assert config["mcp_servers"]["a_b"]["required"] is True
    assert config["mcp_servers"]["a_b"]["http_headers"] == {"authorization": "Bearer x"}
    assert (config["features"]["x"], config["list"], "none" in config) == (True, [1, "a"], False)
    assert config["features"]["unbounded_connection_retries"] is False
    assert "key" not in made.files["codex/config.toml"].replace("env_key", "")
    assert made.env == {"CODEX_HOME": "/.gym-1/codex", "GYM_API_KEY": "key"}
    assert (made.argv[-1], made.stdin) == ("-", b"do it")


def test_the_system_prompt_takes_the_place_of_its_own() -> None:
    made = adapter(CodexAgent, system_prompt_mode="replace", context_files=False).invocation(turn(system_prompt="mine"))
    config = tomllib.loads(made.files["codex/config.toml"])
    assert config["model_instructions_file"] == "/.gym-1/codex/instructions.md"
    assert made.files["codex/instructions.md"] == "mine"
    assert ("developer_instructions" in config, config["project_doc_max_bytes"]) == (False, 0)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        ),
        max_size=5,
    )
)
def test_toml(settings: dict[str, Any]) -> None:
    assert tomllib.loads(toml(settings)) == settings
