"""Reads the calls that the model servers of a run recorded, with their requests whole again.

for call in calls(Path("results/onboarding/2031-02-03_04-05-06")):
    print(call.rollout, call.request["input"][-1], call.answer_json())
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from gym.apis.upstreams.api import ApiName
from gym.capture.store import FOLDER
from gym.capture.usage import Tokens
from gym.errors import Problem, UserError

RESTORE = "restore the file: calls need the messages of the lines before them"
KEPT_VALUES = 8192
"""Messages of a file that are kept in memory; others are read again where they occur again."""


@dataclass(frozen=True)
class ModelCall:
    """One call, as the model server saw it.

    Attributes:
        instance: The model server.
        run: The run that it belonged to, by the name that it gives itself. None where nobody named it.
        rollout: Whose call it was: `EpisodeId.key`. None where the caller had no session, a person for example.
        session: Agent session. None where the caller did not say.
        activation: 1-based number of the activation within the session.
        invocation: What a harness sends as `x-gym-invocation-id`.
        path: Path of the API, such as `/v1/responses`.
        stream: Whether the answer was asked for as a stream.
        model: The model that was asked.
        request: The body, as decoded JSON. Its messages are shared between calls: change none.
        answer: The bytes that the client got, without keep-alives; empty where the call failed at once.
        status: HTTP status. 499: the client left before the end. Of a stream that broke off, what the failure means.
        error: What went wrong: `kind`, `message`, and what the provider said. None for a call that went well.
        started_at: Unix time.
        first_byte_seconds: Until the first byte of a stream. None where there was none.
        seconds: Until the last byte.
        tokens: As far as they are known.
        cost_usd: None where it is unknown.
        cost_source: `provider`, `table`, or `free` for a model that costs nothing by its nature.
        token_ids: Token ids and log probabilities where the answer's API has no place for them; else they are in it.
        attempts: Requests to the provider. None where the server does not say.
    """

    instance: str
    api: ApiName
    path: str
    request: dict[str, Any]
    answer: bytes
    status: int
    started_at: float
    seconds: float
    stream: bool = False
    model: str = ""
    run: str | None = None
    rollout: str | None = None
    session: str | None = None
    activation: int | None = None
    invocation: str | None = None
    error: dict[str, Any] | None = None
    first_byte_seconds: float | None = None
    tokens: Tokens = field(default_factory=Tokens)
    cost_usd: float | None = None
    cost_source: str | None = None
    attempts: int | None = None
    token_ids: dict[str, Any] = field(default_factory=dict)

    def answer_json(self) -> Any:
        """The answer as decoded JSON; of a stream, the decoded data of its events, without `[DONE]`."""
        if not self.stream:
            return json.loads(self.answer) if self.answer else None
        data = [line[5:] for line in self.answer.splitlines() if line.startswith(b"data:")]
        return [json.loads(text) for text in data if text.strip() != b"[DONE]"]


_FIELDS = frozenset(item.name for item in fields(ModelCall)) - {"request", "answer", "tokens"}


@dataclass(frozen=True, slots=True)
class _History:
    after: str | None
    first: int
    messages: tuple[str, ...]


Head = tuple[int, int, dict[str, Any]]
"""Where a line is, its length, and what tells whose it is."""


class CallFile:
    """One file of calls. Holds where its messages are, and reads them when they are asked for.

    Attributes:
        heads: Where its calls are, and whose; `counts`: the same for counts of tokens.

    Raises:
        UserError: The file cannot be read, or has a line that is no record. A torn last line is no record yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._histories: dict[str, _History] = {}
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise UserError(Problem(f"cannot read the file: {error.strerror}", where=str(path))) from error
        self._value = lru_cache(KEPT_VALUES)(self._read)
        self.heads: list[Head] = []
        self.counts: list[Head] = []
        try:
            self._index()
        except UserError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> CallFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ModelCall]:
        return (self.call(at) for at in range(len(self.heads)))

    def call(self, number: int) -> ModelCall:
        """The n-th call, from 0, in the order in which they ended.

        Raises:
            UserError: Its line is no record, or a line that it needs is missing.
        """
        return self.at(self.heads[number])

    def at(self, head: Head) -> ModelCall:
        """The call, or the count, of a head. Raises as `call`."""
        start, length, _ = head
        try:
            return self._call(start, length)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            what = f"{error.args[0]} is missing" if isinstance(error, LookupError) else str(error)
            raise UserError(Problem(f"cannot read a model call: {what}", RESTORE, self._where(start))) from error

    def _call(self, start: int, length: int) -> ModelCall:
        said = self._line(start, length)
        request = dict(said["request"])
        for name, ref in said["refs"].items():
            request[name] = self._value(ref["message"]) if "message" in ref else self._list(ref["history"])
        answer = said.get("answer", "")
        raw = base64.b64decode(said["answer_base64"]) if "answer_base64" in said else answer.encode()
        given = {name: value for name, value in said.items() if name in _FIELDS}
        return ModelCall(request=request, answer=raw, tokens=Tokens(**said.get("tokens", {})), **given)

    def _index(self) -> None:
        """Notes where everything is; of calls and counts, also what tells whose they are."""
        offset = 0
        for number, raw in enumerate(self._file, 1):
            start, offset = offset, offset + len(raw)
            try:
                said = json.loads(raw)
                kind = said["kind"]
                if kind == "message":
                    self._places[said["id"]] = (start, len(raw))
                elif kind == "history":
                    parent, first = said.get("after"), said.get("first", 0)
                    self._histories[said["id"]] = _History(parent, first, tuple(said["messages"]))
                elif kind in ("call", "count"):
                    head = {name: said.get(name) for name in ("instance", "rollout", "session", "started_at", "model")}
                    (self.heads if kind == "call" else self.counts).append((start, len(raw), head))
            except (ValueError, KeyError, TypeError) as error:
                if not raw.endswith(b"\n"):
                    return
                where = f"{self.path}:{number}"
                raise UserError(Problem("malformed record of a model call", RESTORE, where)) from error

    def _list(self, name: str) -> list[Any]:
        parts: list[Iterable[str]] = []
        at: str | None = name
        length: int | None = None
        while at is not None:
            if at not in self._histories:
                raise LookupError(f"the history {at}")
            history = self._histories[at]
            own = history.messages if length is None else history.messages[: max(0, length - history.first)]
            parts.append(own)
            length = history.first if length is None else min(length, history.first)
            at = history.after
        return [self._value(message) for own in reversed(parts) for message in own]

    def _read(self, name: str) -> Any:
        if name not in self._places:
            raise LookupError(f"the message {name}")
        return self._line(*self._places[name])["value"]

    def _where(self, offset: int) -> str:
        self._file.seek(0)
        return f"{self.path}:{self._file.read(offset).count(10) + 1}"

    def _line(self, start: int, length: int) -> dict[str, Any]:
        self._file.seek(start)
        found: dict[str, Any] = json.loads(self._file.read(length))
        return found


