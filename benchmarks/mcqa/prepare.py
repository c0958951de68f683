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
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def prepare(file: str) -> str:
    """Writes the rows; returns the path of their file.

    Args:
        file: A .jsonl file, or a .csv file with a header.
    """
    source = Path(file)
    if not source.is_file():
        raise UserError(Problem(f"no such file: {file}", "set mcqa_file=FILE to a .jsonl or .csv file of questions"))
    rows, problems = [], []
    for number, given in _csv(source) if source.suffix == ".csv" else _json_lines(source):
        try:
            rows.append(row(number, given))
        except ValueError as error:
            fix = "a row has `question`, `choices` (a list, or A, B, ...) and `answer`"
            problems.append(Problem(str(error), fix, f"{file}:{number}"))
    if problems:
        raise UserError(problems)
    write_rows(PATH, rows)
    return str(PATH)


def row(number: int, given: Any) -> dict[str, Any]:
    """A question as a row.

    Raises:
        ValueError: Something is missing, or does not fit.
    """
    if not isinstance(given, dict) or not isinstance(given.get("question"), str):
        raise ValueError("no `question`")
    choices = _choices(given)
    answer = _letter(given.get("answer"), choices)
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return {
        "task_id": str(given.get("id") or given.get("task_id") or f"question-{number}"),
        "choices": choices,
        "answer": answer,
        "responses_create_params": {"input": ASK.format(given["question"].strip(), listed)},
    }


def _choices(given: dict[str, Any]) -> list[str]:
    choices = given.get("choices")
    if isinstance(choices, dict):
        choices = [choices[letter] for letter in LETTERS if letter in choices]
    if choices is None:
        choices = [given[letter] for letter in LETTERS if given.get(letter) not in (None, "")]
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        raise ValueError("no `choices`: from 2 to 26 of them")
    return [str(choice) for choice in choices]


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
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None


def _csv(source: Path) -> Iterator[tuple[int, Any]]:
    with source.open(encoding="utf-8-sig", newline="") as opened:
        reader = csv.DictReader(opened)
        for given in reader:
            yield reader.line_num, given
