"""How a streamed answer ends: complete, failed, or broken off.

Its events decide that, never its bytes: a model may write `[DONE]` or `message_stop` into its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gym.apis.errors import ProviderFailure, failure_hidden, failure_shown
from gym.apis.sse import Parser, decoded

BROKEN_OFF = "the stream ended before the answer did"


class Ending:
    """Reads the events of one stream.

    Args:
        ends: Whether an event is the end of an answer, in the stream's API.

    Attributes:
        complete: The answer has come to its end.
        failure: The error that the stream tells its client.
        malformed: The first event that is none.
    """

    def __init__(self, ends: Callable[[Mapping[str, Any]], bool]) -> None:
        self.complete = False
        self.failure: ProviderFailure | None = None
        self.malformed: ProviderFailure | None = None
        self._ends = ends
        self._parser = Parser()

    def feed(self, piece: bytes) -> None:
        """Takes the next bytes.

        Raises:
            ProviderFailure: Clients would take the failure in these bytes for an answer: they must not see them.
        """
        for sent in self._parser.feed(piece):
            if sent.data == "[DONE]":
                if not (self.complete or self.failure):
                    raise self.malformed or ProviderFailure("provider_error", BROKEN_OFF)
                continue
            try:
                said = decoded(sent.data)
            except ValueError:
                said = None
            if not isinstance(said, dict):
                what = f"an event is no JSON object: {sent.data[:200]}"
                self.malformed = self.malformed or ProviderFailure("malformed_answer", what)
            elif (shown := failure_shown(said, sent.event)) is not None:
                self.failure = self.failure or shown
            elif (hidden := failure_hidden(said)) is not None:
                raise hidden
            elif self._ends(said):
                self.complete = True
