"""Rollouts as ATIF documents: what becomes of each item, and that no row makes a document that breaks the format."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.apis.responses import function_call, function_call_output, message, reasoning
from gym.errors import UserError
from gym.report.atif import NO_PROMPT, NOT_JOINED, trajectory
from gym.report.exports import export

ROW = {
    "rollout_id": "t.one.0",
    "taskset": "t",
    "task_id": "one",
    "attempt": 0,
    "reward": 1.0,
    "status": "ok",
    "started_at": 1795994102.5,
    "usage": {"input_tokens": 30, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 9}, "model_calls": 2},
    "response": {
        "model": "policy",
        "output": [
            reasoning("hm"),
            message("assistant", "Looking."),
            function_call("bash", {"command": "ls"}, "c1"),
            function_call("bash", '{"comm', "c2"),
            function_call_output("c1", "a.txt"),
            function_call_output("c2", "broken"),
            {"type": "web_search_call", "id": "w"},
            message("assistant", "Done."),
        ],
    },
    "ng_agent_observations": {
        "source": "pi 1.6.0",
        "records": [{"kind": "tool_call", "tool_call_id": "c1", "status": "completed", "duration_ms": 7}],
        "gaps": ["one"],
    },
}
REQUEST = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "second"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "third"}, {"type": "input_image"}]},
    ],
    "tools": [{"type": "function", "name": "bash"}],
}


def check(document: dict[str, Any]) -> None:
    """What the format asks for, as far as our documents use it."""
    top = {"schema_version", "session_id", "trajectory_id", "agent", "steps", "final_metrics", "extra", "notes"}
    assert document.keys() <= top
    assert isinstance(document["agent"]["name"], str)
    assert isinstance(document["agent"]["version"], str)
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    assert document["steps"]
    known = {"step_id", "source", "message", "timestamp", "is_copied_context"}
    of_agent = {"tool_calls", "observation", "reasoning_content", "extra", "metrics", "model_name", "llm_call_count"}
    metrics = {"prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "extra"}
    for step in document["steps"]:
        assert step.keys() <= known | (of_agent if step["source"] == "agent" else set())
        assert step["source"] in ("system", "user", "agent")
        assert isinstance(step["message"], str)
        assert datetime.fromisoformat(step.get("timestamp", "2026-01-01T00:00:00+00:00"))
        assert step.get("metrics", {}).keys() <= metrics
        ids = set()
        for call in step.get("tool_calls", []):
            assert call.keys() <= {"tool_call_id", "function_name", "arguments", "extra"}
            assert isinstance(call["arguments"], dict)
            assert isinstance(call["tool_call_id"], str)
            assert isinstance(call["function_name"], str)
            ids.add(call["tool_call_id"])
        for result in step.get("observation", {"results": []})["results"]:
            assert result.keys() <= {"source_call_id", "content"}
            assert isinstance(result["content"], str)
            assert result.get("source_call_id", next(iter(ids), None)) in {*ids, None}
    for name, value in document["final_metrics"].items():
        assert isinstance(value, dict if name == "extra" else int | float)


def test_a_rollout() -> None:
    document = trajectory(ROW, REQUEST)
    check(document)
    assert document["agent"] == {
        "name": "pi", "version": "1.6.0", "model_name": "policy", "tool_definitions": REQUEST["tools"]
    }  # fmt: skip
    told = [(step["source"], step["message"]) for step in document["steps"]]
    assert told == [
        ("system", "Be brief."),
        ("user", "first"),
        ("agent", "second"),
        ("user", "third\n[input_image]"),
        ("agent", "Looking."),
        ("agent", "Done."),
    ]
    assert document["steps"][2]["is_copied_context"] is True
    assert document["steps"][3]["timestamp"] == "2026-11-29T23:15:02.500000+00:00"
    worked = document["steps"][4]
    assert worked["reasoning_content"] == "hm"
    assert [call["arguments"] for call in worked["tool_calls"]] == [{"command": "ls"}, {}]
    assert worked["tool_calls"][0]["extra"] == {"status": "completed", "duration_ms": 7}
    assert worked["tool_calls"][1]["extra"] == {"raw_arguments": '{"comm'}
    results = [(result["source_call_id"], result["content"]) for result in worked["observation"]["results"]]
    assert results == [("c1", "a.txt"), ("c2", "broken")]
    assert document["steps"][5]["extra"]["items"] == [{"type": "web_search_call", "id": "w"}]
    assert document["final_metrics"] == {
        "total_prompt_tokens": 30, "total_completion_tokens": 5, "total_cached_tokens": 9, "total_steps": 6,
        "extra": {"model_calls": 2},
    }  # fmt: skip
    assert document["extra"]["reward"] == 1.0
    assert document["extra"]["gaps"] == ["one"]


def test_a_late_result_goes_to_its_call_and_one_without_a_call_stays() -> None:
    output = [
        function_call("f", {}, "c1"), function_call("g", {}, "c2"), function_call_output("c2", "2"),
        message("assistant", "Meanwhile."), function_call_output("c1", "1"), function_call_output("c9", "9"),
    ]  # fmt: skip
    document = trajectory({**ROW, "response": {"output": output}})
    check(document)
    first, second = document["steps"]
    assert [result["source_call_id"] for result in first["observation"]["results"]] == ["c2", "c1"]
    assert second["observation"]["results"] == [{"content": "9"}]
    assert document["notes"] == f"{NO_PROMPT} {NOT_JOINED}"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KINDS = (
    *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    *("local_shell_call", "web_search_call", "mcp_call"),
)
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "developer"]),
        "call_id": st.sampled_from(["a", "b", "c"]) | ANY,
        "name": st.text(max_size=5) | ANY,
        **{name: ANY for name in ("content", "summary", "arguments", "input", "output", "action")},
    },
)
RESPONSE = st.fixed_dictionaries({"output": st.lists(ITEM, max_size=8)}, optional={"model": ANY})
ROWS = st.fixed_dictionaries(
    {"rollout_id": st.text(min_size=1, max_size=9), "response": RESPONSE | ANY},
    optional={
        "usage": st.dictionaries(st.sampled_from(["input_tokens", "cost_usd", "model_calls"]), ANY) | ANY,
        "ng_agent_observations": st.fixed_dictionaries({}, optional={"source": ANY, "records": ANY, "gaps": ANY}) | ANY,
        "started_at": ANY,
    },
)
REQUESTS = st.none() | st.fixed_dictionaries(
    {}, optional={"instructions": ANY, "input": st.lists(ITEM, max_size=4) | ANY, "tools": ANY}
)


@given(ROWS, REQUESTS)
def test_every_row_makes_a_document(row: dict[str, Any], request_: dict[str, Any] | None) -> None:
    document = trajectory(row, request_)
    check(document)
    json.dumps(document)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tasks = tmp_path / "run" / "rollouts" / "preprocessed_datasets"
    tasks.mkdir(parents=True)
    task = {"task_id": {"taskset": "t", "task_id": "one"}, "task_input": {"responses_create_params": REQUEST}}
    (tasks / "benchmark.jsonl").write_text(json.dumps(task) + "\n", encoding="utf-8")
    lines = [json.dumps(ROW), json.dumps({**ROW, "rollout_id": "t.two.0", "task_id": "two"}), '{"torn']
    (tmp_path / "run" / "rollouts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "run"


def test_a_run_is_exported(run: Path, tmp_path: Path) -> None:
    lines = export(run, tmp_path / "out", trajectory)
    assert [(line["trajectory_path"], line["reward"]) for line in lines] == [("t.one.0.json", 1.0), ("t.two.0.json", 1)]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"t.one.0.json", "t.two.0.json", "manifest.jsonl"}
    first, second = (json.loads((tmp_path / "out" / line["trajectory_path"]).read_text()) for line in lines)
    assert (first["notes"], second["notes"]) == (NOT_JOINED, f"{NO_PROMPT} {NOT_JOINED}")
    assert json.loads((tmp_path / "out" / "manifest.jsonl").read_text().splitlines()[1]) == lines[1]


def test_what_cannot_be_exported_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no-run has no rollouts.jsonl; name the results directory of a run"):
        export(tmp_path / "no-run", tmp_path / "out", trajectory)
    with pytest.raises(UserError, match=r"run is not empty; choose a new folder"):
        export(run, run, trajectory)
    with (run / "rollouts.jsonl").open("a") as file:
        file.write("\n[]\n")
    with pytest.raises(UserError, match=r"rollouts.jsonl:3  the line is no rollout"):
        export(run, tmp_path / "out", trajectory)
