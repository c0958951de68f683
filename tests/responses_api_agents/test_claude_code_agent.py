"""Claude Code: its command line and files, and what is read from its events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.failures import EpisodeFailure
from gym.harness.adapter import Evidence, Reading, ToolServer
from responses_api_agents.claude_code_agent.app import ClaudeCodeAgent
from tests.harness.turns import adapter, turn

BEGUN = {"input_tokens": 600, "cache_read_input_tokens": 400, "output_tokens": 1}
AT = "2026-11-29T22:44:56.{:03d}Z"


def event(kind: str, at: int = 0, **fields: Any) -> str:
    stamped = {"type": kind, "session_id": "s1", "parent_tool_use_id": None, "timestamp": AT.format(at)}
    return json.dumps({**stamped, **fields})


def said(name: str, block: dict[str, Any], at: int = 0, **fields: Any) -> str:
    message = {"id": name, "role": "assistant", "model": "policy", "content": [block], "usage": BEGUN}
    return event("assistant", at, message=message, **fields)


def result_of(call_id: str, content: Any, at: int = 0, **fields: Any) -> str:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}
    return event("user", at, message={"role": "user", "content": [block]})


def delta(written: int) -> str:
    usage = {"input_tokens": 600, "cache_read_input_tokens": 400, "output_tokens": written}
    return event("stream_event", event={"type": "message_delta", "delta": {}, "usage": usage})


def ended(subtype: str = "success", **fields: Any) -> str:
    counts = {"inputTokens": 1200, "cacheReadInputTokens": 800, "cacheCreationInputTokens": 5, "outputTokens": 100}
    usage = {"policy": counts, "helper": {"inputTokens": 10, "outputTokens": 1, "thinkingTokens": 1}}
    known = {"subtype": subtype, "is_error": False, "stop_reason": "end_turn", "modelUsage": usage}
    return event("result", **{**known, **fields})


def broken_off(error: str, text: str, **fields: Any) -> list[str]:
    """What Claude Code says when the model failed: words of its own, and a result that calls itself a success."""
    words = {"id": "x", "model": "<synthetic>", "content": [{"type": "text", "text": text}]}
    return [event("assistant", message=words, error=error), ended(is_error=True, result=text, **fields)]


INIT = event("system", subtype="init", mcp_servers=[{"name": "tools", "status": "connected"}])
CALL = {"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "ls"}}
BROKEN = {"type": "tool_use", "id": "c2", "name": "Bash", "input": {"__unparsedToolInput": {"raw": '{"comm'}}}
EVENTS = [
    INIT,
    said("m1", {"type": "thinking", "thinking": "hm", "signature": "x"}),
    said("m1", {"type": "text", "text": "Looking."}),
    said("m1", CALL, 100),
    result_of("c1", "a", 150, is_error=False),
    delta(50),
    said("m2", BROKEN),
    result_of("c2", [{"type": "text", "text": "InputValidationError"}, {"type": "image"}], is_error=True),
    delta(40),
    event("user", message={"role": "user", "content": [{"type": "text", "text": "Go on."}]}, isSynthetic=True),
    said("sub", {"type": "text", "text": "of a subagent"}, parent_tool_use_id="c1"),
    said("m3", {"type": "text", "text": "Done."}),
    delta(10),
    ended(),
]


def read(*lines: str) -> Reading:
    return adapter(ClaudeCodeAgent).read(Evidence(stdout="\n".join(lines), exit_code=0))


def test_its_events_tell_all() -> None:
    reading = read(*EVENTS)
    assert [item["type"] for item in reading.items] == [
        *("reasoning", "message", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert reading.items[4]["arguments"] == '{"comm'
    assert reading.items[5]["output"] == "InputValidationError\n[image]"
    assert (reading.stop, reading.session, reading.error) == ("completed", "s1", None)
    assert (reading.model_calls, reading.responses) == (3, ["m1", "m2", "m3"])
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.output_tokens, reading.usage.total_tokens) == (2015, 101, 2116)
    assert reading.timings["c1"].duration_ms == pytest.approx(50, abs=0.2)
    assert (reading.timings["c1"].failed, reading.timings["c2"].failed) == (False, True)
    assert reading.gaps == ["what subagents did is left out (1 events); the usage includes it"]


def test_a_run_that_was_cut_short_keeps_what_it_did() -> None:
    reading = read(*EVENTS[:6], EVENTS[6][:40])
    assert len(reading.items) == 4
    assert (reading.stop, reading.error) == (None, None)
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.output_tokens) == (1000, 50)


LOST = "API Error: Connection to the API was lost (StreamTruncated). This is usually temporary"
OUTCOMES: list[tuple[list[str], str | None, str | None, str | None]] = [
    ([ended()], "completed", None, None),
    ([ended(stop_reason="max_tokens")], "max_output_tokens", None, None),
    ([ended(stop_reason="refusal")], "content_filter", None, None),
    ([ended("error_max_turns", is_error=True, terminal_reason="max_turns")], "max_turns", None, None),
    (broken_off("max_output_tokens", "API Error: exceeded"), "max_output_tokens", None, None),
    (broken_off("authentication_failed", "API Error: 401 no"), None, "API Error: 401 no", None),
    (broken_off("server_error", LOST), None, LOST, "malformed_answer"),
    (broken_off("server_error", LOST)[:1], None, LOST, None),
    ([*broken_off("server_error", LOST), said("m4", CALL)], None, None, None),
    ([*broken_off("server_error", LOST), said("m4", CALL), ended()], "completed", None, None),
    ([ended("error_during_execution", is_error=True, errors=["a", "b"])], None, "a; b", None),
    ([ended(), INIT], None, None, None),
    ([], None, None, None),
]


@pytest.mark.parametrize(("lines", "stop", "error", "kind"), OUTCOMES)
def test_how_it_ended(lines: list[str], stop: str | None, error: str | None, kind: str | None) -> None:
    reading = read(*EVENTS[:-1], *lines)
    assert (reading.stop, reading.error, reading.error_kind) == (stop, error, kind)


def test_what_is_told_as_missing() -> None:
    init = event("system", subtype="init", mcp_servers=[{"name": "a", "status": "failed"}])
    reading = read(init, init, ended(permission_denials=[{"tool_name": "Bash"}]))
    assert reading.gaps == [
        "the MCP server a was not connected: failed",
        "tool calls that Claude Code's permission rules denied: 1",
    ]


@given(cut=st.integers(0, 4000), junk=st.text(max_size=20))
def test_no_evidence_breaks_it(cut: int, junk: str) -> None:
    whole = "\n".join(EVENTS)
    read(whole[:cut])
    read(whole[:cut] + junk + whole[cut:])


@pytest.mark.parametrize("wrong", [None, 1, "x", [], {}, [1], {"content": [{"type": "tool_use", "input": 5}]}])
@pytest.mark.parametrize("name", ["message", "event", "timestamp", "modelUsage", "errors", "is_error", "mcp_servers"])
def test_no_shape_breaks_it(name: str, wrong: Any) -> None:
    read(*(json.dumps({**json.loads(line), name: wrong}) for line in EVENTS))


@pytest.mark.parametrize(
    ("asked", "offered", "kind"),
    [
        (["Bash", "Agent"], ["Bash", "Task", "mcp__a__b"], None),
        (["Bashh"], ["Task"], "configuration"),
        (["Bash"], None, None),
        (None, ["Task"], None),
    ],
)
def test_tools_that_it_does_not_know(asked: list[str] | None, offered: Any, kind: str | None) -> None:
    init = event("system", subtype="init", **({} if offered is None else {"tools": offered}))
    forged = event("system", subtype="init", tools=["forged"])
    evidence = Evidence(stdout="\n".join([init, *EVENTS[1:], forged]))
    reading = adapter(ClaudeCodeAgent, tools=asked).read(evidence)
    assert reading.error_kind == kind
    assert kind is None or "`tools`: Claude Code does not offer Bashh; of its own it has: Task" in str(reading.error)


def test_its_files_and_arguments() -> None:
    command = ToolServer("b", "", command=("python3", "-m", "server"))
    tools = (ToolServer("grant-a", "http://host:1/mcp", {"authorization": "Bearer $X"}), command)
    made = adapter(ClaudeCodeAgent, tools=["Bash"], effort="low", max_turns=3, extra_args=["--x"], model_retries=0)
    started = made.invocation(turn(tools=tools, system_prompt="mine {env:HOME}", max_output_tokens=7, prompt="/help"))
    servers = json.loads(started.files["mcp.json"])["mcpServers"]
    assert servers["b"] == {"type": "stdio", "command": "python3", "args": ["-m", "server"]}
    assert servers["grant_a"] == {"type": "http", "url": "http://host:1/mcp", "headers": {"authorization": "Bearer $X"}}
    assert started.files["system.md"] == "mine {env:HOME}"
    assert started.argv[-3:] == ["--append-system-prompt-file", "/.gym-1/system.md", "--x"]
    told = " ".join(started.argv)
    assert "--dangerously-skip-permissions --permission-prompts none" in told
    assert "--tools Bash --disallowed-tools WebFetch,WebSearch,CronCreate" in told
    assert "--effort low --max-turns 3" in told
    assert started.stdin == b" /help"
    assert started.env["ANTHROPIC_BASE_URL"] == "http://host:1/policy_model"
    assert (started.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"], started.env["MCP_TOOL_TIMEOUT"]) == ("7", "10500")
    assert started.env["CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK"] == "1"


def test_other_settings() -> None:
    quiet = {"bare": True, "context_files": False, "auto_compaction": False, "context_window": 9, "tools": []}
    made = adapter(ClaudeCodeAgent, system_prompt_mode="replace", disallowed_tools=[], model_retries=1, **quiet)
    started = made.invocation(turn(system_prompt="mine"))
    told = " ".join(started.argv)
    assert told.endswith("--bare --setting-sources user --tools  --system-prompt-file /.gym-1/system.md")
    assert (started.env["DISABLE_COMPACT"], started.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"]) == ("1", "9")
    assert "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK" not in started.env


@pytest.mark.parametrize("server", [ToolServer("a", "http://h/${X}"), ToolServer("a", "u", {"k": "x${Y:-1}"})])
def test_what_it_would_replace_is_refused(server: ToolServer) -> None:
    with pytest.raises(EpisodeFailure, match="would replace what stands as"):
        adapter(ClaudeCodeAgent).invocation(turn(tools=(server,)))


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        ("Checking\n\na_a: http://h (HTTP) - ✔ Connected\nb: http://h (HTTP) - ✘ Failed to connect\n", None),
        ("a_a: http://h (HTTP) - ✘ Failed to connect\n", "a_a: http://h (HTTP) - ✘ Failed to connect"),
        ("", "a_a: no word of it"),
    ],
)
def test_which_tools_are_not_ready(stdout: str, why: str | None) -> None:
    tools = (ToolServer("a-a", "u"), ToolServer("b", "u", required=False))
    assert adapter(ClaudeCodeAgent).unready(turn(tools=tools), Evidence(stdout=stdout)) == why
