"""Environment servers whose `/run` also takes flat rows, and answers them flat.

A flat row holds the request to the agent (`responses_create_params`), the task's own fields and, under `_ng_*` keys,
whose rollout it is. Its answer is the row with the verdict's fields, or with `_ng_failure_*` keys.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ValidationError

from gym.failures import EpisodeFailure
from gym.servers.base import Call, Route, ServerError, describe
from gym.servers.contract import Open, RunRequest, RunResponse, VerifyResponse
from gym.servers.environment import EnvironmentConfigT, EnvironmentServer
from gym.tasks import rows

ROLLOUT, TASK, REPEAT, ATTEMPT = "_ng_rollout_id", "_ng_task_index", "_ng_rollout_index", "_ng_attempt_index"
FAILED = "environment_server_failed"


class RunBody(Open):
    """The body of `/run`: an episode request, or a flat row."""


class FlatRowServer(EnvironmentServer[EnvironmentConfigT]):
    """An environment server for callers that may send either form."""

    accepts_flat_rows: ClassVar[bool] = True

    def build_routes(self) -> list[Route]:
        """Both forms at `/run`."""
        others = [route for route in super().build_routes() if route.path != "/run"]
        return [*others, Route("/run", self.run_either, RunBody, Any)]

    async def run_either(self, body: RunBody, call: Call) -> Any:
        """Runs one episode, answered in the form that it was asked for in."""
        given = body.model_extra or {}
        if not {"episode_id", "task"} <= given.keys():
            return await self.run_flat(given, call)
        try:
            request = RunRequest.model_validate(given)
        except ValidationError as error:
            raise ServerError(422, describe(error)) from error
        return await self.run(request, call)

    @abstractmethod
    async def run_flat(self, row: Mapping[str, Any], call: Call) -> Any:
        """Runs the episode of a flat row and answers flat."""


def to_request(row: Mapping[str, Any], taskset: str) -> RunRequest:
    """A flat row as an episode of a taskset.

    Raises:
        ServerError: 422 for a row that names no rollout, or does not fit.
    """
    rollout = row.get(ROLLOUT)
    if rollout is None and TASK in row:
        rollout = f"{row[TASK]}-{row.get(REPEAT, 0)}"
    if rollout is None:
        raise ServerError(422, f"a flat row names its rollout: `{ROLLOUT}`, or `{TASK}` and `{REPEAT}`")
    episode = {"rollout_id": rollout, "attempt": row.get(ATTEMPT) or 0}
    try:
        return RunRequest.model_validate({"episode_id": episode, "task": rows.wrap(row, taskset, row.get(TASK, 0))})
    except ValidationError as error:
        raise ServerError(422, describe(error)) from error


def to_row(request: RunRequest) -> dict[str, Any]:
    """An episode as a flat row."""
    given = request.task.task_input
    params = given.responses_create_params.model_dump(mode="json", exclude_unset=True)
    identity = {ROLLOUT: request.episode_id.rollout_id, ATTEMPT: request.episode_id.attempt}
    return {**given.task_data, "responses_create_params": params, **identity}


def flat_answer(row: Mapping[str, Any], answer: RunResponse, agent: str) -> dict[str, Any]:
    """An episode's outcome as the answer to a flat row."""
    ref = {"agent_ref": {"name": agent}}
    failure = answer.failure
    if failure is None:
        kept = {key: value for key, value in row.items() if key not in rows.NOT_TASK_FIELDS and key[:4] != "_ng_"}
        verdict = answer.result.model_dump(mode="json", exclude_unset=True) if answer.result else {}
        return {**kept, **verdict, **ref}
    said = failure.model_dump(mode="json", exclude_unset=True)
    flat = {
        "_ng_failure_class": FAILED,
        "_ng_failure_terminal": failure.terminal,
        "_ng_failure_message": failure.failure_reason,
        "_ng_failure_stage": failure.stage,
        "failure_kind": failure.failure_kind,
        **ref,
    }
    if failure.partial_response is not None:
        flat["_ng_failure_partial_response"] = said["partial_response"]
    return flat


def to_verdict(answer: Mapping[str, Any], sent: Mapping[str, Any], server: str) -> VerifyResponse:
    """The answer of an old `/run` as a verdict, without what only repeats the row.

    Raises:
        EpisodeFailure: `agent_error`: the answer says that the run failed. `malformed_answer`.
    """
    failed = answer.get("_ng_failure_class")
    if failed is not None and not str(failed).startswith("judge"):
        stage = answer.get("_ng_failure_stage")
        raise EpisodeFailure("agent_error", f"{server}: {answer.get('_ng_failure_message') or failed}", stage=stage)
    kept = {key: value for key, value in answer.items() if key not in sent or sent[key] != value}
    kept.pop("responses_create_params", None)
    try:
        return VerifyResponse.model_validate(kept)
    except ValidationError as error:
        message = f"{server}/run answered with a malformed row: {describe(error)}"
        raise EpisodeFailure("malformed_answer", message, stage="agent") from error
