"""The recorded calls of a run, rollout by rollout, and where a new request differs from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path as File
from typing import Any

from gym.capture.reader import CallFile, Head, ModelCall, files
from gym.errors import UserError
from gym.failures import EpisodeFailure

SHOWN_CHARACTERS = 120
MOST_NAMED = 5
_TRY = re.compile(r"-a(\d+)$")

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Ignored:
    """What may differ between two requests.

    Attributes:
        places: Paths, step by step; `*` stands for any key or place.
        texts: What is taken out of every text before it is compared.
    """

    places: tuple[tuple[str, ...], ...] = ()
    texts: re.Pattern[str] | None = None

    @classmethod
    def of(cls, places: Sequence[str], texts: Sequence[str]) -> Ignored:
        """Paths such as `input.*.id` or `input[*].id`, and regular expressions."""
        steps = (tuple(re.findall(r"[^.\[\]]+", place)) for place in places)
        return cls(tuple(steps), re.compile("|".join(f"(?:{text})" for text in texts)) if texts else None)

    def has(self, path: Path) -> bool:
        """Whether a place is one of them."""
        return any(_fits(path, place) for place in self.places)

    def same(self, recorded: Any, now: Any) -> bool:
        """Whether two plain values are equal but for what may differ."""
        if self.texts is not None and isinstance(recorded, str) and isinstance(now, str):
            return self.texts.sub("", recorded) == self.texts.sub("", now)
        return bool(recorded == now) and isinstance(recorded, bool) == isinstance(now, bool)


class Missing:
    """What one of two requests does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING, EXACT = Missing(), Ignored()


@dataclass(frozen=True)
class Difference:
    """A place where two requests differ."""

    path: Path
    recorded: Any
    now: Any

    def __str__(self) -> str:
        recorded, now = _shown_pair(self.recorded, self.now)
        return f"at {shown(self.path)}: recorded {recorded}, now {now}"


