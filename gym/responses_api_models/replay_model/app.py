"""A policy that plays a recorded run back, byte for byte: no LLM, no network, no key."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from gym.apis.clients.api import ClientApi
from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.capture.exchange import CLIENT_LEFT, note_token_ids, note_tokens
from gym.capture.failure import failure_of
from gym.capture.reader import ModelCall, files
from gym.capture.store import FOLDER, encoded
from gym.errors import Problem, UserError
from gym.responses_api_models.replay_model.tape import MOST_NAMED, Ignored, Recording, Tape
from gym.servers.base import Call
from gym.servers.model import COUNT_TOKENS, RESPONSES, Body, ModelServer, ModelServerConfig

_PLACE = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[[^.\[\]]+\])*")
_EVENTS = re.compile(rb".+?(?:\n\n|\Z)", re.DOTALL)
log = logging.getLogger(__name__)


class ReplayModelConfig(ModelServerConfig):
    """Settings of `replay_model`."""

    replay_from: str | None = Field(
        None, validate_default=True, description="Run directory whose recorded calls are played."
    )
    instance: str | None = Field(
        None, description="Model server of that run whose calls are played; null: the one of the same name."
    )
    ignore: list[str] = Field(
        default_factory=list,
        description="Places of a request that may differ from the recorded one, such as `metadata.user_id` or "
        "`input.*.id`.",
    )

    ignore_text: list[str] = Field(
        default_factory=list,
        description="Regular expressions of what may differ within a text, such as a harness's folder.",
    )

    @field_validator("ignore")
    @classmethod
    def _places(cls, given: list[str]) -> list[str]:
        for text in given:
            if _PLACE.fullmatch(text) is None:
                raise ValueError(f"`{text}` is no place such as `metadata.user_id` or `input.*.id`")
        return given

    @field_validator("ignore_text")
    @classmethod
    def _readable(cls, given: list[str]) -> list[str]:
        for text in given:
            try:
                re.compile(text)
            except re.error as error:
                raise ValueError(f"`{text}` is no regular expression: {error}") from error
        return given

    @field_validator("replay_from")
    @classmethod
    def _has_calls(cls, given: str | None) -> str | None:
        if given is None:
            raise ValueError("name the run directory to play back: replay_from=results/...")
        if not files(Path(given)):
            raise ValueError(f"no recorded model calls in {given}/{FOLDER}")
        return given


class ReplayModel(ModelServer[ReplayModelConfig]):
    """Answers each request of a rollout with what was answered to the same request when it was recorded.

    Rollouts are matched by their name: taskset, task and attempt. A request that differs fails, and nothing is made up.
    """

    config_type = ReplayModelConfig
    costs_nothing: ClassVar[bool] = True

    @property
    def model(self) -> str:
        """The recorded model's name."""
        return self._recording.model or self.name

    async def start(self) -> None:
        """Reads where the calls are.

        Raises:
            UserError: A file of the recording is malformed, or the recording has no calls of this model server.
        """
        self._recording = Recording(Path(self.config.replay_from or ""), self.config.instance or self.name)
        if not len(self._recording):
            self._recording.close()
            what = f"{self._recording.run}/{FOLDER} has no calls of {self.config.instance or self.name}"
            raise UserError(Problem(what, "name a run that has, or set `instance`", key=f"{self.name}.replay_from"))
        self._ignore = Ignored.of(self.config.ignore, self.config.ignore_text)
        self._tapes: dict[tuple[str | None, str | None], Tape] = {}
        self._counts: dict[tuple[str | None, str | None], Tape | None] = {}
        log.info("%s plays back %d rollouts of %s", self.name, len(self._recording), self._recording.run)

    async def stop(self) -> None:
        """Closes the recording, and says what of the rollouts that were played nobody asked for."""
        self._recording.close()
        rests = [tape for tape in self._tapes.values() if tape.unplayed]
        if rests:
            told = [f"{tape.unplayed} of the {len(tape.calls)} of {tape.rollout}" for tape in rests[:MOST_NAMED]]
            more = ", ..." if len(rests) > MOST_NAMED else ""
            log.warning("%s: recorded calls were not asked for: %s%s", self.name, ", ".join(told), more)

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        """The recorded response.

        Raises:
            EpisodeFailure: `replay_mismatch`: no such request was recorded next; or what failed then.
        """
        body = {name: getattr(request, name) for name in request.model_fields_set}
        return ResponsesResponse.model_validate(json.loads(_whole(self._recorded(RESPONSES, body, call))))

    async def answered(self, api: ClientApi, body: Body, call: Call) -> bytes:
        """The recorded bytes. Raises as `respond`."""
        return _whole(self._recorded(api, body, call))

    async def counted(self, body: Body, call: Call) -> Body:
        """The recorded count; an estimate for a rollout of which none was recorded. Raises as `respond`."""
        whose = call.run, call.rollout
        if whose not in self._counts:
            self._counts[whose] = self._recording.counts(call.rollout)
        if (tape := self._counts[whose]) is None:
            return await super().counted(body, call)
        counted: Body = json.loads(_whole(self._play(tape, COUNT_TOKENS, body)))
        return counted

    async def streamed(self, api: ClientApi, body: Body, call: Call) -> AsyncGenerator[bytes, None]:
        """The recorded bytes, event by event, those of a failure included. Raises as `respond`."""
        recorded = self._recorded(api, body, call)
        for event in _EVENTS.findall(recorded.answer):
            yield event
        if recorded.error is not None and (not recorded.answer or recorded.status == CLIENT_LEFT):
            raise failure_of(recorded.error)

    def _recorded(self, api: ClientApi, body: Mapping[str, Any], call: Call) -> ModelCall:
        whose = call.run, call.rollout
        if whose not in self._tapes:
            self._tapes[whose] = self._recording.tape(call.rollout)
        recorded = self._play(self._tapes[whose], api.path, body)
        note_tokens(recorded.tokens)
        note_token_ids(recorded.token_ids)
        return recorded

    def _play(self, tape: Tape, path: str, body: Mapping[str, Any]) -> ModelCall:
        # The recorded request has no secrets either.
        request = json.loads(self.context.mask(encoded(body).decode()))
        return tape.play(path, request, self._ignore)


def _whole(recorded: ModelCall) -> bytes:
    if recorded.error is not None:
        raise failure_of(recorded.error)
    return recorded.answer
