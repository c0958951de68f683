"""Admission, deadline and cleanup of an episode, with protocols of a few lines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gym.failures import POLICIES, EpisodeFailure, Stage
from gym.servers import deadline
from gym.servers.base import Call, ServerContext, ServerError
from gym.servers.contract import EXTRAS_HEADER, RunRequest, RunResponse, VerifyResponse
from gym.servers.environment import EnvironmentServer, EnvironmentServerConfig, Episode, kind_of
from tests.servers.parts import context

Protocol = Callable[["Played", Episode], Awaitable[VerifyResponse]]


class Played(EnvironmentServer[EnvironmentServerConfig]):
    """Plays the protocol that it is given."""

    def __init__(self, config: EnvironmentServerConfig, given: ServerContext, protocol: Protocol) -> None:
        super().__init__(config, given)
        self.protocol = protocol
        self.log: list[str] = []
        self.entered = asyncio.Event()

    async def run_episode(self, episode: Episode) -> VerifyResponse:
        return await self.protocol(self, episode)

    def register(self, episode: Episode, name: str, *, wait: asyncio.Event | None = None, fails: bool = False) -> None:
        async def action() -> None:
            self.entered.set()
            if wait is not None:
                await wait.wait()
            if fails:
                raise ValueError("two\nlines")
            self.log.append(name)

        episode.cleanup(name, action)


def playing(protocol: Protocol, **settings: Any) -> Played:
    config = EnvironmentServerConfig.model_validate({"cleanup_timeout_seconds": 5, **settings})
    return Played(config, context("environment"), protocol)


async def run(server: Played) -> RunResponse:
    task = {
        "task_id": {"taskset": "t", "task_id": "1"},
        "task_input": {"responses_create_params": {"input": "go"}},
    }
    request = RunRequest.model_validate({"episode_id": {"rollout_id": "r1"}, "task": task})
    return await server.run(request, Call({EXTRAS_HEADER: "1"}))


async def for_ever() -> VerifyResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def test_cleanups_run_last_in_first_out_and_once() -> None:
    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        for name in ("first", "second", "third"):
            server.register(episode, name)
        await episode.clean(episode.cleanups[1])
        await episode.clean(episode.cleanups[1])
        return VerifyResponse(reward=1)

    server = playing(protocol)
    outcome = await run(server)
    assert outcome.result is not None
    assert server.log == ["second", "third", "first"]


@pytest.mark.parametrize("early", [False, True])
async def test_a_failing_cleanup_does_not_stop_the_others(early: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        server.register(episode, "first")
        server.register(episode, "second", fails=True)
        if early:
            await episode.clean(episode.cleanups[1])
        return VerifyResponse(reward=1)

    server = playing(protocol)
    outcome = await run(server)
    assert server.log == ["first"]
    assert "rollout r1: cleanup failed: second: ValueError: two lines" in caplog.text
    if early:
        assert outcome.failure is not None
        assert (outcome.failure.failure_kind, outcome.failure.stage) == ("cleanup_failed", "cleanup")
    else:
        assert outcome.result is not None


@pytest.mark.parametrize(("failures", "left"), [(0, None), (1, None), (2, ["sticky: ValueError: it sticks"])])
async def test_a_cleanup_may_be_tried_again_and_what_is_left_is_recorded(failures: int, left: list[str] | None) -> None:
    tried = 0

    async def action() -> None:
        nonlocal tried
        tried += 1
        if tried <= failures:
            raise ValueError("it sticks")

    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        episode.cleanup("sticky", action, tries=2)
        return VerifyResponse(reward=1)

    outcome = await run(playing(protocol))
    assert outcome.result is not None
    assert (outcome.result.model_extra or {}).get("cleanup_failures") == left
    assert tried == min(failures + 1, 2)


async def test_each_cleanup_has_its_own_bound(caplog: pytest.LogCaptureFixture) -> None:
    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        server.register(episode, "first")
        for name in ("second", "third"):
            server.register(episode, name, wait=asyncio.Event())
        return VerifyResponse(reward=1)

    server = playing(protocol, cleanup_timeout_seconds=0.02)
    outcome = await run(server)
    assert outcome.result is not None
    assert server.log == ["first"]
    assert caplog.text.count("not done within cleanup_timeout_seconds (0.02 s)") == 2


async def test_cleanups_are_outside_the_deadline() -> None:
    gate = asyncio.Event()

    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        server.register(episode, "slow", wait=gate)
        async with episode.step("agent"):
            return await for_ever()

    server = playing(protocol, default_episode_timeout_seconds=0.01)
    running = asyncio.create_task(run(server))
    await server.entered.wait()
    assert not running.done()
    gate.set()
    outcome = await running
    assert server.log == ["slow"]
    assert outcome.failure is not None
    assert (outcome.failure.failure_kind, outcome.failure.stage) == ("episode_timeout", "agent")
    assert "agent" in outcome.timings


async def test_a_caller_that_has_no_time_left_is_told_so() -> None:
    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        async with episode.step("seed"):
            return await for_ever()

    with deadline.within(0):
        outcome = await run(playing(protocol))
    assert outcome.failure is not None
    assert outcome.failure.failure_kind == "episode_timeout"
    assert outcome.failure.failure_reason == "the time that the caller gives (0 s) ran out"


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_cancellation_waits_for_the_cleanups_and_passes(cancellations: int) -> None:
    gate = asyncio.Event()
    inside = asyncio.Event()

    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        server.register(episode, "slow", wait=gate)
        inside.set()
        return await for_ever()

    server = playing(protocol, max_concurrent_episodes=1)
    running = asyncio.create_task(run(server))
    await inside.wait()
    for _ in range(cancellations):
        running.cancel()
        await server.entered.wait()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert server.log == ["slow"]
    assert server._admission is not None
    assert not server._admission.locked()


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (EpisodeFailure("sandbox_lost", "gone"), "sandbox_lost", "gone"),
        (ServerError(503, "no address"), "server_unreachable", "no address"),
        (ServerError(409, "closed"), "internal", "closed"),
        (ValueError("two\nlines"), "internal", "ValueError: two lines"),
        (TimeoutError(), "internal", "a step timed out: TimeoutError"),
    ],
)
async def test_every_error_is_a_failure_with_a_stage(error: Exception, kind: str, reason: str) -> None:
    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        async with episode.step("seed"):
            raise error

    outcome = await run(playing(protocol))
    assert outcome.failure is not None
    assert (outcome.failure.failure_kind, outcome.failure.stage) == (kind, "seed")
    assert outcome.failure.failure_reason == reason


@pytest.mark.parametrize(
    ("status", "stage", "kind"),
    [
        (503, "agent", "server_unreachable"),
        (429, "verification", "server_unreachable"),
        (401, "agent", "configuration"),
        (404, "seed", "configuration"),
        (422, "seed", "configuration"),
        (422, "agent", "internal"),
        (409, "agent", "session_lost"),
        (409, "verification", "session_lost"),
        (409, "seed", "internal"),
        (500, "seed", "internal"),
        (500, "agent", "agent_error"),
        (500, "verification", "verifier_crashed"),
    ],
)
def test_the_kind_of_a_refusal(status: int, stage: Stage, kind: str) -> None:
    assert kind_of(ServerError(status, "x"), stage) == kind


async def test_both_outcomes_are_on_the_wire() -> None:
    async def protocol(server: Played, episode: Episode) -> VerifyResponse:
        return VerifyResponse(reward=0.5)

    sent = (await run(playing(protocol))).model_dump(mode="json", exclude_unset=True)
    assert sent["failure"] is None
    assert sent["result"] == {"reward": 0.5}


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 21600 + 5 * 180),
        ({"max_concurrent_episodes": 2, "queue_timeout_seconds": 10}, 10 + 21600 + 5 * 180),
        ({"queue_timeout_seconds": 10, "cleanup_timeout_seconds": 1}, 21600 + 5),  # nobody queues
        ({"max_concurrent_episodes": 2}, math.inf),
        ({"default_episode_timeout_seconds": None}, math.inf),
    ],
)
def test_how_long_an_answer_may_take(settings: dict[str, Any], seconds: float) -> None:
    assert EnvironmentServerConfig.model_validate(settings).longest_seconds() == seconds


def test_what_is_graded_has_a_reward_that_counts() -> None:
    assert [kind for kind, policy in POLICIES.items() if policy.graded] == ["budget_exhausted"]
    assert [kind for kind, policy in POLICIES.items() if policy.reward_valid] == ["budget_exhausted", "cleanup_failed"]