def files(run: Path) -> list[Path]:
    """The files of calls in a run's directory, those of each instance in the order in which they were begun."""

    def order(path: Path) -> tuple[str, int]:
        name, _, number = path.stem.rpartition(".")
        return (name, int(number)) if name and number.isdigit() else (path.stem, 1)

    return sorted((run / FOLDER).glob("*.jsonl"), key=order)


def _files_of(run: Path) -> list[Path]:
    if not (run / FOLDER).is_dir():
        raise UserError(Problem(f"no recorded model calls in {run}", "name the directory of a run"))
    return files(run)


def calls(run: Path) -> Iterator[ModelCall]:
    """All calls of a run, file by file, in the order in which they ended.

    Raises:
        UserError: Nothing is recorded there, a file cannot be read, or it has a line that is no record.
    """
    for path in _files_of(run):
        with CallFile(path) as file:
            yield from file


def of_rollout(run: Path, rollout: str) -> Iterator[ModelCall]:
    """The calls of one rollout, by `EpisodeId.key`. Raises as `calls`."""
    for path in _files_of(run):
        with CallFile(path) as file:
            for number, (_, _, head) in enumerate(file.heads):
                if head["rollout"] == rollout:
                    yield file.call(number)


class Calls:
    """The calls of a run, to be asked for one rollout after another: its files are read through once.

    Raises:
        UserError: As `calls`; a run that recorded nothing has no calls.
    """

    def __init__(self, run: Path) -> None:
        self._open = ExitStack()
        self._places: dict[str | None, list[tuple[CallFile, int]]] = {}
        with self._open:
            for path in files(run):
                file = self._open.enter_context(CallFile(path))
                for number, (_, _, head) in enumerate(file.heads):
                    self._places.setdefault(head["rollout"], []).append((file, number))
            self._open = self._open.pop_all()

    def of(self, rollout: str) -> list[ModelCall]:
        """The calls of a rollout, by `EpisodeId.key`, in the order in which they began. Raises as `CallFile.call`."""
        found = (file.call(number) for file, number in self._places.get(rollout, ()))
        return sorted(found, key=lambda call: call.started_at)

    def close(self) -> None:
        """Closes the files."""
        self._open.close()

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
