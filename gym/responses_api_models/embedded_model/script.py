"""The script of the embedded model: which turns are played for which task.

JSON Lines, one task a line: `{"task": ID, "match": TEXT, "turns": [TURN, ...]}`. A turn is a list of Responses items,
or a recorded response (`output`, and `usage` where it is known). Two short forms: `{"call": NAME, "arguments": {...}}`
and `{"say": TEXT}`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gym.apis.estimate import characters
from gym.apis.responses import Item, Usage
from gym.errors import Problem, UserError
from gym.servers.base import describe

SHORT_FORMS = {"call": {"call", "arguments", "call_id"}, "say": {"say"}}


class RecordedTurn(BaseModel):
    """A turn as it was recorded; further fields of a response are ignored."""

    output: list[Item]
    usage: Usage | None = None

    @field_validator("usage")
    @classmethod
    def _total(cls, usage: Usage | None) -> Usage | None:
        if usage is None or usage.total_tokens:
            return usage
        return usage.model_copy(update={"total_tokens": usage.input_tokens + usage.output_tokens})


class ScriptLine(BaseModel):
    """One line of a script."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(min_length=1, description="Name of the task, for messages.")
    match: str = Field(min_length=1, description="Text that the user messages of this task contain.")
    turns: list[list[Item] | RecordedTurn] = Field(min_length=1, description="What the model says, turn by turn.")


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn ready to be played: its items as JSON, their characters, and the recorded usage."""

    items: str
    characters: int
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Part:
    """What is played for one task. `line` is its place in the script."""

    line: int
    task: str
    match: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Script:
    """The parts of a script, the longest match first."""

    path: Path
    parts: tuple[Part, ...]

    def find(self, user_text: str) -> Part | None:
        """The part whose match occurs in the text; the longest match wins."""
        return next((part for part in self.parts if part.match in user_text), None)


def load(path: Path) -> Script:
    """Reads a script.

    Raises:
        UserError: Lines that cannot be played, all of them, as `file:line`.
    """
    parts: list[Part] = []
    problems: list[Problem] = []
    lines_of: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(Problem(f"the script is not UTF-8: {error}", where=str(path))) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            part = _part(number, line)
            if lines_of.setdefault(part.match, number) != number:
                raise ValueError(f"the same `match` as in line {lines_of[part.match]}")
            parts.append(part)
        except ValueError as error:
            what = describe(error) if isinstance(error, ValidationError) else str(error)
            problems.append(Problem(what, where=f"{path}:{number}", order=(0, number)))
    if not parts and not problems:
        problems = [Problem("the script has no lines", where=str(path))]
    if problems:
        raise UserError(problems)
    return Script(path, tuple(sorted(parts, key=lambda part: -len(part.match))))


def _part(number: int, line: str) -> Part:
    try:
        decoded = json.loads(line)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    given = ScriptLine.model_validate(decoded)
    turns = tuple(_turn(at, turn) for at, turn in enumerate(given.turns, 1))
    return Part(number, given.task, given.match, turns)


def _turn(at: int, turn: list[Item] | RecordedTurn) -> Turn:
    given, usage = (turn, None) if isinstance(turn, list) else (turn.output, turn.usage)
    if not given:
        raise ValueError(f"turn {at} is empty")
    items = [_item(item, f"{at}_{position}", f"turn {at}, item {position}") for position, item in enumerate(given, 1)]
    return Turn(json.dumps(items), characters(items), usage)


def _item(item: Item, suffix: str, where: str) -> Item:
    """The item in full. Ids come from its place, so that a script plays the same way every time."""
    for form, fields in SHORT_FORMS.items():
        if form in item and not fields.issuperset(item):
            raise ValueError(f"{where}: `{form}` goes with {', '.join(sorted(fields - {form})) or 'nothing else'}")
    if "say" in item:
        item = {"type": "message", "role": "assistant", "content": item["say"]}
    if "call" in item:
        named = {"type": "function_call", "name": item["call"], "arguments": item.get("arguments", {})}
        item = named | ({"call_id": item["call_id"]} if "call_id" in item else {})
    if not is_of_model(item):
        raise ValueError(f"{where}: neither `call`, `say`, nor a function_call, reasoning or assistant message item")
    return COMPLETE[item.get("type") or "message"](item, suffix, where)


def _call(item: Item, suffix: str, where: str) -> Item:
    if not isinstance(item.get("name"), str):
        raise ValueError(f"{where}: the call has no name")
    arguments = item.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"call_id": f"call_{suffix}", "status": "completed", **item, "arguments": text}


def _message(item: Item, suffix: str, where: str) -> Item:
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text", "text": content, "annotations": []}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ValueError(f"{where}: the message has neither a text nor a list of parts")
    return {"id": f"msg_{suffix}", "status": "completed", **item, "type": "message", "content": content}


def _reasoning(item: Item, suffix: str, where: str) -> Item:  # noqa: ARG001
    return {"id": f"rs_{suffix}", "summary": [], **item}


def _custom_call(item: Item, suffix: str, where: str) -> Item:
    if not isinstance(item.get("name"), str) or not isinstance(item.get("input"), str):
        raise ValueError(f"{where}: a custom call has a name and an input, both texts")
    return {"call_id": f"call_{suffix}", "status": "completed", **item}


COMPLETE = {"function_call": _call, "custom_tool_call": _custom_call, "message": _message, "reasoning": _reasoning}
OF_MODEL = ("function_call", "custom_tool_call", "reasoning")


def is_of_model(item: Item) -> bool:
    """True for what a model says: calls, reasoning, assistant messages."""
    kind = item.get("type") or "message"
    return kind in OF_MODEL or (kind == "message" and item.get("role") == "assistant")
