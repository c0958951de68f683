"""The native agent: whole episodes with a scripted policy, and what happens to calls that cannot be run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse, function_call, message
from gym.failures import EpisodeFailure
from gym.servers.base import ServerContext, ServerError
from gym.servers.contract import RunResponse, VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData, tool
from responses_api_agents.simple_agent.conversation import Conversation, MalformedArguments, parse_arguments
from tests.environment_servers.wiring import World, build, turn


class Sums(ResourcesServer[ResourcesServerConfig, TaskData]):
    """Adds numbers; the reward is 1.0 when the last message is the task's answer. Keeps the calls that ran."""

    def __init__(self, context: ServerContext) -> None:
        self.ran: list[tuple[float, float]] = []
        super().__init__(ResourcesServerConfig(), context)

    @tool
    async def add(self, session: Session[TaskData], a: float, b: float) -> float:
        """Add two numbers."""
        self.ran.append((a, b))
        return a + b

    @tool
    async def refuse(self, session: Session[TaskData], status: int) -> None:
        """Answer with a status."""
        raise ServerError(status, f"refused with {status}")

    @tool
    async def fail(self, session: Session[TaskData]) -> None:
        """Break."""
        raise RuntimeError("the disk is gone")

    @tool
    async def lose(self, session: Session[TaskData]) -> None:
        """Find the sandbox dead."""
        raise EpisodeFailure("sandbox_lost", "the sandbox is gone")

    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        """Compares the answer."""
        last = ResponsesResponse(output=request.response.output[-1:]).output_text
        return VerifyResponse(reward=float(last == getattr(session.task, "answer", "done")))


def call(name: str, arguments: Any = None, call_id: str = "c1") -> Item:
    return function_call(name, {} if arguments is None else arguments, call_id)


# Malformed JSON, unknown name, wrong type, the same id twice, then the answer.
BAD_CALLS = [
    ([call("add", '{"a": 2, "b": ', "c1")], (20, 9)),
    ([call("ad", {"a": 2, "b": 3}, "c2")], (40, 9)),
    ([call("add", {"a": "two", "b": 3}, "c3")], (60, 9)),
    ([call("add", {"a": 2, "b": 3}, "c4"), call("add", {"a": 1, "b": 1}, "c4")], (80, 15)),
    ([message("assistant", "5")], (100, 2)),
]


def bad_calls_world(**settings: Any) -> World:
    usages = [{"input_tokens": read, "output_tokens": wrote} for _, (read, wrote) in BAD_CALLS]
    turns = [{"output": output, "usage": usage} for (output, _), usage in zip(BAD_CALLS, usages, strict=True)]
    return build(Sums, turns, **settings)


def result_of(episode: RunResponse) -> VerifyResponse:
    assert episode.failure is None, episode.failure
    assert episode.result is not None
    return episode.result


def response_of(episode: RunResponse) -> ResponsesResponse:
    response = result_of(episode).response
    assert response is not None
    return response


def observations_of(episode: RunResponse) -> dict[str, Any]:
    found: dict[str, Any] = result_of(episode).model_dump()["ng_agent_observations"]
    return found


def outputs(items: list[Item]) -> dict[str, str]:
    return {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}


def error(text: str) -> str:
    found: str = json.loads(text)["error"]
    return found


async def test_bad_tool_calls_are_answered_and_the_episode_goes_on() -> None:
    world = bad_calls_world()
    episode = await world.run({"answer": "5"})

    assert result_of(episode).reward == 1.0
    assert isinstance(world.resources, Sums)
    assert world.resources.ran == [(2, 3), (1, 1)]
    response = response_of(episode)
    answers = outputs(response.output)
    assert "Expecting value at character 14" in error(answers["c1"])
    assert "did you mean `add`?" in error(answers["c2"])
    assert "a: Input should be a valid number" in error(answers["c3"])
    assert (answers["c4"], answers["c4_2"]) == ("5.0", "2.0")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (300, 44)
    assert observations_of(episode)["stop_reason"] == "completed"
    assert observations_of(episode)["counters"] == {
        "model_calls": 5,
        "tool_calls": 5,
        "tool_calls_malformed": 1,
        "tool_calls_unknown": 1,
        "tool_calls_invalid": 1,
    }


