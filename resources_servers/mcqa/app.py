"""Multiple-choice questions: the letter of the answer decides."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from gym.servers.contract import VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData

MARKS = r"[\s*_`$({\[]*"
"""What people and models put around a letter."""
SAID = re.compile(rf"answer\s*(?:is|:|=)?{MARKS}(?:is|:)?{MARKS}([A-Z])(?![A-Za-z])", re.IGNORECASE)
BOXED = re.compile(r"\\boxed\{\s*(?:\\text\{)?\s*\(?([A-Z])\)?\s*\}", re.IGNORECASE)
ALONE = re.compile(rf"{MARKS}([A-Z])[\s*_`$)}}\].:]*", re.IGNORECASE)
LEADING = re.compile(r"\(?([A-Z])[).:]\s")


class McqaTask(TaskData):
    """One question."""

    choices: list[str] = Field(min_length=2, max_length=26, description="The choices, in order: A, B, ...")
    answer: str = Field(pattern="^[A-Z]$", description="Letter of the right choice.")

    @model_validator(mode="after")
    def _among(self) -> McqaTask:
        if ord(self.answer) - ord("A") >= len(self.choices):
            raise ValueError(f"the answer is {self.answer}, but there are {len(self.choices)} choices")
        return self


class Mcqa(ResourcesServer[ResourcesServerConfig, McqaTask]):
    """Rewards 1.0 for the right letter, 0.0 for another one or none."""

    task_type = McqaTask

    async def verify(self, session: Session[McqaTask], request: VerifyRequest) -> VerifyResponse:
        """Compares the letter of the answer."""
        letter = answered(request.response.output_text, session.task.choices)
        reward = float(letter == session.task.answer)
        return VerifyResponse.model_validate({"reward": reward, "answered": letter, "expected": session.task.answer})


def answered(text: str, choices: list[str]) -> str | None:
    """The letter that a text answers with, or None.

    In this order: what stands last after `answer` or in `\\boxed{}`; the last line, if it is a letter or begins with
    one; the last line, if it is the text of a choice.
    """
    letters = {chr(ord("A") + index) for index in range(len(choices))}
    named = [match for pattern in (SAID, BOXED) for match in pattern.finditer(text)]
    for match in sorted(named, key=lambda match: match.start(), reverse=True):
        if match[1].upper() in letters:
            return match[1].upper()
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    alone = ALONE.fullmatch(last) or LEADING.match(last)
    if alone is not None and alone[1].upper() in letters:
        return alone[1].upper()
    same = [letter for letter, choice in zip(sorted(letters), choices, strict=True) if choice.strip() == last]
    return same[0] if len(same) == 1 else None
