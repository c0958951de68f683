"""Base of the environment servers: admission, deadline and cleanup of an episode.

A protocol (`run_episode`) does the steps and registers a cleanup for each thing before it asks for it. Whatever
happens, the cleanups run last-in first-out, each within its own bound, outside the episode's deadline.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from pydantic import Field

from gym.apis.responses import ResponsesResponse
from gym.failures import POLICIES, EpisodeFailure, Stage
from gym.sandbox.waiting import uncancelled
from gym.servers import deadline
from gym.servers.base import OPERATIONAL, Call, Server, ServerConfig, ServerContext, ServerError, one_line, route
from gym.servers.contract import (
    EXTRAS_HEADER,
    ROLLOUT_HEADER,
    AggregateMetricsRequest,
    AggregateMetricsResponse,
    CloseLostResponse,
    EpisodeId,
    Failure,
    RunRequest,
    RunResponse,
    ServerRef,
    Task,
    VerifyResponse,
)
from gym.servers.tries import Tries

if TYPE_CHECKING:
    from gym.sandbox.interface import OnImageProgress, SandboxProvider

STAGES: tuple[Stage, ...] = get_args(Stage)
MOST_CLEANUPS = 5
"""So many cleanup bounds, one after another, are more than the end of any episode takes."""
log = logging.getLogger(__name__)


class EnvironmentServerConfig(ServerConfig):
    """Bounds of an episode. Seconds throughout."""

    max_concurrent_episodes: int | None = Field(
        None, gt=0, description="Episodes at once; null: as many as the run dispatches.", json_schema_extra=OPERATIONAL
    )
    queue_timeout_seconds: float | None = Field(
        None,
        gt=0,
        description="How long an episode may wait for admission; null: as long as needed.",
        json_schema_extra=OPERATIONAL,
    )
    default_episode_timeout_seconds: float | None = Field(
        21600, gt=0, description="Deadline of an episode, from admission to verification; null: none."
    )
    cleanup_timeout_seconds: float = Field(
        180, gt=0, description="Bound of each cleanup, outside the episode's deadline.", json_schema_extra=OPERATIONAL
    )

    def longest_seconds(self) -> float:
        """How long `POST /run` may take at most before it must have answered; infinite where something has no bound."""
        queue = (self.queue_timeout_seconds or math.inf) if self.max_concurrent_episodes else 0.0
        episode = self.default_episode_timeout_seconds or math.inf
        return queue + episode + MOST_CLEANUPS * self.cleanup_timeout_seconds


EnvironmentConfigT = TypeVar("EnvironmentConfigT", bound=EnvironmentServerConfig)


@dataclass
class Cleanup:
    """One thing to free; succeeds once, however often it is asked for.

    Attributes:
        tries: How often the end of the episode tries it, each time within its own bound.
    """

    name: str
    action: Callable[[], Awaitable[None]]
    tries: int = 1
    done: bool = False


@dataclass
class Episode:
    """A running episode: where it is, how long each stage took, and what must be freed.

    Attributes:
        tries: What its caller says of itself, and of earlier tries.
        timings: Seconds per stage.
        partial_response: What the agent had done when something failed.
        observations: What the agent was observed to do, as its close has told.
        cleanup_failures: What could not be freed at the end.
    """

    request: RunRequest
    cleanup_timeout_seconds: float
    tries: Tries
    stage: Stage = "admission"
    timings: dict[str, float] = field(default_factory=dict)
    partial_response: ResponsesResponse | None = None
    observations: dict[str, Any] | None = None
    cleanups: list[Cleanup] = field(default_factory=list)
    cleanup_failures: list[EpisodeFailure] = field(default_factory=list)

    @property
    def headers(self) -> dict[str, str]:
        """What each request of the episode carries: whose it is, and that we read what our servers add."""
        named = Tries(self.tries.run).to_headers()
        return {ROLLOUT_HEADER: self.request.episode_id.key, EXTRAS_HEADER: "1", **named}

    @asynccontextmanager
    async def step(self, stage: Stage, name: str | None = None) -> AsyncIterator[None]:
        """A step of the lifecycle: failures inside it carry its stage, its time is kept under `name`."""
        self.stage = stage
        started = time.perf_counter()
        try:
            yield
        finally:
            key = name or stage
            self.timings[key] = round(self.timings.get(key, 0.0) + time.perf_counter() - started, 6)

    def cleanup(self, name: str, action: Callable[[], Awaitable[None]], *, tries: int = 1) -> Cleanup:
        """Registers what must be freed. Call it before the thing is asked for."""
        entry = Cleanup(name, action, tries)
        self.cleanups.append(entry)
        return entry

    async def clean(self, entry: Cleanup) -> None:
        """Runs one cleanup now, within its bound.

        Raises:
            EpisodeFailure: `cleanup_failed`.
        """
        if entry.done:
            return
        limit = self.cleanup_timeout_seconds
        try:
            with deadline.of_its_own(limit):
                async with asyncio.timeout(limit) as bound:
                    await entry.action()
        except Exception as error:
            late = isinstance(error, TimeoutError) and bound.expired()
            reason = f"not done within cleanup_timeout_seconds ({limit:g} s)" if late else one_line(error)
            raise EpisodeFailure("cleanup_failed", f"{entry.name}: {reason}", stage="cleanup") from error
        entry.done = True

    async def unwind(self) -> None:
        """Runs what is left to clean, last-in first-out; a failed cleanup is noted and the others still run."""
        started = time.perf_counter()
        for entry in reversed(self.cleanups):
            await self.clean_or_note(entry)
        self.timings["cleanup"] = round(time.perf_counter() - started, 6)

    async def clean_or_note(self, entry: Cleanup) -> None:
        """Runs one cleanup, and once more where that may help; a failure is noted."""
        for number in range(entry.tries):
            try:
                await self.clean(entry)
                break
            except EpisodeFailure as failure:
                log.warning("rollout %s: cleanup failed: %s", self.request.episode_id.key, failure.message)
                if number == entry.tries - 1:
                    self.cleanup_failures.append(failure)


class EnvironmentServer(Server[EnvironmentConfigT]):
    """Runs episodes: `POST /run` answers with a result or a failure, both as HTTP 200.

    Attributes:
        accepts_flat_rows: True for a server whose tasks may come as rows without a taskset.
        prepares: It has something to prepare for its tasks before a run.
    """

    accepts_flat_rows: ClassVar[bool] = False
    prepares: ClassVar[bool] = False
    config_type: ClassVar[type[ServerConfig]] = EnvironmentServerConfig

    def __init__(self, config: EnvironmentConfigT, context: ServerContext) -> None:
        limit = config.max_concurrent_episodes
        self._admission = asyncio.Semaphore(limit) if limit else None
        super().__init__(config, context)

    @classmethod
    async def prepare(
        cls,
        config: EnvironmentConfigT,  # noqa: ARG003
        tasks: Iterable[Task],  # noqa: ARG003
        providers: Mapping[str, SandboxProvider],  # noqa: ARG003
        on_progress: OnImageProgress,  # noqa: ARG003
    ) -> dict[str, str]:
        """Has images ready that its tasks need, before the servers of a run start; returns their digests.

        Raises:
            UserError: All images that cannot be had.
        """
        return {}

    @route("/run")
    async def run(self, body: RunRequest, call: Call) -> RunResponse:
        """Runs one episode."""
        episode = Episode(body, self.config.cleanup_timeout_seconds, Tries.from_headers(call.headers))
        # Both are set, so that both are sent: one of them is always null.
        answer = RunResponse(episode_id=body.episode_id, task_id=body.task.task_id, result=None, failure=None)
        try:
            async with self._admitted(episode):
                answer.result = _noted(await self._bounded(episode), episode.cleanup_failures)
        except EpisodeFailure as failure:
            answer.failure = Failure(
                failure_reason=failure.message[:2000],
                terminal=failure.terminal,
                failure_kind=failure.kind,
                stage=failure.stage if failure.stage in STAGES else episode.stage,
                partial_response=episode.partial_response,
            )
        if EXTRAS_HEADER in call.headers:
            answer.timings = episode.timings
            if answer.failure is not None and episode.observations is not None:
                answer.agent_observations = episode.observations
        return answer

    @route("/close_lost")
    async def close_lost_tries(self, body: RunRequest, call: Call) -> CloseLostResponse:
        """Closes what lost tries have left open, for a caller that makes no other try of the rollout."""
        episode = Episode(body, self.config.cleanup_timeout_seconds, Tries.from_headers(call.headers))
        await uncancelled(self._close_lost(episode))
        return CloseLostResponse(cleanup_failures=[failure.message for failure in episode.cleanup_failures])

    async def _close_lost(self, episode: Episode) -> None:
        for lost in episode.tries.lost_before(episode.request.episode_id):
            async with episode.step("cleanup", "close_lost"):
                await self.close_lost(episode, lost)

    async def close_lost(self, episode: Episode, lost: EpisodeId) -> None:
        """Closes what an earlier try may have left open: this server died, or its answer did not arrive.

        What comes of that try from now on is to be refused. What cannot be closed is noted in `episode`.
        """

    @route("/aggregate_metrics")
    async def aggregate(self, body: AggregateMetricsRequest, call: Call) -> AggregateMetricsResponse:  # noqa: ARG002
        """What the server that gave the verdicts of a run makes of them."""
        verifier = self.verifier()
        if verifier is None:
            raise ServerError(404, f"{self.name} has no server that aggregates")
        answer = await self.context.client.post(verifier, "/aggregate_metrics", body, AggregateMetricsResponse)
        return answer.body

    def verifier(self) -> ServerRef | None:
        """Who gives the verdicts of its episodes."""
        return None

    @asynccontextmanager
    async def _admitted(self, episode: Episode) -> AsyncIterator[None]:
        if self._admission is None:
            yield
            return
        async with episode.step("admission", "queue"):
            try:
                async with asyncio.timeout(self.config.queue_timeout_seconds):
                    await self._admission.acquire()
            except TimeoutError as error:
                waited = self.config.queue_timeout_seconds
                message = f"not admitted within queue_timeout_seconds ({waited:g} s)"
                raise EpisodeFailure("admission_timeout", message, stage="admission") from error
        try:
            yield
        finally:
            self._admission.release()

    async def _bounded(self, episode: Episode) -> VerifyResponse:
        own = self.config.default_episode_timeout_seconds
        limit = deadline.bounded(own)
        try:
            with deadline.within(limit):
                async with asyncio.timeout(limit) as bound:
                    await self._close_lost(episode)
                    return await self.run_episode(episode)
        except ServerError as error:
            raise EpisodeFailure(kind_of(error, episode.stage), error.detail, stage=episode.stage) from error
        except TimeoutError as error:
            if not bound.expired():
                raise EpisodeFailure("internal", f"a step timed out: {one_line(error)}", stage=episode.stage) from error
            whose = "default_episode_timeout_seconds" if limit == own else "the time that the caller gives"
            message = f"{whose} ({limit:g} s) ran out"
            raise EpisodeFailure("episode_timeout", message, stage=episode.stage) from error
        except EpisodeFailure:
            raise
        except Exception as error:
            log.exception("episode %s", episode.request.episode_id.key)
            raise EpisodeFailure("internal", one_line(error), stage=episode.stage) from error
        finally:
            await uncancelled(episode.unwind())

    @abstractmethod
    async def run_episode(self, episode: Episode) -> VerifyResponse:
        """The steps of one episode; the result has a reward.

        Raises:
            EpisodeFailure: The episode failed.
        """


def _noted(result: VerifyResponse, failures: Sequence[EpisodeFailure]) -> VerifyResponse:
    """A result after which something failed, and that says so; the table tells whether its reward stands."""
    for failure in failures:
        if not POLICIES[failure.kind].reward_valid:
            raise failure
    told = {"cleanup_failures": [failure.message for failure in failures]} if failures else {}
    return result.model_copy(update=told)


def graded(verdict: VerifyResponse, server: str) -> VerifyResponse:
    """A verifier's outcome that has a reward.

    Raises:
        EpisodeFailure: `verifier_crashed`: the verifier itself failed. Servers of NeMo Gym 0.7 say so with a reward
            of 0 and the fields `_ng_failure_*` beside it.
    """
    more = verdict.model_extra or {}
    kind = verdict.failure_kind or more.get("_ng_failure_class")
    if kind is None and verdict.reward is not None:
        return verdict
    reason = verdict.failure_reason or more.get("_ng_failure_message") or kind or "the verifier gave no reward"
    raise EpisodeFailure("verifier_crashed", f"{server}: {reason}", stage="verification")


def kind_of(error: ServerError, stage: Stage) -> str:
    """The kind of failure that a server's refusal means at a stage of the episode."""
    if error.status in (408, 425, 429, 502, 503, 504):
        return "server_unreachable"
    if error.status in (401, 403, 404) or (error.status == 422 and stage == "seed"):
        return "configuration"
    if error.status == 409 and stage in ("agent", "verification"):
        return "session_lost"  # it was open: the server has started again since
    if error.status >= 500:
        return {"agent": "agent_error", "verification": "verifier_crashed"}.get(stage, "internal")
    return "internal"