async def test_the_trajectory_keeps_raw_arguments_and_the_history_is_decodable() -> None:
    world = bad_calls_world()
    kept = response_of(await world.run({"answer": "5"})).output[0]
    assert kept["arguments"] == '{"a": 2, "b": '
    assert kept["malformed_arguments"] is True

    last = world.requests[-1].items()
    calls = [item for item in last if item.get("type") == "function_call"]
    assert calls[0]["arguments"] == "{}"
    assert [item["call_id"] for item in calls] == ["c1", "c2", "c3", "c4", "c4_2"]
    assert set(outputs(last)) == {item["call_id"] for item in calls}
    assert not any("malformed_arguments" in item for item in last)
    assert [len(request.items()) for request in world.requests] == [1, 3, 5, 7, 11]


async def test_bad_calls_in_a_row_end_the_activation_and_are_graded() -> None:
    world = bad_calls_world(max_consecutive_bad_calls=2)
    episode = await world.run({"answer": "5"})
    assert result_of(episode).reward == 0.0
    response = response_of(episode)
    assert response.status == "incomplete"
    assert response.incomplete_details == {"reason": "bad_tool_calls"}
    assert observations_of(episode)["stop_reason"] == "bad_tool_calls"
    assert len(world.requests) == 2


async def test_a_good_call_resets_the_row_of_bad_calls() -> None:
    turns = [turn(call("nothing")), turn(call("add", {"a": 1, "b": 1})), turn(call("nothing"))]
    episode = await build(Sums, turns, max_consecutive_bad_calls=2).run({})
    assert result_of(episode).reward == 1.0


async def test_max_steps_is_a_partial_response_that_is_graded() -> None:
    world = build(Sums, [turn(call("add", {"a": 1, "b": 1}))] * 9, max_steps=3)
    episode = await world.run({})
    assert result_of(episode).reward == 0.0
    response = response_of(episode)
    assert (response.status, response.incomplete_details) == ("incomplete", {"reason": "max_steps"})
    assert len(world.requests) == 3
    assert isinstance(world.resources, Sums)
    assert len(world.resources.ran) == 3


async def test_the_models_own_limit_stays_visible() -> None:
    cut = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        **turn(message("assistant", "do")),
    }
    response = response_of(await build(Sums, [cut]).run({}))
    assert (response.status, response.incomplete_details) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize("name", ["verify", "close_session", "seed_session", "tools", "../add", "add/", ""])
async def test_only_offered_tools_can_be_called(name: str) -> None:
    world = build(Sums, [turn(call(name))])
    episode = await world.run({})
    assert observations_of(episode)["counters"]["tool_calls_unknown"] == 1
    assert "there is no tool" in error(outputs(response_of(episode).output)["c1"])


@pytest.mark.parametrize(
    ("status", "counter"), [(400, "invalid"), (404, "unknown"), (413, "invalid"), (422, "invalid")]
)
async def test_a_refused_call_is_told_to_the_model(status: int, counter: str) -> None:
    episode = await build(Sums, [turn(call("refuse", {"status": status}))]).run({})
    assert observations_of(episode)["counters"][f"tool_calls_{counter}"] == 1
    assert error(outputs(response_of(episode).output)["c1"]) == f"`refuse` refused the call: refused with {status}"


FAILURES = [
    (call("refuse", {"status": 401}), "tool_server_error", "refused with 401"),
    (call("refuse", {"status": 409}), "tool_server_error", "refused with 409"),
    (call("refuse", {"status": 503}), "tool_server_error", "refused with 503"),
    (call("fail"), "tool_server_error", "the disk is gone"),
    (call("lose"), "sandbox_lost", "the sandbox is gone"),
]


@pytest.mark.parametrize(("bad", "kind", "text"), FAILURES)
async def test_failed_infrastructure_fails_the_episode(bad: Item, kind: str, text: str) -> None:
    episode = await build(Sums, [turn(bad)]).run({})
    assert episode.result is None
    assert episode.failure is not None
    assert (episode.failure.failure_kind, episode.failure.stage) == (kind, "agent")
    assert text in episode.failure.failure_reason


