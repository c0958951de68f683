"""A recorded run played back: the same bytes, the same failures, and nothing that was not recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.capture.store import FOLDER, Store
from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.responses_api_models.replay_model.app import ReplayModel, ReplayModelConfig
from gym.responses_api_models.replay_model.tape import Ignored, Recording, differences
from gym.servers.contract import ROLLOUT_HEADER
from tests.capture.recorded import POLICY, Recorded, recording
from tests.responses_api_models.servers import instance, instance_over
from tests.responses_api_models.upstreams import Call, Said, upstream

APIS = ("chat", "responses", "messages")
SAID = Said(thought="hm", text="Hello there.", calls=(Call("c1", "bash", '{"command": "ls"}'),))


def body_of(api: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    if api == "responses":
        return {"model": "x", "input": said, "max_output_tokens": 9, **more}
    return {"model": "x", "messages": said, "max_tokens": 9, **more}


def replaying(run: Path, **settings: Any) -> Any:
    return instance(ReplayModel, replay_from=str(run), **settings)


async def exchanges(server: Recorded) -> list[tuple[int, bytes, str]]:
    """A few calls in each API, whole and streamed, of several rollouts."""
    got = []
    for api in APIS:
        for stream in (False, True):
            for rollout in ("task.0", "task.1"):
                answer = await server.post(api, body_of(api, stream=stream), key=server.key(rollout))
                got.append((answer.status_code, answer.content, answer.headers["content-type"]))
    return got


@pytest.mark.parametrize("spoken", APIS)
async def test_the_same_requests_get_the_same_bytes(spoken: str, tmp_path: Path) -> None:
    async with upstream() as provider:
        async with recording(instance_over(spoken, provider.base_url), tmp_path / "a") as server:
            provider.says = [SAID, Said(text="And \u2028 more."), Said(refusal="No.")]
            before = await exchanges(server)
    async with recording(replaying(tmp_path / "a"), tmp_path / "b") as server:
        assert await exchanges(server) == before
        assert [call.cost_usd for call in server.calls()] == [0.0] * len(before)
    async with recording(replaying(tmp_path / "b"), tmp_path / "c") as server:
        assert await exchanges(server) == before


async def test_failures_are_played_back_too(tmp_path: Path) -> None:
    async def ask(server: Recorded) -> list[tuple[int, bytes]]:
        bodies = [body_of("messages"), body_of("messages", stream=True), body_of("chat", tools=[{"type": "odd"}])]
        answers = [await server.post("chat" if "tools" in body else "messages", body) for body in bodies]
        return [(answer.status_code, answer.content) for answer in answers]

    async def ask_broken(server: Recorded) -> bytes:
        return (await server.post("responses", body_of("responses", stream=True), key=server.key("task.1"))).content

    async with upstream() as provider, recording(instance_over("chat", provider.base_url), tmp_path / "a") as server:
        provider.refuses = (
            429,
            {"error": {"message": "slow down", "code": "insufficient_quota"}},
            {"retry-after": "7"},
        )
        before = await ask(server)
        provider.refuses, provider.says, provider.cut = None, [SAID], 4
        broken = await ask_broken(server)
    assert b"error" in broken
    async with recording(replaying(tmp_path / "a"), tmp_path / "b") as server:
        assert await ask(server) == before
        assert await ask_broken(server) == broken


async def test_a_server_of_the_process_gets_the_same_response(tmp_path: Path) -> None:
    async def ask(server: Recorded) -> ResponsesResponse:
        request, headers = ResponsesRequest(input="hi", max_output_tokens=9), {ROLLOUT_HEADER: "task.0"}
        client = server.launched.client
        return (await client.post(POLICY, "/v1/responses", request, ResponsesResponse, headers=headers)).body

    async with upstream() as provider, recording(instance_over("chat", provider.base_url), tmp_path / "a") as server:
        provider.says = [SAID]
        before = await ask(server)
    async with recording(replaying(tmp_path / "a"), tmp_path / "b") as server:
        assert await ask(server) == before
        with pytest.raises(EpisodeFailure, match="one more call than the 1 that were recorded") as failure:
            await ask(server)
    assert failure.value.kind == "replay_mismatch"
    assert failure.value.terminal


async def recorded(run: Path, texts: list[str]) -> None:
    async with upstream() as provider, recording(instance_over("chat", provider.base_url), run) as server:
        for text in texts:
            provider.says = [Said(text=f"answer to {text}")]
            await server.post("chat", body_of("chat", text))


async def test_a_request_that_differs_is_told_where(tmp_path: Path) -> None:
    await recorded(tmp_path, ["one", "two"])
    async with recording(replaying(tmp_path), tmp_path / "b") as server:
        assert (await server.post("chat", body_of("chat", "one"))).status_code == 200
        wrong = await server.post("chat", body_of("chat", "zwei"))
        other = await server.post("messages", body_of("messages", "two"))
        nobody = await server.post("chat", body_of("chat", "one"), key=server.key("task.7"))
        many = await server.post("chat", {**body_of("chat", "zwei"), **{f"field_{n}": n for n in range(6)}})
        right = await server.post("chat", body_of("chat", "two"))
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "replay_mismatch")
    where = 'at messages[0].content: recorded "two", now "zwei"'
    assert wrong.json()["error"]["message"] == f"replay of task.0: call 2 differs from the recorded one {where}"
    assert "it was /v1/chat/completions, now /v1/messages" in other.json()["error"]["message"]
    assert nobody.json()["error"]["message"] == f"{tmp_path} has no calls of the rollout task.7"
    assert f"{where}; also at field_" in many.json()["error"]["message"]
    assert many.json()["error"]["message"].endswith(", ...")
    assert right.status_code == 200


async def test_places_that_may_differ_are_named(tmp_path: Path) -> None:
    await recorded(tmp_path, ["one"])
    ignore = ["messages[*].content", "metadata.user_id"]
    async with recording(replaying(tmp_path, ignore=ignore), tmp_path / "b") as server:
        body = body_of("chat", "another text", metadata={"user_id": "me"})
        assert (await server.post("chat", {**body, "seed": 1})).status_code == 400
        assert "recorded nothing, now" in (await server.post("chat", body)).text


@pytest.mark.parametrize(("asked", "told"), [([], 0), (["one", "two", "three"], 0), (["one"], 2)])
async def test_calls_that_nobody_asked_for_are_told(
    asked: list[str], told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await recorded(tmp_path, ["one", "two", "three"])
    async with recording(replaying(tmp_path), tmp_path / "b") as server:
        for text in asked:
            await server.post("chat", body_of("chat", text))
    said = f"policy_model: recorded calls were not asked for: {told} of the 3 of task.0"
    assert [line for line in caplog.messages if "not asked for" in line] == ([said] if told else [])


async def test_calls_side_by_side_find_their_own_answers(tmp_path: Path) -> None:
    await recorded(tmp_path, ["one", "two", "three"])
    async with recording(replaying(tmp_path), tmp_path / "b") as server:
        for text in ("three", "one", "two"):
            assert f"answer to {text}" in (await server.post("chat", body_of("chat", text))).text


async def test_secrets_differ_between_runs_and_are_compared_masked(tmp_path: Path) -> None:
    async def ask(run: Path, made: Any) -> int:
        async with recording(made, run) as server:
            body = body_of("chat", f"my key is {server.key('any')}")
            return (await server.post("chat", body)).status_code

    async with upstream() as provider:
        provider.says = [SAID]
        assert await ask(tmp_path / "a", instance_over("chat", provider.base_url)) == 200
    assert await ask(tmp_path / "b", replaying(tmp_path / "a")) == 200


def written(run: Path, *rollouts: tuple[str, str, float]) -> None:
    store = Store(run / FOLDER, "policy_model")
    for rollout, session, started in rollouts:
        call = {"instance": "policy_model", "api": "chat", "path": "/", "status": 200, "seconds": 0.0, "answer": ""}
        store.add({**call, "rollout": rollout, "session": session, "started_at": started}, {"input": session})


@pytest.mark.parametrize(
    ("rollouts", "played"),
    [
        ([("t.0", "a", 1.0), ("t.0-a1", "b", 2.0), ("t.0-a1", "b", 1.5)], ["b", "b"]),
        ([("t.0-a1", "b", 1.0), ("t.0", "a", 2.0)], ["b"]),
        ([("t.0", "interrupted", 1.0), ("t.0", "again", 2.0)], ["again"]),
    ],
)
def test_of_several_tries_the_last_one_is_played(
    rollouts: list[tuple[str, str, float]], played: list[str], tmp_path: Path
) -> None:
    written(tmp_path, *rollouts)
    found = Recording(tmp_path, "policy_model")
    tape = found.tape("t.0")
    assert [file.at(head).session for file, head in tape.calls] == played
    found.close()


@pytest.mark.parametrize(
    ("recorded", "now", "ignore", "said"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, [], "at a[1].b: recorded 2, now 3"),
        ({"a": [1]}, {"a": [1, 2]}, [], "at a[1]: recorded nothing, now 2"),
        ({"a": 1}, {"a": True}, [], "at a: recorded 1, now true"),
        ({"a": 1, "b": 2}, {"c": 1, "b": 2}, [], "at a: recorded 1, now nothing"),
        ({"a": {"id": 1}, "b": 2}, {"a": {"id": 5}, "b": 2}, ["a.id"], None),
        ({"a": [{"id": 1}, {"id": 2}]}, {"a": [{"id": 3}, {}]}, ["a[*].id"], None),
        ({"a": [{"id": 1}]}, {"a": [{"id": 3}]}, ["a.id", "id"], "at a[0].id: recorded 1, now 3"),
        (["Chunk ID: af, hi"], ["Chunk ID: 3c, hi"], ["Chunk ID: [0-9a-f]+"], None),
        (
            ["Chunk ID: af, hi"],
            ["Chunk ID: 3c, ho"],
            ["Chunk ID: [0-9a-f]+"],
            'at [0]: recorded "Chunk ID: af, hi", now "Chunk ID: 3c, ho"',
        ),
        ([], {}, [], "at the body: recorded [], now {}"),
        (
            "x" * 500 + "y",
            "x" * 500 + "z",
            [],
            "at the body: recorded ..." + "x" * 40 + 'y", now ...' + "x" * 40 + 'z"',
        ),
    ],
)
def test_where_requests_differ(recorded: Any, now: Any, ignore: list[str], said: str | None) -> None:
    places, texts = [text for text in ignore if " " not in text], [text for text in ignore if " " in text]
    found = next(differences(recorded, now, Ignored.of(places, texts)), None)
    assert (None if found is None else str(found)) == said


def test_a_recording_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="name the run directory to play back: replay_from=results/"):
        ReplayModelConfig()
    with pytest.raises(ValidationError, match=r"no recorded model calls in .*/model_calls"):
        ReplayModelConfig(replay_from=str(tmp_path))
    with pytest.raises(ValidationError, match=r"`a\(` is no regular expression: missing \)"):
        ReplayModelConfig(ignore_text=["a("])
    for place in ("a..b", ".a", "a[b", "a.", ""):
        with pytest.raises(ValidationError, match="is no place such as"):
            ReplayModelConfig(ignore=[place])


async def test_a_record_that_lacks_a_line_fails_and_is_not_tried_again(tmp_path: Path) -> None:
    await recorded(tmp_path, ["one"])
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    async with recording(replaying(tmp_path), tmp_path / "b") as server:
        got = await server.post("chat", body_of("chat", "one"))
    assert (got.status_code, got.json()["error"]["code"]) == (400, "replay_mismatch")
    assert "policy_model.jsonl:2  cannot read a model call: the message" in got.json()["error"]["message"]


async def test_a_recording_of_another_model_server_is_refused(tmp_path: Path) -> None:
    written(tmp_path, ("t.0", "a", 1.0))
    with pytest.raises(UserError, match="has no calls of judge"):
        async with recording(replaying(tmp_path, instance="judge"), tmp_path / "b"):
            pass
