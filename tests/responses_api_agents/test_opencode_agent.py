"""OpenCode: its command line and files, what is read from its events, and which settings are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gym.harness.adapter import Evidence, Reading, ToolServer
from gym.servers.contract import INVOCATION_HEADER
from responses_api_agents.opencode_agent.app import OpenCodeAgent
from tests.harness.turns import adapter, turn

USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 7},
}


def answer(*calls: tuple[str, str, str], session: str = "s1") -> str:
    made = [{"id": call_id, "name": name, "arguments": text} for call_id, name, text in calls]
    return json.dumps({"type": "gym.answer", "session": session, "id": "r", "usage": USAGE, "calls": made})


def event(kind: str, **part: Any) -> str:
    return json.dumps({"type": kind, "timestamp": 1, "sessionID": "s1", "part": part})


def tool(call_id: str, name: str, status: str = "completed", **state: Any) -> str:
    times = {"start": 1795992337730, "end": 1795992338142}
    return event("tool_use", tool=name, callID=call_id, state={"status": status, "time": times, **state})


def error(message: str, **data: Any) -> str:
    said = {"name": "APIError", "data": {"message": message, **data}}
    return json.dumps({"type": "error", "sessionID": "s1", "error": said})


def failure(text: str, kind: str = "failure") -> str:
    return json.dumps({"type": f"gym.{kind}", "text": text})


IDLE = '{"type":"gym.idle","session":"s1"}'
DONE = event("step_finish", reason="stop")
EVENTS = [
    event("step_start"),
    event("reasoning", text="hm"),
    event("text", text="Looking."),
    answer(("c1", "bash", '{"command": "ls"}'), ("c2", "bash", '{"comm')),
    tool("c1", "bash", input={"command": "ls"}, output="a"),
    tool("c2", "invalid", input={"tool": "bash", "error": "x"}, output="Invalid input"),
    event("step_finish", reason="tool-calls"),
    answer(),
    event("text", text="Done."),
    IDLE,
    DONE,
]


def read(*lines: str) -> Reading:
    return adapter(OpenCodeAgent).read(Evidence(stdout="\n".join(lines), exit_code=0))


def test_its_events_and_the_plugins_lines_tell_all() -> None:
    reading = read(*EVENTS)
    assert [item["type"] for item in reading.items] == [
        *("reasoning", "message", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert (reading.items[4]["name"], reading.items[4]["arguments"]) == ("bash", '{"comm')
    assert (reading.stop, reading.session, reading.model_calls, reading.error) == ("completed", "s1", 2, None)
    assert reading.responses == ["r", "r"]
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.output_tokens, reading.usage.total_tokens) == (2000, 100, 2100)
    assert reading.usage.input_tokens_details == {"cached_tokens": 800}
    timing = reading.timings["c1"]
    assert (timing.completed_at, timing.duration_ms, timing.failed) == (1795992338.142, 412, False)
    assert reading.timings["c2"].failed
    assert reading.gaps == []


def test_a_call_without_a_result_is_told_of() -> None:
    reading = read(EVENTS[0], answer(("c1", "bash", '{"command": "sleep 300"}')))
    assert [(item["type"], item["call_id"]) for item in reading.items] == [("function_call", "c1")]


def test_a_call_id_may_come_again() -> None:
    twice = [part for text in "ab" for part in (answer(("c", "f", f'"{text}"')), tool("c", "f", output=text))]
    calls = [item["arguments"] for item in read(*twice).items if item["type"] == "function_call"]
    assert calls == ['"a"', '"b"']


def test_the_model_calls_of_subagents_are_counted() -> None:
    reading = read(
        EVENTS[0], answer(("c1", "task", "{}")), answer(("c1", "bash", "{}"), session="s2"), tool("c1", "task"), IDLE
    )
    assert reading.model_calls == 2
    assert [item["type"] for item in reading.items] == ["function_call", "function_call_output"]
    assert reading.gaps == ["1 model calls of subagents are counted; their steps are not listed"]


OUTCOMES: list[tuple[list[str], str | None, str | None]] = [
    ([event("step_finish", reason="length"), IDLE], "max_output_tokens", None),
    ([event("step_finish", reason="content-filter"), IDLE], "content_filter", None),
    ([event("step_finish", reason="tool-calls"), IDLE], None, None),
    ([event("step_finish", reason="unknown"), IDLE], None, None),
    ([DONE], None, None),
    ([DONE, '{"type":"gym.idle","session":"s2"}'], None, None),
    ([error("no", statusCode=401, responseBody="{}"), IDLE], None, "HTTP 401: no {}"),
    ([failure("HTTP 500: x"), error("gym gave up"), IDLE], None, "HTTP 500: x"),
    ([failure("HTTP 500: x"), answer(), DONE, IDLE], "completed", None),
    ([error("too long"), DONE, IDLE], "completed", None),
    ([failure("a: failed", "unready"), error("gym gave up"), IDLE], None, "a: failed"),
    ([], None, None),
]


@pytest.mark.parametrize(("lines", "stop", "words"), OUTCOMES)
def test_how_it_ended(lines: list[str], stop: str | None, words: str | None) -> None:
    reading = read(*lines)
    assert (reading.stop, reading.error) == (stop, words)


def test_tools_that_cannot_be_reached_are_no_failure_of_the_model() -> None:
    assert read(failure("a: failed", "unready"), error("gym gave up")).error_kind == "tool_server_error"


@given(cut=st.integers(0, 2500), junk=st.text(max_size=20))
def test_no_evidence_breaks_it(cut: int, junk: str) -> None:
    whole = "\n".join(EVENTS)
    read(whole[:cut])
    read(whole[:cut] + junk + whole[cut:])


@pytest.mark.parametrize("wrong", [None, 1, "x", [], {}, [1], {"state": 5, "tokens": "x", "text": [1]}])
def test_no_shape_breaks_it(wrong: Any) -> None:
    changed = {name: wrong for name in ("part", "error", "usage", "calls", "session", "sessionID", "id", "text")}
    read(*(json.dumps({**json.loads(line), **changed}) for line in [*EVENTS, error("x"), failure("y")]))


def test_its_files_and_arguments() -> None:
    tools = (ToolServer("grant a", "http://host:1/mcp", {"X": "y"}), ToolServer("b", "u", required=False))
    given = {"permission": {"task": "deny", "bash": {"rm *": "deny"}}, "plugin": ["mine"], "snapshot": True}
    made = adapter(OpenCodeAgent, opencode_config=given, reasoning_effort="low", extra_args=["--x"]).invocation(
        turn(tools=tools, system_prompt="mine {env:HOME}", max_output_tokens=7, invocation_id="inv_1")
    )
    config = json.loads(made.files["opencode.json"])
    provider = config["provider"]["gym"]
    assert provider["options"]["headers"] == {INVOCATION_HEADER: "inv_1"}
    assert (provider["options"]["baseURL"], provider["options"]["apiKey"]) == ("http://host:1/policy_model/v1", "key")
    model = provider["models"]["policy"]
    assert (model["limit"]["output"], model["options"]) == (7, {"reasoningEffort": "low"})
    assert list(config["mcp"]) == ["grant_a", "b"]
    assert config["mcp"]["grant_a"]["headers"] == {"X": "y"}
    assert next(iter(config["permission"].items())) == ("*", "allow")
    assert config["permission"]["bash"] == {"*": "allow", "rm *": "deny"}
    assert (config["permission"]["task"], config["snapshot"], config["plugin"][0]) == ("deny", True, "mine")
    assert config["plugin"][1][0] == "file:///.gym-1/watch.js"
    assert config["plugin"][1][1]["required"] == ["grant_a"]
    assert config["instructions"] == ["/work/AGENTS.md", "/.gym-1/system.md"]
    assert made.files["system.md"] == "mine {env:HOME}"
    assert made.argv[-3:] == ["task", "--auto", "--x"]
    assert made.stdin == b"do it"


def test_the_system_prompt_takes_the_place_of_its_own() -> None:
    made = adapter(OpenCodeAgent, system_prompt_mode="replace", context_files=False).invocation(
        turn(system_prompt="mine")
    )
    assert made.files["config/opencode/agent/build.md"] == "---\nmode: primary\n---\nmine"
    config = json.loads(made.files["opencode.json"])
    assert (config["default_agent"], config["instructions"]) == ("build", [])


def test_it_goes_on_in_its_session() -> None:
    made = adapter(OpenCodeAgent).invocation(turn(system_prompt="other", number=2, session="ses_1"))
    assert made.argv[-2:] == ["--session", "ses_1"]
    assert set(made.files) == {"opencode.json", "watch.js"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"opencode_config": {"tools": {"bash": False}}}, "use `permission`"),
    ({"opencode_config": {"agent": {"build": {"tools": {"bash": False}}}}}, "use `permission`"),
    ({"opencode_config": {"permission": {"bash": {"*": "ask"}}}}, "instead of `ask`"),
    ({"opencode_config": {"permission": "ask"}}, "instead of `ask`"),
    ({"opencode_config": {"agent": {"plan": {"permission": {"edit": "ask"}}}}}, "instead of `ask`"),
    ({"opencode_config": {"mcp": {}}}, "use `mcp_servers`"),
    ({"extra_args": ["--agent=plan"], "system_prompt_mode": "replace"}, "selects the build agent"),
    ({"extra_args": ["--pure"]}, "`--pure` is not for you to set"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
def test_what_cannot_work_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        adapter(OpenCodeAgent, **settings)


def test_another_agent_of_it_may_be_chosen() -> None:
    made = adapter(OpenCodeAgent, extra_args=["--agent", "plan"]).invocation(turn())
    assert made.argv[-2:] == ["--agent", "plan"]
