"""The embedded model: a script that plays recorded turns. No LLM, no network, no key."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar

from pydantic import Field

from gym.apis.estimate import characters, tokens_of
from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse, Usage, new_id, texts_of
from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.responses_api_models.embedded_model.aliases import played
from gym.responses_api_models.embedded_model.script import Part, Script, Turn, is_of_model, load
from gym.servers.base import Call
from gym.servers.model import ModelServer, ModelServerConfig

REMEMBERED_TEXTS = 1024

log = logging.getLogger(__name__)


class EmbeddedModelConfig(ModelServerConfig):
    """Settings of `embedded_model`."""

    script: str | None = Field(
        None, description="Script to play: a JSONL file, relative to the working directory or the installed project."
    )
    model: str = Field("embedded-script", description="Model name that responses show.")


class EmbeddedModel(ModelServer[EmbeddedModelConfig]):
    """A scripted policy. It is a script and no LLM: it finds the task's part of the script and plays its next turn.

    It keeps nothing between requests: the next turn is the number of model turns that the input already has.
    """

    config_type = EmbeddedModelConfig
    scripted: ClassVar[bool] = True

    @property
    def model(self) -> str:
        """The name that responses show."""
        return self.config.model

    async def start(self) -> None:
        """Reads the script.

        Raises:
            UserError: There is no script, or it cannot be played.
        """
        from gym.composition.roots import find

        if self.config.script is None:
            key = f"{self.name}.responses_api_models.embedded_model.script"
            raise UserError(Problem("embedded_model has no script to play", "set it, or `policy_script`", key=key))
        self.script: Script = load(find(self.config.script))
        self._find: Callable[[str], Part | None] = lru_cache(REMEMBERED_TEXTS)(self.script.find)
        log.info("%s plays the script %s: recorded turns, no LLM", self.name, self.script.path)

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:  # noqa: ARG002
        """The next turn of the task's part of the script.

        Raises:
            EpisodeFailure: `script_exhausted`: the script has nothing for this task, or no further turn.
        """
        items = request.items()
        part = self._part(items)
        number = count_turns(items)
        if number >= len(part.turns):
            where = f"{self.script.path}:{part.line}"
            message = f"the script {where} has no turn {number + 1} for task {part.task}: it has {len(part.turns)}"
            raise EpisodeFailure("script_exhausted", message)
        turn = part.turns[number]
        usage = turn.usage or estimated_usage(request.instructions, items, turn)
        output = played(json.loads(turn.items), request)
        return ResponsesResponse(id=new_id("resp"), model=self.model, status="completed", output=output, usage=usage)

    def _part(self, items: list[Item]) -> Part:
        text = "\n".join(text for item in items if item.get("role") == "user" for text in texts_of(item))
        part = self._find(text)
        if part is None:
            begin = " ".join(text[:80].split())
            message = f"no line of the script {self.script.path} matches the task that begins `{begin}`"
            raise EpisodeFailure("script_exhausted", message)
        return part


def count_turns(items: list[Item]) -> int:
    """The model turns in an input: maximal runs of what a model says."""
    turns, within = 0, False
    for item in items:
        of_model = is_of_model(item)
        turns += of_model and not within
        within = of_model
    return turns


def estimated_usage(instructions: str | None, items: list[Item], turn: Turn) -> Usage:
    """Tokens as characters / 4, rounded up: an estimate, the same every time. Tool schemas are not counted."""
    input_tokens = tokens_of(len(instructions or "") + characters(items))
    output_tokens = tokens_of(turn.characters)
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens)
