"""What may be a tool, told when its class is defined; and the metrics of a resources server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from gym.servers.contract import AggregateMetricsRequest, AggregateMetricsResponse, VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData, tool
from tests.servers.toolbox import TOOLBOX, Hosted, Toolbox, hosted

Method = Callable[..., Any]


async def _fine(self: Any, session: Session[TaskData], number: int = 1, *, word: str = "") -> str:
    return f"{number}{word}"


def _not_async(self: Any, session: Session[TaskData]) -> str:
    return ""


async def _no_session(self: Any) -> str:
    return ""


async def _untyped(self: Any, session: Session[TaskData], number, word: str) -> str:
    return ""


async def _open_ended(self: Any, session: Session[TaskData], *numbers: int, **words: str) -> str:
    return ""


async def _hidden(self: Any, session: Session[TaskData], _number: int) -> str:
    return ""


def define(name: str, method: Method) -> type:
    """A server class with one tool."""
    return type("Mine", (ResourcesServer,), {name: tool(method)})


TAKEN = "Mine.{} cannot be a tool: the server itself uses this name; choose another"
NO_NAMED = "Mine.go cannot be a tool: `*numbers: 'int'` is no single named argument; `**words: 'str'` is no single"


@pytest.mark.parametrize(
    ("name", "method", "told"),
    [
        *((name, _fine, TAKEN.format(name)) for name in ("verify", "seed_session", "close_session", "mcp", "tools")),
        *((name, _fine, TAKEN.format(name)) for name in ("aggregate_metrics", "seed", "close", "start", "session")),
        ("go", _not_async, "Mine.go cannot be a tool: it must be an `async def`"),
        ("go", _no_session, "Mine.go cannot be a tool: its first two parameters are `self` and `session`"),
        ("go", _untyped, "Mine.go cannot be a tool: `number` needs a type"),
        ("go", _open_ended, NO_NAMED),
        ("go", _hidden, "Mine.go cannot be a tool: `_number` begins with an underscore"),
    ],
)
def test_what_cannot_be_a_tool_is_told_at_its_definition(name: str, method: Method, told: str) -> None:
    with pytest.raises(TypeError) as caught:
        define(name, method)
    assert str(caught.value).startswith(told)


def test_any_other_name_is_free() -> None:
    assert set(define("config", _fine).tools()) == {"config"}  # type: ignore[attr-defined]


class Child(Toolbox):
    """Adds a tool, and changes one."""

    @tool
    async def decrement(self, session: Session[TaskData], by: int = 1) -> dict[str, int]:
        """Take from the counter."""
        session.state["count"] -= by
        return {"count": session.state["count"]}

    @tool
    async def increment(self, session: Session[TaskData], by: int = 10) -> dict[str, int]:
        """Add more to the counter."""
        return await super().increment(session, by)


async def test_tools_are_inherited() -> None:
    async with hosted(Child) as box:
        headers = await box.headers()
        assert sorted(box.server.tools()) == ["decrement", "fail", "give", "increment", "locate", "wait"]
        assert (await box.call(headers, "increment"))["structuredContent"] == {"count": 10}
        assert (await box.call(headers, "decrement"))["structuredContent"] == {"count": 9}


# Metrics -------------------------------------------------------------------------------------------------------------


class OwnMetrics(Toolbox):
    """Says what its metrics are."""

    def aggregate_metrics(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {**super().aggregate_metrics(rows), "best": max(row["reward"] for row in rows)}


async def aggregated(box: Hosted, rows: list[dict[str, Any]]) -> AggregateMetricsResponse:
    body = AggregateMetricsRequest(verify_responses=rows)
    return (await box.launched.client.post(TOOLBOX, "/aggregate_metrics", body, AggregateMetricsResponse)).body


ROWS: list[dict[str, Any]] = [
    {"reward": 1.0, "steps": 4, "note": "x", "passed": True, "_ng_task_index": 0},
    {"reward": 0.0, "response": {"output": []}, "passed": False, "_ng_task_index": 1},
    {"reward": 7.0, "mask_sample": True},
]


async def test_the_mean_of_what_has_numbers() -> None:
    async with hosted() as box:
        got = await aggregated(box, ROWS)
        assert got.agent_metrics == got.key_metrics == {"mean/reward": 0.5, "mean/steps": 4.0}
        assert (await aggregated(box, [])).agent_metrics == {}
        huge = await aggregated(box, [{"reward": 1e308}] * 2)
        assert huge.agent_metrics["mean/reward"] == 1e308


async def test_a_server_has_metrics_of_its_own() -> None:
    async with hosted(OwnMetrics) as box:
        assert (await aggregated(box, ROWS)).key_metrics == {"mean/reward": 0.5, "mean/steps": 4.0, "best": 1.0}


class Bare(ResourcesServer[ResourcesServerConfig, TaskData]):
    """Has no tools."""

    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        return VerifyResponse(reward=1.0)


def test_a_server_needs_no_tools() -> None:
    assert Bare.tools() == {}
