"""The tries of a rollout, as the run that asks for them knows them: a later one closes what a lost one has left open.

A run sends its own name with each try, and which earlier tries never came to an end that it saw: the environment server
died, or the connection broke. The ids of a try's sessions follow from that name, so that any process can tell them.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gym.servers.contract import RUN_HEADER, EpisodeId

LOST_HEADER = "x-gym-lost-tries"


@dataclass(frozen=True)
class Tries:
    """What a run says of itself when it asks for an episode.

    Attributes:
        run: Its name, random; None for a caller that has none.
        lost: Numbers of the earlier tries whose end it has not seen.
    """

    run: str | None = None
    lost: Sequence[int] = ()

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Tries:
        """As the caller sent it; what is unreadable is left out."""
        run = headers.get(RUN_HEADER)
        found = re.findall(r"\b\d{1,9}\b", headers.get(LOST_HEADER, ""))
        return cls(run, sorted(set(map(int, found))) if run else ())

    def to_headers(self) -> dict[str, str]:
        """For the environment server."""
        named = {} if self.run is None else {RUN_HEADER: self.run}
        return named | ({LOST_HEADER: ",".join(map(str, self.lost))} if self.lost else {})

    def lost_before(self, episode: EpisodeId) -> list[EpisodeId]:
        """The lost tries that came before this one."""
        return [episode.model_copy(update={"attempt": number}) for number in self.lost if number < episode.attempt]

    def session_name(self, episode: EpisodeId) -> str:
        """What the ids of a try's sessions end in: the same again for the same run, and of its own without one."""
        if self.run is None:
            return uuid.uuid4().hex
        return hashlib.sha256(f"{self.run} {episode.key}".encode()).hexdigest()[:32]