async def test_a_failed_answer_of_the_model_fails_the_episode() -> None:
    episode = await build(Sums, [{"status": "failed", "error": {"message": "overloaded"}}]).run({})
    assert episode.failure is not None
    assert episode.failure.failure_kind == "provider_error"
    assert "overloaded" in episode.failure.failure_reason


async def test_an_offered_tool_without_a_grant_is_a_fault_of_the_configuration() -> None:
    world = build(Sums, [turn(call("add", {"a": 1, "b": 1}))])
    world.environment.config = world.environment.config.model_copy(update={"resources_tool_transports": []})
    episode = await world.run({}, tools=[{"type": "function", "name": "add", "parameters": {}}])
    assert episode.failure is not None
    assert episode.failure.failure_kind == "configuration"


@pytest.mark.parametrize(
    ("system_prompt", "instructions", "sent"),
    [
        (None, None, None),
        (None, "be short", "be short"),
        ("think first", None, "think first"),
        ("think first", "be short", "think first\n\nbe short"),
    ],
)
async def test_the_system_prompt_goes_before_the_instructions(
    system_prompt: str | None, instructions: str | None, sent: str | None
) -> None:
    world = build(Sums, [], system_prompt=system_prompt)
    params = {} if instructions is None else {"instructions": instructions}
    await world.run({}, **params)
    assert [request.instructions for request in world.requests] == [sent]


async def test_parallel_calls_keep_their_order_in_history_and_execution() -> None:
    calls = [call("add", {"a": number, "b": 0}, f"c{number}") for number in range(4)]
    world = build(Sums, [turn(*calls)])
    await world.run({})
    assert isinstance(world.resources, Sums)
    assert [a for a, _ in world.resources.ran] == [0, 1, 2, 3]
    sent = world.requests[-1].items()[1:]
    assert [item["type"] for item in sent] == ["function_call"] * 4 + ["function_call_output"] * 4
    assert [item["call_id"] for item in sent] == ["c0", "c1", "c2", "c3"] * 2


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [(None, {}), ("", {}), (" \n", {}), ("{}", {}), ('{"a": [1]}', {"a": [1]}), ({"a": 1}, {"a": 1})],
)
def test_readable_arguments(raw: Any, arguments: dict[str, Any]) -> None:
    assert parse_arguments(raw) == arguments


@pytest.mark.parametrize(
    "raw", ["{", "[1]", "2", "null", '"a"', '{"a": NaN}', '{"a": 1} x', "[" * 100_000, "1" * 10_000, 3, "{'a': 1}"]
)
def test_malformed_arguments(raw: Any) -> None:
    with pytest.raises(MalformedArguments, match=r"^the arguments "):
        parse_arguments(raw)


def _conversation() -> Conversation:
    return Conversation(ResponsesRequest(input="go", tools=[{"type": "function", "name": "add"}]), None)


@given(st.lists(st.tuples(st.sampled_from(["c", "c_2", "", None]), st.one_of(st.text(), st.none())), max_size=8))
def test_whatever_the_model_writes_the_history_stays_valid(calls: list[tuple[str | None, str | None]]) -> None:
    conversation = _conversation()
    items = [{"type": "function_call", "call_id": i, "name": "add", "arguments": raw} for i, raw in calls]
    for taken in conversation.take(ResponsesResponse(output=items)):
        conversation.reject(taken, "malformed" if taken.problem else "invalid", "no")
    sent = conversation.request().items()[1:]
    ids = [item["call_id"] for item in sent if item["type"] == "function_call"]
    assert len(set(ids)) == len(ids) == len(calls)
    assert all(isinstance(json.loads(item["arguments"]), dict) for item in sent if item["type"] == "function_call")
    assert list(outputs(sent)) == ids
    kept = conversation.response("completed", None).output[: len(calls)]
    assert [item["arguments"] for item in kept] == [raw for _, raw in calls]
