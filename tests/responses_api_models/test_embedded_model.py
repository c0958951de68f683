"""The embedded model: scripts, their faults, and playing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse, function_call_output, message, reasoning
from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.responses_api_models.embedded_model.app import EmbeddedModel, EmbeddedModelConfig, count_turns
from gym.servers.base import Call
from tests.responses_api_models.provider import context

SCRIPT: list[dict[str, Any]] = [
    {
        "task": "count",
        "match": "count",
        "turns": [
            [{"call": "increment", "arguments": {"by": 3}}, {"call": "increment", "arguments": '{"by": '}],
            [reasoning("hm"), {"say": "It is 3."}],
        ],
    },
    {"task": "count-long", "match": "count to ten", "turns": [[{"say": "ten"}]]},
    {
        "task": "recorded",
        "match": "recorded",
        "turns": [
            {
                "id": "r1",
                "output": [{"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 2, "b": '}],
                "usage": {"input_tokens": 20, "output_tokens": 9},
            }
        ],
    },
]


def write(path: Path, lines: list[Any]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


async def started(path: Path | None, **settings: Any) -> EmbeddedModel:
    script = None if path is None else str(path)
    server = EmbeddedModel(EmbeddedModelConfig(script=script, **settings), context())
    await server.start()
    return server


async def play(server: EmbeddedModel, items: list[Item] | str, **fields: Any) -> ResponsesResponse:
    got = await server.routes["/v1/responses"](ResponsesRequest(input=items, **fields), Call())
    assert isinstance(got, ResponsesResponse)
    return got


@pytest.fixture
async def server(tmp_path: Path) -> EmbeddedModel:
    return await started(write(tmp_path / "script.jsonl", SCRIPT))


async def test_an_episode(server: EmbeddedModel) -> None:
    items = [message("user", "Please count.")]
    first = await play(server, items)
    assert [(item["call_id"], item["arguments"]) for item in first.output] == [
        ("call_1_1", '{"by": 3}'),
        ("call_1_2", '{"by": '),
    ]
    items += [*first.output, *(function_call_output(item["call_id"], "ok") for item in first.output)]
    second = await play(server, items)
    assert [item["type"] for item in second.output] == ["reasoning", "message"]
    assert (second.output_text, second.model, second.status) == ("It is 3.", "embedded-script", "completed")
    items += second.output
    with pytest.raises(EpisodeFailure, match=r"script.jsonl:1 has no turn 3 for task count: it has 2") as failure:
        await play(server, items)
    assert failure.value.kind == "script_exhausted"


async def test_answers_share_nothing(server: EmbeddedModel) -> None:
    first = await play(server, "count")
    first.output[0]["name"] = "changed"
    assert (await play(server, "count")).output[0]["name"] == "increment"


async def test_the_longest_match_wins(server: EmbeddedModel) -> None:
    assert (await play(server, "count to ten")).output_text == "ten"
    assert (await play(server, [message("user", "environment"), message("user", "count to ten")])).output_text == "ten"


async def test_no_match(server: EmbeddedModel) -> None:
    with pytest.raises(
        EpisodeFailure, match=r"no line of the script .*script.jsonl matches .* `sing a song`"
    ) as failure:
        await play(server, [message("system", "count"), message("user", "sing\na song")])
    assert failure.value.kind == "script_exhausted"


async def test_usage_is_recorded_or_estimated(server: EmbeddedModel) -> None:
    recorded, estimated = await play(server, "recorded"), await play(server, "count to ten", instructions="1234")
    assert recorded.usage is not None
    assert (recorded.usage.input_tokens, recorded.usage.output_tokens, recorded.usage.total_tokens) == (20, 9, 29)
    assert recorded.output[0]["call_id"] == "c1"
    assert estimated.usage is not None
    assert (estimated.usage.input_tokens, estimated.usage.output_tokens, estimated.usage.total_tokens) == (4, 1, 5)


CALL = {"type": "function_call", "name": "a", "arguments": "{}", "call_id": "c"}
TURNS: list[tuple[list[Item], int]] = [
    ([message("user", "hi")], 0),
    ([message("user", "hi"), CALL, CALL], 1),
    ([CALL, function_call_output("c", ""), CALL], 2),
    ([reasoning("hm"), message("assistant", "x"), CALL, function_call_output("c", ""), message("user", "y")], 1),
    ([message("assistant", "x"), message("user", "y"), {"role": "assistant", "content": "z"}], 2),
]


@pytest.mark.parametrize(("items", "turns"), TURNS)
def test_turns(items: list[Item], turns: int) -> None:
    assert count_turns(items) == turns


def line(*turns: Any, **fields: Any) -> dict[str, Any]:
    return {"task": "t", "match": "x", "turns": list(turns), **fields}


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("{", "no JSON: Expecting"),
        ("[]", "body: Input should be"),
        (line(), "turns: List should have at least 1 item"),
        (line([{"say": "x"}], match=""), "match: String should have at least 1 character"),
        (line([{"say": "x"}], note="x"), "note: Extra inputs are not permitted"),
        (line([]), "turn 1 is empty"),
        (line([{"say": "x"}], {"output": []}), "turn 2 is empty"),
        (line([{"say": "x"}], [{"sya": "x"}]), "turn 2, item 1: neither `call`, `say`, nor"),
        (line([{"say": "x", "arguments": {}}]), "turn 1, item 1: `say` goes with nothing else"),
        (line([{"call": "x", "argumens": {}}]), "`call` goes with arguments, call_id"),
        (line([{"call": 7}]), "turn 1, item 1: the call has no name"),
        (line([{"say": 7}]), "the message has neither a text nor a list of parts"),
        (line([function_call_output("c", "x")]), "turn 1, item 1: neither"),
        (line([message("user", "x")]), "turn 1, item 1: neither"),
        (line([{"say": "x"}], match="count"), "the same `match` as in line 1"),
    ],
)
async def test_bad_lines(tmp_path: Path, bad: Any, expected: str) -> None:
    path = write(tmp_path / "script.jsonl", [*SCRIPT, "", bad])
    with pytest.raises(UserError) as refused:
        await started(path)
    [problem] = refused.value.problems
    assert problem.where == f"{path}:5"
    assert problem.what.startswith(expected) or expected in problem.what


async def test_all_bad_lines_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "script.jsonl", ["{", SCRIPT[0], "}"])
    with pytest.raises(UserError) as refused:
        await started(path)
    assert [problem.where for problem in refused.value.problems] == [f"{path}:1", f"{path}:3"]


async def test_an_empty_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the script has no lines"):
        await started(write(tmp_path / "script.jsonl", [""]))


async def test_a_script_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        await started(path)


async def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    text = '{"task": "t", "match": "a\u2028b", "turns": [[{"say": "x\u0085y"}]]}'
    assert (await play(await started(write(tmp_path / "s.jsonl", [text])), "a\u2028b")).output_text == "x\u0085y"


async def test_the_script_in_the_docs(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    example = docs.partition("```json\n")[2].partition("```")[0]
    server = await started(write(tmp_path / "s.jsonl", [example]))
    assert (await play(server, "Count to three, please.")).output[0]["name"] == "increment"


async def test_no_script() -> None:
    with pytest.raises(
        UserError, match=r"embedded_model.script  embedded_model has no script to play; .*policy_script"
    ):
        await started(None)


async def test_a_missing_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        await started(tmp_path / "nowhere.jsonl")


async def test_it_says_that_it_is_no_llm(server: EmbeddedModel, caplog: pytest.LogCaptureFixture) -> None:
    assert EmbeddedModel.scripted
    with caplog.at_level("INFO"):
        await server.start()
    assert "no LLM" in caplog.text
