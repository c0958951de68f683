"""Tasks of reasoning-gym's generators, graded by the scorer of each generator.

The package is in requirements.txt: where this environment lacks it, the server gets a process with one that has it.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from typing import Any

from pydantic import Field

from gym.failures import EpisodeFailure
from gym.servers.contract import VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningTask(TaskData):
    """One generated task."""

    dataset: str = Field(description="Name of the generator.")
    entry: dict[str, Any] = Field(description="What it generated: question, answer, metadata.")


class ReasoningGym(ResourcesServer[ResourcesServerConfig, ReasoningTask]):
    """Rewards what the generator's scorer says, from 0 to 1; most know only these two."""

    task_type = ReasoningTask

    async def verify(self, session: Session[ReasoningTask], request: VerifyRequest) -> VerifyResponse:
        """Scores the last `<answer>` of the response, or the whole text where there is none."""
        found = ANSWER.findall(request.response.output_text)
        answer = (found[-1] if found else request.response.output_text).strip()
        score, problem = await asyncio.to_thread(score_of, session.task.dataset, session.task.entry, answer)
        said = {"reward": score, "answered": answer[:500], "scorer_problem": problem}
        return VerifyResponse.model_validate(said)


def score_of(dataset: str, entry: dict[str, Any], answer: str) -> tuple[float, str | None]:
    """The score of an answer, and what its scorer stumbled over: that is then a wrong answer.

    Raises:
        EpisodeFailure: `malformed_task`: there is no such generator.
    """
    library = importlib.import_module("reasoning_gym")
    try:
        scorer = library.get_score_answer_fn(dataset)
    except ValueError as error:
        raise EpisodeFailure("malformed_task", f"reasoning-gym has no generator `{dataset}`: {error}") from error
    try:
        return min(1.0, max(0.0, float(scorer(answer, entry)))), None
    except Exception as error:
        return 0.0, f"{type(error).__name__}: {error}"[:300]
