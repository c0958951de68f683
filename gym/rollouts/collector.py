"""Dispatches episodes and records what comes of them, one row as soon as each is finished.

Attempts stream from the task file, at most `concurrency` at once, and never more on an environment server than it
admits: a run queues here rather than failing admission there. A failed try is recorded and tried again while its kind
says that this can help. Failures are counted apart; no failure is ever a reward.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gym.capture.budget import PolicyCalls
from gym.failures import POLICIES, RUN_BUDGET_EXHAUSTED, EpisodeFailure
from gym.report.metrics import Scores
from gym.rollouts import lost as lost_tries
from gym.rollouts import outcomes, policy_calls
from gym.rollouts.identity import Plan as Owed
from gym.rollouts.job import Job
from gym.rollouts.journal import Journal, LoadedFailures
from gym.rollouts.watch import Watch
from gym.sandbox.waiting import uncancelled
from gym.servers.base import ServerError
from gym.servers.client import Client
from gym.servers.contract import (
    EXTRAS_HEADER,
    EpisodeId,
    Failure,
    RunRequest,
    RunResponse,
    ServerRef,
    Task,
    VerifyResponse,
)
from gym.servers.tries import Tries
from gym.tasks.collate import TaskFile

FAILURES_IN_A_ROW = 3
"""Failures of one kind in a row, which no retry can help, after which a run stops."""
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0


class Progress(Protocol):
    """Is told what happens during a run."""

    def started(self) -> None:
        """An episode began."""

    def finished(self, job: Job, reward: float, mean_reward: float | None) -> None:
        """An attempt has its reward."""

    def failed(self, job: Job, failure: Failure, will_retry: bool) -> None:
        """A try failed."""


class Redact(Protocol):
    """Takes secrets out of what is stored."""

    def json(self, data: Any) -> Any:
        """The data without secrets."""

    def text(self, text: str) -> str:
        """The text without secrets."""


@dataclass
class Collector:
    """Runs the attempts that are owed.

    Attributes:
        routes: Environment server of each taskset.
        limits: Episodes that an environment server admits at once, where it has a limit.
        patience: Seconds after which an environment server must have answered, where it has such a bound.
        policies: Model server that the agent of each taskset asks, where that is known.
        watch: Looks after the servers, where this run has not started them.
        stop_reason: Why dispatching stopped early; None where it did not.
    """

    client: Client
    tasks: TaskFile
    owed: Owed
    rollouts: Journal
    failures: Journal
    earlier: LoadedFailures
    scores: Scores
    progress: Progress
    redact: Redact
    routes: Mapping[str, str]
    limits: Mapping[str, int]
    patience: Mapping[str, float] = field(default_factory=dict)
    policies: Mapping[str, ServerRef] = field(default_factory=dict)
    watch: Watch | None = None
    max_attempts: int = 3
    fail_fast: bool = False
    stop_reason: str | None = None
    _name: str = field(default_factory=lambda: uuid.uuid4().hex)
    _in_a_row: list[str] = field(default_factory=list)
    _workers: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, concurrency: int) -> None:
        """Runs everything that is owed; returns early after `stop`."""
        admission = {name: asyncio.Semaphore(limit) for name, limit in self.limits.items()}
        jobs = self._jobs()
        self._workers = [
            asyncio.create_task(self._work(jobs, admission)) for _ in range(min(concurrency, max(1, len(self.owed))))
        ]
        try:
            outcomes = await asyncio.gather(*self._workers, return_exceptions=True)
        except asyncio.CancelledError:
            self._cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            raise
        errors = [item for item in outcomes if isinstance(item, Exception)]
        if errors:
            raise errors[0]

    def stop(self, reason: str, *, cancel: bool) -> None:
        """Stops dispatching; `cancel` also ends the episodes that run (their cleanup still happens)."""
        self.stop_reason = self.stop_reason or reason
        if cancel:
            self._cancel()

    def _cancel(self) -> None:
        for worker in self._workers:
            worker.cancel()

    def _jobs(self) -> Iterator[Job]:
        for row in self.tasks:
            name = row["task_id"]
            taskset, task_id = name["taskset"], name["task_id"]
            digest = self.tasks.digests[taskset, task_id]
            for attempt in self.owed.attempts(taskset, task_id):
                yield Job(row, taskset, task_id, attempt, digest)

    async def _work(self, jobs: Iterator[Job], admission: Mapping[str, asyncio.Semaphore]) -> None:
        for job in jobs:
            if self.stop_reason is not None:
                return
            gate = admission.get(self.routes[job.taskset])
            try:
                if gate is None:
                    await self._attempt(job)
                else:
                    async with gate:
                        await self._attempt(job)
            except Exception as error:
                # The journal cannot be written: nothing that follows could be kept.
                self.stop(str(error), cancel=True)
                raise

    async def _attempt(self, job: Job) -> None:
        before = self.earlier.rows.get((job.taskset, job.task_id, job.attempt))
        lost: list[int] = []
        try:
            if before is not None and before.run is not None:
                await self._close_lost(job, before.run, [before.try_])
            await self._try(job, before.try_ + 1 if before else 0, lost)
        finally:
            # No other try follows that would.
            await uncancelled(self._close_lost(job, self._name, lost))

    async def _close_lost(self, job: Job, run: str, numbers: Sequence[int]) -> None:
        await lost_tries.close(self.client, self._server(job), job.rollout_id, job.task, run, numbers)

    async def _try(self, job: Job, first: int, lost: list[int]) -> None:
        """Tries an attempt until it has a reward, or no other try can help. Tries that are lost are added to `lost`."""
        for number in range(first, first + self.max_attempts):
            if self.stop_reason is not None:
                return
            self.progress.started()
            started = time.time()
            try:
                answer = await self._run(job, number, lost)
            except asyncio.CancelledError:
                await uncancelled(self._count_cancelled(job, number))
                raise
            if answer.failure is not None and await self._is_without_servers(answer.failure):
                return
            seconds = round(time.time() - started, 6)
            timings = {**answer.timings, "total": seconds}
            calls = await self._counted(job, number)
            answer = outcomes.settled(answer, calls)
            if answer.result is not None:
                self._keep(job, number, answer.result, timings, started, calls)
                return
            assert answer.failure is not None
            last = answer.failure.terminal or number == first + self.max_attempts - 1
            self._keep_failure(job, number, answer, timings, started, calls, last=last)
            if lost_tries.is_lost(answer.failure):
                lost.append(number)
            if last:
                return
            await asyncio.sleep(_backoff(number - first))

    async def _counted(self, job: Job, number: int) -> PolicyCalls | None:
        episode = EpisodeId(rollout_id=job.rollout_id, attempt=number)
        return await policy_calls.counted(self.client, self.policies.get(job.taskset), episode.key, self._name)

    async def _count_cancelled(self, job: Job, number: int) -> None:
        """What a try used that is cut off. It has no row: it is still owed."""
        if (calls := await self._counted(job, number)) is not None:
            self.scores.used(policy_calls.fields({}, calls)["usage"])

    async def _is_without_servers(self, failure: Failure) -> bool:
        """Whether the servers are gone, and the run stops: what fails with them is not recorded, and is still owed."""
        if self.watch is None or failure.terminal:
            return False
        reason = await self.watch.gone()
        if reason is not None:
            self.stop(reason, cancel=True)
        return reason is not None

    async def _run(self, job: Job, number: int, lost: Sequence[int]) -> RunResponse:
        episode = EpisodeId(rollout_id=job.rollout_id, attempt=number)
        task, server = job.task, self._server(job)
        headers = {EXTRAS_HEADER: "1", **Tries(self._name, lost).to_headers()}
        patience = self.patience.get(server.name)
        try:
            request = RunRequest(episode_id=episode, task=task)
            asking = self.client.post(server, "/run", request, RunResponse, headers=headers, timeout_seconds=patience)
            answer = (await asking).body
        except TimeoutError:
            assert patience is not None
            message = f"no answer from {server.name} within {patience:g} s, in which it should end every episode"
            return _failed(episode, task, "server_unreachable", message, False)
        except EpisodeFailure as failure:
            return _failed(episode, task, failure.kind, failure.message, failure.terminal)
        except ServerError as error:
            message = f"{server.name} answered {error.status}: {error.detail}"
            if error.status not in (401, 403):
                return _failed(episode, task, "internal", message, True)
            message += "; this run has the token of other servers: stop these, and start them again"
            return _failed(episode, task, "configuration", message, True)
        if (answer.result is None) == (answer.failure is None):
            return _failed(episode, task, "malformed_answer", f"{server.name} gave neither result nor failure", True)
        if answer.result is not None and answer.result.reward is None:
            return _failed(episode, task, "malformed_answer", f"{server.name} gave a result without a reward", True)
        return answer

    def _server(self, job: Job) -> ServerRef:
        return ServerRef(type="environment_servers", name=self.routes[job.taskset])

    def _keep(
        self,
        job: Job,
        number: int,
        result: VerifyResponse,
        timings: dict[str, float],
        started: float,
        calls: PolicyCalls | None,
    ) -> None:
        assert result.reward is not None
        row = _outcome(result) | {"reward": result.reward}
        # A verifier may call its own fields what it likes; whose row it is, it does not say.
        identity = self._identity(job, number)
        taken = {name: row.pop(name) for name in identity if name in row}
        row = {**identity, **row} | ({"verdict": taken} if taken else {})
        row |= policy_calls.fields(row["usage"], calls)
        row |= {"timings": timings, "started_at": round(started, 3)}
        self.rollouts.append(self.redact.json(row))
        self.scores.add(job.taskset, job.task_id, job.attempt, result.reward)
        self.scores.used(row["usage"], differs="usage_differences" in row)
        self._in_a_row.clear()
        self.progress.finished(job, result.reward, self.scores.mean_reward)

    def _keep_failure(
        self,
        job: Job,
        number: int,
        answer: RunResponse,
        timings: dict[str, float],
        started: float,
        calls: PolicyCalls | None,
        *,
        last: bool,
    ) -> None:
        assert answer.failure is not None
        kind = answer.failure.failure_kind or "internal"
        reason = self.redact.text(answer.failure.failure_reason)
        failure = answer.failure.model_copy(update={"failure_reason": reason})
        row = {
            **self._identity(job, number),
            "stage": failure.stage,
            "kind": kind,
            "message": failure.failure_reason,
            "terminal": failure.terminal,
            "timings": timings,
            "started_at": round(started, 3),
        }
        if lost_tries.is_lost(failure):
            row["run"] = self._name
        if answer.agent_observations is not None:
            row["ng_agent_observations"] = answer.agent_observations
        if failure.partial_response is not None:
            row["partial_response"] = failure.partial_response.model_dump(mode="json", exclude_unset=True)
        if calls is not None:
            row |= policy_calls.fields({}, calls)
            self.scores.used(row["usage"])
        self.failures.append(self.redact.json(row))
        self.progress.failed(job, failure, will_retry=not last)
        if last:
            self.scores.fail(kind, job.taskset)
            self._stop_if_hopeless(kind, failure)

    def _stop_if_hopeless(self, kind: str, failure: Failure) -> None:
        if kind == RUN_BUDGET_EXHAUSTED:
            self.stop(failure.failure_reason, cancel=False)
        elif self.fail_fast:
            self.stop(f"fail_fast: {kind}: {failure.failure_reason}", cancel=True)
        if kind not in POLICIES or not POLICIES[kind].stops_run:
            self._in_a_row.clear()
            return
        self._in_a_row.append(kind)
        if self._in_a_row[-FAILURES_IN_A_ROW:] == [kind] * FAILURES_IN_A_ROW:
            what = f"{FAILURES_IN_A_ROW} episodes in a row failed with {kind}, which no retry can help"
            self.stop(f"{what}: {failure.failure_reason}", cancel=True)

    def _identity(self, job: Job, number: int) -> dict[str, Any]:
        return {
            "rollout_id": job.rollout_id,
            "taskset": job.taskset,
            "task_id": job.task_id,
            "attempt": job.attempt,
            "try": number,
            "task_digest": job.digest,
        }


def _outcome(result: VerifyResponse) -> dict[str, Any]:
    """What a rollout's row says beside its identity: status, response, usage, and the verifier's own fields."""
    response = result.response
    status = "limit" if response is not None and response.status == "incomplete" else "ok"
    usage = response.usage.model_dump(mode="json", exclude_none=True) if response and response.usage else {}
    fields = result.model_dump(mode="json", exclude_unset=True, exclude={"reward", "response"})
    counters = (fields.get("ng_agent_observations") or {}).get("counters") or {}
    if isinstance(counters.get("model_calls"), int):
        usage["model_calls"] = counters["model_calls"]
    return {
        **{key: value for key, value in fields.items() if value is not None},
        "status": status,
        "response": response.model_dump(mode="json", exclude_unset=True) if response else {},
        "usage": usage,
    }


def _failed(episode: EpisodeId, task: Task, kind: str, message: str, terminal: bool) -> RunResponse:
    failure = Failure(failure_reason=message[:2000], terminal=terminal, failure_kind=kind)
    return RunResponse(episode_id=episode, task_id=task.task_id, failure=failure)


def _backoff(number: int) -> float:
    """Seconds before the next try: doubling, with half of it random so that many tries do not come at once."""
    longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0**number)
    return longest * (0.5 + random.random() / 2)
