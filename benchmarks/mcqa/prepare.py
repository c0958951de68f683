"""Makes the rows of multiple-choice questions from a file of the user."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gym.errors import Problem, UserError
from gym.tasks.rows import write_rows

PATH = Path("benchmarks/mcqa/data/benchmark.jsonl")
ASK = "{}\n\n{}\n\nThink it through, then end with one line: `Answer: X`, where X is the letter of your choice.\n"
FIX = "a row has `question`, `choices` (a list, or A, B, ...) and `answer`"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def prepare(file: str) -> str:
    """Writes the rows; returns the path of their file.

    Args:
        file: A .jsonl file, or a .csv file with a header.
    """
    source = Path(file)
    if not source.is_file():
        raise UserError(Problem(f"no such file: {file}", "set mcqa_file=FILE to a .jsonl or .csv file of questions"))
    rows, problems, lines = [], [], dict[str, int]()
    try:
        for number, given in _csv(source) if source.suffix == ".csv" else _json_lines(source):
            try:
                made = row(number, given)
                if (first := lines.setdefault(made["task_id"], number)) != number:
                    raise ValueError(f"the id `{made['task_id']}` is that of line {first} too")
                rows.append(made)
            except ValueError as error:
                problems.append(Problem(str(error), FIX, f"{file}:{number}"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(Problem(f"cannot be read: {error}", "save it as UTF-8", file)) from error
    if not (rows or problems):
        problems.append(Problem("has no questions", FIX, file))
    if problems:
        raise UserError(problems)
    write_rows(PATH, rows)
    return str(PATH)


def row(number: int, given: Any) -> dict[str, Any]:
    """A question as a row.

    Raises:
        ValueError: Something is missing, or does not fit.
    """
    if isinstance(given, ValueError):
        raise ValueError(f"no JSON: {given}")
    if not isinstance(given, dict) or not str(given.get("question") or "").strip():
        raise ValueError("no `question`")
    choices = _choices(given)
    answer = _letter(given.get("answer"), choices)
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return {
        "task_id": str(given.get("id") or given.get("task_id") or f"question-{number}"),
        "choices": choices,
        "answer": answer,
        "responses_create_params": {"input": ASK.format(str(given["question"]).strip(), listed)},
    }


def _choices(given: dict[str, Any]) -> list[str]:
    choices = given.get("choices")
    if isinstance(choices, dict):
        choices = [choices[letter] for letter in LETTERS if letter in choices]
    if choices is None:
        choices = [given[letter] for letter in LETTERS if given.get(letter) not in (None, "")]
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        raise ValueError("no `choices`: from 2 to 26 of them")
    texts = [str(choice) for choice in choices]
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise ValueError(f"the choice `{twice}` stands twice")
    return texts


def _letter(answer: Any, choices: list[str]) -> str:
    """The letter of the answer, which is given as a letter, as a 0-based index or as the text of a choice."""
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return LETTERS[answer]
    text = str(answer).strip()
    if len(text) == 1 and text.upper() in LETTERS[: len(choices)]:
        return text.upper()
    if choices.count(text) == 1:
        return LETTERS[choices.index(text)]
    raise ValueError(f"`answer` is {answer!r}, which is no letter, no index and no text of its {len(choices)} choices")


def _json_lines(source: Path) -> Iterator[tuple[int, Any]]:
    # Strings of JSON may have other characters that count as line ends.
    for number, line in enumerate(source.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                yield number, error


def _csv(source: Path) -> Iterator[tuple[int, Any]]:
    with source.open(encoding="utf-8-sig", newline="") as opened:
        reader = csv.DictReader(opened)
        for given in reader:
            yield reader.line_num, given
