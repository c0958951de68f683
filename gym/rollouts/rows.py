"""The rows of `rollouts.jsonl` and `failures.jsonl` as they are read back: without response bodies, one at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, Strict, TypeAdapter, ValidationError
from pydantic import StrictBool as Flag
from pydantic import StrictStr as Text

from gym.errors import Problem, UserError

TaskKey: TypeAlias = tuple[str, str]
"""Taskset and task id."""
Key: TypeAlias = tuple[str, str, int]
"""Taskset, task id and attempt: what a rollout is a result of."""

Repeats: TypeAlias = int | Mapping[str, int]
"""Attempts a task: one number for all, or one for each taskset."""

MOST_PROBLEMS = 20


def _numbers(usage: object) -> object:
    if not isinstance(usage, Mapping):
        return {} if usage is None else usage
    return {name: n for name, n in usage.items() if isinstance(n, int | float) and not isinstance(n, bool)}


Count: TypeAlias = Annotated[int, Strict(), Field(ge=0)]
Reward: TypeAlias = Annotated[float, Strict(), AllowInfNan(False)]
Usage: TypeAlias = Annotated[dict[str, int | float], BeforeValidator(_numbers)]


@dataclass(frozen=True, slots=True)
class _Result:
    """What both kinds of row say about where they belong.

    Attributes:
        attempt: The n-th repeat of the task, from 0.
        try_: The n-th try of this attempt, from 0 (`try` in the file).
        task_digest: Content digest of the task when the try was made.
        line: Line in the file, from 1.
    """

    rollout_id: Text
    taskset: Annotated[Text, AfterValidator(sys.intern)]
    task_id: Text
    attempt: Count
    try_: Annotated[Count, Field(alias="try")]
    task_digest: Text
    line: int = field(compare=False)

    @property
    def key(self) -> Key:
        """What this is a result of."""
        return self.taskset, self.task_id, self.attempt


@dataclass(frozen=True, slots=True)
class Row(_Result):
    """A finished rollout. `limit` is a policy that exhausted its budget and was still graded.

    Attributes:
        differs: Harness and model server do not say the same of its usage (`usage_differences` in the file).
    """

    reward: Reward
    status: Literal["ok", "limit"]
    usage: Usage = field(default_factory=dict)
    differs: Annotated[bool, BeforeValidator(bool), Field(alias="usage_differences")] = False


@dataclass(frozen=True, slots=True)
class Failure(_Result):
    """A failed try; never a reward.

    Attributes:
        run: Of a lost try, the name of the run when it asked for it; what it left open is named by it.
    """

    stage: Text | None
    kind: Text
    message: Text
    terminal: Flag
    run: Text | None = None
    usage: Usage = field(default_factory=dict)


def repeats_of(repeats: Repeats, taskset: str) -> int:
    """Attempts that each task of a taskset gets; 0 for a taskset that is not in the run."""
    return repeats if isinstance(repeats, int) else repeats.get(taskset, 0)


def parse_object(raw: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, or None. No cut-off beginning of an object is itself an object."""
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


AnyRow = TypeVar("AnyRow", Row, Failure)


class Reader(Generic[AnyRow]):
    """The well-formed rows of a file, one at a time; a file that does not exist has none.

    Attributes:
        torn_at: Byte offset of a torn last line, once the file was read; None where the file ends well.
        problems: Malformed lines so far; `finish` raises them.
    """

    def __init__(self, path: Path, kind: type[AnyRow]) -> None:
        self.path = path
        self.torn_at: int | None = None
        self.problems: list[Problem] = []
        self._adapter: TypeAdapter[AnyRow] = TypeAdapter(kind)

    def __iter__(self) -> Iterator[AnyRow]:
        offset = 0
        for number, raw in enumerate(self._lines(), 1):
            row = self._row(number, offset, raw) if raw.strip() else None
            if row is not None:
                yield row
            if len(self.problems) >= MOST_PROBLEMS:
                self.finish()
            offset += len(raw)

    def finish(self) -> None:
        """Raise what was wrong with the file.

        Raises:
            UserError: One problem a malformed line.
        """
        if self.problems:
            raise UserError(self.problems)

    def notes(self) -> list[str]:
        """What the user should know about the file's end."""
        return [] if self.torn_at is None else [f"1 torn last line dropped (at byte {self.torn_at})"]

    def _lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                yield from file
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(Problem(f"cannot read the file: {error.strerror}", where=str(self.path))) from error

    def _row(self, number: int, offset: int, raw: bytes) -> AnyRow | None:
        value = parse_object(raw)
        if value is None and not raw.endswith(b"\n"):
            self.torn_at = offset
        elif value is None:
            self._malformed(number, "not a JSON object")
        else:
            value["line"] = number
            try:
                return self._adapter.validate_python(value)
            except ValidationError as error:
                for item in error.errors(include_url=False, include_input=False):
                    self._malformed(number, item["msg"], key=".".join(map(str, item["loc"])))
        return None

    def _malformed(self, number: int, what: str, key: str = "") -> None:
        fix = "repair or remove the line, or use a new output directory"
        where = f"{self.path}:{number}"
        self.problems.append(Problem(f"malformed row: {what}", fix=fix, where=where, key=key, order=(0, number)))