def shown(path: Path) -> str:
    """`input[3].content[0].text`; the whole body for an empty path."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".") or "the body"


def differences(recorded: Any, now: Any, ignore: Ignored = EXACT, path: Path = ()) -> Iterator[Difference]:
    """Where two JSON values differ, in the order of the recorded one."""
    if ignore.has(path):
        return
    if isinstance(recorded, dict) and isinstance(now, dict):
        pairs: Iterator[tuple[str | int, Any, Any]] = (
            (key, recorded.get(key, MISSING), now.get(key, MISSING))
            for key in [*recorded, *(key for key in now if key not in recorded)]
        )
    elif isinstance(recorded, list) and isinstance(now, list):
        longest = range(max(len(recorded), len(now)))
        pairs = ((at, _at(recorded, at), _at(now, at)) for at in longest)
    else:
        if not ignore.same(recorded, now):
            yield Difference(path, recorded, now)
        return
    for key, old, new in pairs:
        yield from differences(old, new, ignore, (*path, key))


def _at(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else MISSING


def _fits(path: Path, one: tuple[str, ...]) -> bool:
    return len(path) == len(one) and all(fnmatchcase(str(step), part) for step, part in zip(path, one, strict=True))


def _shown_pair(recorded: Any, now: Any) -> tuple[str, str]:
    """Both values in short; of long ones, the part where they begin to differ."""
    texts = [str(value) if value is MISSING else json.dumps(value, ensure_ascii=False) for value in (recorded, now)]
    if max(map(len, texts)) <= SHOWN_CHARACTERS:
        return texts[0], texts[1]
    same = next((at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(0, same - SHOWN_CHARACTERS // 3)
    first, second = (_cut(text, start) for text in texts)
    return first, second


def _cut(text: str, start: int) -> str:
    end = start + SHOWN_CHARACTERS
    return ("..." if start else "") + text[start:end] + ("..." if len(text) > end else "")


def _told(found: Sequence[Difference]) -> str:
    """The first difference, and the names of a few more, so that what changes each time can be ignored together."""
    more = [shown(one.path) for one in found[1 : 1 + MOST_NAMED]]
    also = f"; also at {', '.join(more)}" if more else ""
    return f"{found[0]}{also}{', ...' if len(found) > 1 + MOST_NAMED else ''}"


@dataclass
class _Session:
    number_of_try: int
    began: float
    calls: list[tuple[CallFile, Head]] = field(default_factory=list)


@dataclass
class Tape:
    """The calls of one rollout, or its counts of tokens, in the order in which they began; each is played once.

    Attributes:
        calls: Where each is.
    """

    rollout: str
    calls: list[tuple[CallFile, Head]]
    _unplayed: dict[int, None] = field(init=False)

    def __post_init__(self) -> None:
        self._unplayed = dict.fromkeys(range(len(self.calls)))

    @property
    def unplayed(self) -> int:
        """How many were not asked for."""
        return len(self._unplayed)

    def play(self, path: str, request: Any, ignore: Ignored) -> ModelCall:
        """The recorded call of a request: the next one, or a later one where a harness makes calls side by side.

        Raises:
            EpisodeFailure: `replay_mismatch`, with the first difference to the next recorded call, or what of the
                record cannot be read.
        """
        next_one: str | None = None
        for number in self._unplayed:
            file, head = self.calls[number]
            try:
                call = file.at(head)
            except UserError as error:
                raise EpisodeFailure("replay_mismatch", f"replay of {self.rollout}: {error}") from error
            found = list(islice(differences(call.request, request, ignore), MOST_NAMED + 2))
            if call.path == path and not found:
                del self._unplayed[number]
                return call
            next_one = next_one or (f"it was {call.path}, now {path}" if call.path != path else _told(found))
        done = len(self.calls) - len(self._unplayed)
        what = f"one more call than the {len(self.calls)} that were recorded"
        if next_one is not None:
            what = f"call {done + 1} differs from the recorded one {next_one}"
        raise EpisodeFailure("replay_mismatch", f"replay of {self.rollout}: {what}")


_Sessions = dict[str, dict[tuple[str | None, str | None], _Session]]


class Recording:
    """All calls that one model server of a run recorded.

    Of a rollout that was tried several times, or interrupted and continued, the last try is played.
    """

    def __init__(self, run: File, instance: str) -> None:
        self.run = run
        self.model = ""
        self._files = [CallFile(path) for path in files(run)]
        self._sessions: _Sessions = {}
        self._counts: _Sessions = {}
        for file in self._files:
            for sessions, heads in ((self._sessions, file.heads), (self._counts, file.counts)):
                for head in heads:
                    if head[2]["instance"] == instance:
                        self.model = self.model or head[2]["model"] or ""
                        _add(sessions, file, head)

    def __len__(self) -> int:
        """The number of rollouts that can be played."""
        return len(self._sessions)

    def tape(self, rollout: str | None) -> Tape:
        """What a rollout is played, from its beginning.

        Raises:
            EpisodeFailure: `replay_mismatch`: nothing of this rollout was recorded.
        """
        name = base_of(rollout)
        sessions = self._sessions.get(name)
        if not sessions:
            what = f"{self.run} has no calls of " + (f"the rollout {name}" if name else "callers without a session")
            raise EpisodeFailure("replay_mismatch", what)
        return _last(name, sessions)

    def counts(self, rollout: str | None) -> Tape | None:
        """The counts of tokens that a rollout is played; None where none was recorded."""
        name = base_of(rollout)
        sessions = self._counts.get(name)
        return _last(name, sessions) if sessions else None

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()


def _add(sessions: _Sessions, file: CallFile, head: Head) -> None:
    rollout, session, started = (head[2][name] for name in ("rollout", "session", "started_at"))
    tried = _TRY.search(rollout or "")
    fresh = _Session(int(tried[1]) if tried else 0, started)
    found = sessions.setdefault(base_of(rollout), {}).setdefault((rollout, session), fresh)
    found.began = min(found.began, started)
    found.calls.append((file, head))


def _last(rollout: str, sessions: dict[tuple[str | None, str | None], _Session]) -> Tape:
    last = max(sessions.values(), key=lambda session: (session.number_of_try, session.began))
    return Tape(rollout, sorted(last.calls, key=lambda call: call[1][2]["started_at"]))


def base_of(rollout: str | None) -> str:
    """The rollout without the number of its try; empty for none."""
    return _TRY.sub("", rollout or "")
