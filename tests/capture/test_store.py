"""The record of model calls: what is written is read again, each message once, whatever happens to the file's end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym.capture.reader import CallFile, calls, of_rollout
from gym.capture.store import FOLDER, Store
from gym.errors import UserError

TEXTS = st.text(st.characters(codec=None, categories=None), max_size=12)  # halves of surrogate pairs included
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.sampled_from([{"role": "user", "content": str(number)} for number in range(5)]) | VALUES
REQUESTS = st.fixed_dictionaries(
    {"input": st.lists(MESSAGES, max_size=6)},
    optional={"model": TEXTS, "instructions": st.just("a long system prompt, " * 20), "tools": st.lists(VALUES)},
)


def fields(**more: Any) -> dict[str, Any]:
    given = {"instance": "m", "api": "responses", "path": "/v1/responses", "status": 200, "started_at": 1.0}
    return {**given, "seconds": 0.5, "answer": "{}", **more}


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in (run / FOLDER).iterdir() for line in path.read_text().splitlines()]


@given(requests=st.lists(REQUESTS, min_size=1, max_size=8), answer=TEXTS.filter(lambda text: text.isascii()))
@settings(deadline=None)
def test_what_is_written_is_read(requests: list[dict[str, Any]], answer: str, tmp_path_factory) -> None:
    run = tmp_path_factory.mktemp("run")
    store = Store(run / FOLDER, "m")
    for number, request in enumerate(requests):
        store.add(fields(answer=answer, rollout=f"r{number}"), request)
    read = list(calls(run))
    assert [call.request for call in read] == requests
    assert [repr(call.request["input"]) for call in read] == [repr(request["input"]) for request in requests]
    assert all(call.answer == answer.encode() for call in read)
    assert len(requests) < 2 or [call.request for call in of_rollout(run, "r1")] == [requests[1]]


def conversation(turns: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"turn {number}, " + "words " * 50} for number in range(turns)]


def test_a_conversation_is_stored_once_however_often_it_is_sent(tmp_path: Path) -> None:
    history, tools = conversation(100), [{"type": "function", "name": "shell"}]
    store = Store(tmp_path / FOLDER, "m")
    for turn in range(1, 101):
        store.add(fields(), {"input": history[:turn], "tools": tools})
    kinds = [line["kind"] for line in lines(tmp_path)]
    assert kinds.count("message") == 101
    assert kinds.count("call") == 100
    assert sum(len(line["messages"]) for line in lines(tmp_path) if line["kind"] == "history") == 101
    assert [len(call.request["input"]) for call in calls(tmp_path)] == list(range(1, 101))


def test_histories_that_part_share_what_they_have_in_common(tmp_path: Path) -> None:
    """As where a harness marks its last message for the cache, takes the mark off again, or shortens its history."""
    plain = conversation(6)
    marked = [[*plain[:at], {**plain[at], "cache_control": {"type": "ephemeral"}}] for at in range(6)]
    asked = [*marked, plain[2:], plain[:3], plain, plain[:3]]
    store = Store(tmp_path / FOLDER, "m")
    for history in asked:
        store.add(fields(), {"messages": history})
    assert [call.request["messages"] for call in calls(tmp_path)] == asked
    assert sum(line["kind"] == "message" for line in lines(tmp_path)) == 12
    listed = sum(len(line["messages"]) for line in lines(tmp_path) if line["kind"] == "history")
    assert listed < 20  # not the 36 that all these lists have


def test_a_torn_last_line_is_no_call(tmp_path: Path) -> None:
    store = Store(tmp_path / FOLDER, "m")
    for turn in (1, 2):
        store.add(fields(), {"input": conversation(turn)})
    (file,) = (tmp_path / FOLDER).iterdir()
    whole = file.read_bytes()
    for cut in range(whole.rindex(b"\n", 0, -1) + 1, len(whole) - 1, 7):
        file.write_bytes(whole[:cut])
        assert len(list(calls(tmp_path))) == 1
    file.write_bytes(whole[:40] + whole[60:])
    with pytest.raises(UserError, match=r"m\.jsonl:1  malformed record of a model call"):
        CallFile(file)


def test_a_call_whose_message_is_missing_is_one_clear_error(tmp_path: Path) -> None:
    store = Store(tmp_path / FOLDER, "m")
    for turn in (1, 2):
        store.add(fields(), {"input": conversation(turn)})
    (file,) = (tmp_path / FOLDER).iterdir()
    written = file.read_bytes().splitlines(keepends=True)
    for at, line in enumerate(map(json.loads, written)):
        if line["kind"] == "call":
            continue
        file.write_bytes(b"".join(written[:at] + written[at + 1 :]))
        missing = (
            rf"m\.jsonl:\d  cannot read a model call: the {line['kind']} {line['id']} is missing; restore the file"
        )
        with pytest.raises(UserError, match=missing):
            list(calls(tmp_path))


@pytest.mark.parametrize("read", [calls, lambda run: of_rollout(run, "r")])
def test_a_folder_without_a_record_is_an_error(read: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recorded model calls in"):
        list(read(tmp_path))


def test_each_writer_has_a_file_of_its_own(tmp_path: Path) -> None:
    for number in range(3):
        Store(tmp_path / FOLDER, "m").add(fields(rollout=str(number)), {"input": "hi"})
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["m.2.jsonl", "m.3.jsonl", "m.jsonl"]
    assert [call.rollout for call in calls(tmp_path)] == ["0", "1", "2"]


def test_secrets_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    store = Store(tmp_path / FOLDER, "m", lambda text: text.replace("hush-hush", "***"))
    said = [{"role": "user", "content": "the key is hush-hush"}]
    store.add(fields(answer='{"text": "hush-hush"}'), {"input": said, "user": "hush-hush"})
    store.add(fields(), {"input": [*said, {"role": "user", "content": "more"}]})
    assert not any(b"hush" in path.read_bytes() for path in (tmp_path / FOLDER).iterdir())
    first, second = calls(tmp_path)
    assert first.request == {"input": [{"role": "user", "content": "the key is ***"}], "user": "***"}
    assert second.request["input"][0] == first.request["input"][0]


def test_a_file_that_cannot_be_written_hinders_no_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    store = Store(tmp_path / FOLDER, "m")
    store.add(fields(), {"input": "hi"})
    store.add(fields(), {"input": "hi"})
    assert len(caplog.records) == 1
    assert "calls cannot be recorded" in caplog.text
