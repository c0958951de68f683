"""Rollouts joined with the calls that their model server captured, in whichever API the harness asked it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym.apis.clients.api import ClientApi
from gym.apis.clients.chat import ChatClient
from gym.apis.clients.messages import MessagesClient
from gym.apis.clients.responses import ResponsesClient
from gym.apis.events import unfold
from gym.apis.responses import Item, ResponsesResponse, function_call, function_call_output, message, reasoning
from gym.capture.store import FOLDER, Store
from gym.report.exports import export
from tests.report.test_atif import check

BEGUN = 1795994102.5
TASK = {"taskset": "t", "task_id": "one", "attempt": 0, "try": 0, "rollout_id": "t.one.0", "started_at": BEGUN}
APIS = [ChatClient(), MessagesClient(), ResponsesClient()]


def record(folder: Path, api: ClientApi, answers: list[list[Item]], *, stream: bool = False, **more: Any) -> None:
    """Records answers as a client of an API got them, `r0`, `r1`, ..., a second apart."""
    store = Store(folder / FOLDER, more.get("instance", "policy"))
    for number, items in enumerate(answers):
        response = ResponsesResponse(id=f"r{number}", output=items)
        body: dict[str, Any] = {"stream": stream}
        encoder = api.encoder(body)
        raw = b"".join(map(encoder.event, unfold(response, 3)))
        answer = raw.decode() if stream else json.dumps(api.answer(response, body))
        call: dict[str, Any] = {
            "instance": "policy",
            "api": api.name,
            "path": api.path,
            "stream": stream,
            "model": "m",
            "status": 200,
        }
        call |= {"started_at": BEGUN + 1 + number, "seconds": 0.25, "rollout": "t.one.0", "run": "second"}
        call |= {"activation": 1, "tokens": {"input_tokens": 10 + number, "output_tokens": 2}, "answer": answer}
        store.add(call | more, body)


def observed(conversations: list[list[Item]], told: list[str]) -> dict[str, Any]:
    calls = [{"model_ref": {"type": "responses_api_models", "name": "policy"}, "response_id": name} for name in told]
    records = [
        {"kind": "agent_invocation", "invocation_id": f"inv_{number}", "activation": number, "conversation": items,
         "harness_session_id": "h", "status": "completed", "model_calls": calls if number == 1 else []}
        for number, items in enumerate(conversations, 1)
    ]  # fmt: skip
    return {"source": "pi 1", "records": records, "gaps": []}


def exported(run: Path, *rows: dict[str, Any], failed: bool = False) -> list[dict[str, Any]]:
    texts = {"rollouts.jsonl": [], "failures.jsonl": [], ("failures.jsonl" if failed else "rollouts.jsonl"): list(rows)}
    for name, lines in texts.items():
        (run / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
    lines = export(run, run / "out")
    documents = [json.loads((run / "out" / line["trajectory_path"]).read_text()) for line in lines]
    for document in documents:
        check(document)
    return documents


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_each_answer_is_a_step(api: ClientApi, stream: bool, tmp_path: Path) -> None:
    """Also one that repeats the last, and none that is not this try's, or not the policy's."""
    call, result = function_call("bash", {"command": "ls"}, "c1"), function_call_output("c1", "a.txt")
    asked = [[reasoning("hm"), message("assistant", "Looking."), call]] + [[message("assistant", "Done.")]] * 3
    record(tmp_path, api, asked[1:], run="first", started_at=BEGUN - 50)
    record(tmp_path, api, asked, stream=stream)
    record(tmp_path, api, [[message("assistant", "Done.")]], instance="judge", activation=None)
    error = {"kind": "provider_error", "message": "x"}
    record(tmp_path, api, [[]], status=502, error=error, answer="", started_at=BEGUN + 9)
    forged = message("assistant", "FORGED")
    turns = [[*asked[0], forged, result, *asked[1], *asked[2]], asked[3]]
    row = {**TASK, "reward": 1.0, "response": {"output": [item for turn in turns for item in turn]}}
    row |= {"ng_agent_observations": observed(turns, ["r0", "forged", "r1", "r2"]), "usage_differences": {"x": 1}}
    (document,) = exported(tmp_path, row)
    told = [(step["message"], step.get("metrics", {}).get("prompt_tokens")) for step in document["steps"]]
    assert told == [("Looking.", 10), ("FORGED", None), ("Done.", 11), ("Done.", 12), ("Done.", 13)]
    first, *_, last = document["steps"]
    assert (first["reasoning_content"], first["observation"]["results"][0]["content"]) == ("hm", "a.txt")
    assert (first["timestamp"], first["model_name"], first["llm_call_count"]) == (
        "2026-11-29T23:15:03.500000+00:00", "m", 1
    )  # fmt: skip
    assert first["extra"] == {"activation": 1, "invocation_id": "inv_1", "response_id": "r0", "seconds": 0.25}
    assert last["extra"]["invocation_id"] == "inv_2"
    extra = document["extra"]
    assert extra["model_call_differences"] == {"harness_only": ["forged"], "captured_only": ["r3"]}
    assert extra["usage_differences"] == {"x": 1}
    assert [call["kind"] for call in extra["failed_model_calls"]] == ["provider_error"]
    assert [one["harness_session_id"] for one in extra["invocations"]] == ["h", "h"]


def test_a_failed_attempt_has_its_last_try(tmp_path: Path) -> None:
    """With what its records tell; where there are none, with what its model answered."""
    told = TASK | {"kind": "agent_error", "message": "no end", "stage": "agent"}
    record(tmp_path, ChatClient(), [[message("assistant", "first")]])
    record(tmp_path, ChatClient(), [[message("assistant", "second")]], rollout="t.one.0-a1")
    silent = TASK | {"kind": "sandbox_lost", "task_id": "two", "rollout_id": "t.two.0"}
    record(tmp_path, ChatClient(), [[message("assistant", "captured")]], rollout="t.two.0")
    second = {**told, "try": 1, "ng_agent_observations": observed([[message("assistant", "second")]], ["r0"])}
    documents = exported(tmp_path, told, second, silent, failed=True)
    assert [document["steps"][-1]["message"] for document in documents] == ["second", "captured"]
    assert all("metrics" in document["steps"][-1] for document in documents)
    assert [document["extra"]["failure"]["kind"] for document in documents] == ["agent_error", "sandbox_lost"]
    assert "the steps are the captured answers" in documents[1]["notes"]
    manifest = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    assert [(line["reward"], line["failure"]) for line in manifest] == [(None, "agent_error"), (None, "sandbox_lost")]
