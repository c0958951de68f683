"""The benchmarks that need no image, as a user prepares and runs them: right answers earn 1, wrong ones 0."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.commands import gym
from tests.conftest import needs

Row = dict[str, Any]


def prepared(name: str, cwd: Path, *more: str) -> list[Row]:
    run = gym("eval", "prepare", "--benchmark", name, *more, cwd=cwd, module="gym")
    offline = "cannot be downloaded" in run.stderr or "no virtual environment" in run.stderr
    needs("a package index", present=not offline, reason=run.stderr.strip())
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in (cwd / f"benchmarks/{name}/data/benchmark.jsonl").read_text().splitlines()]


def rewards(name: str, cwd: Path, rows: list[Row], answer: Callable[[Row], str], *more: str) -> list[float]:
    """Runs a benchmark with a model that says what it is told to."""
    script = cwd / f"{name}.jsonl"
    lines = (
        {"task": row["task_id"], "match": row["responses_create_params"]["input"], "turns": [[{"say": answer(row)}]]}
        for row in rows
    )
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = gym(f"benchmark={name}", f"policy_script={script}", "output=out", "overwrite=true", *more, cwd=cwd)
    assert run.returncode == 0, run.stdout + run.stderr
    return [json.loads(line)["reward"] for line in (cwd / "out/rollouts.jsonl").read_text().splitlines()]


def test_every_solution_of_human_eval_passes(tmp_path: Path) -> None:
    rows = prepared("human_eval", tmp_path)
    gold = rewards(
        "human_eval", tmp_path, rows, lambda row: f"```python\n{row['prompt']}{row['canonical_solution']}```"
    )
    assert gold == [1.0] * 164
    assert rewards("human_eval", tmp_path, rows[:3], lambda _: "    pass", "limit=3") == [0.0] * 3


def test_right_answers_of_reasoning_gym_earn_1(tmp_path: Path) -> None:
    chosen = ("reasoning_gym_size=3", "reasoning_gym_generators=[chain_sum,gsm_symbolic,spell_backward]")
    rows = prepared("reasoning_gym", tmp_path, *chosen)
    assert [row["task_id"] for row in rows[:4]] == ["chain_sum-0", "chain_sum-1", "chain_sum-2", "gsm_symbolic-0"]
    right = rewards("reasoning_gym", tmp_path, rows, lambda row: f"<answer>{row['entry']['answer']}</answer>", *chosen)
    assert right == [1.0] * 9
    assert max(rewards("reasoning_gym", tmp_path, rows, lambda _: "No idea.", *chosen)) < 1
    for wrong, said in (
        ("reasoning_gym_generators=[chain_sun]", "no generator chain_sun; did you mean `chain_sum`?"),
        ("reasoning_gym_size=0", "reasoning_gym_size  is 0, and no whole number from 1"),
    ):
        run = gym("eval", "prepare", "--benchmark", "reasoning_gym", wrong, cwd=tmp_path, module="gym")
        assert said in run.stderr
        assert "Traceback" not in run.stderr


CSV = "id,question,A,B,C,answer\nsum,What is 2 + 2?,3,4,5,B\n,Which is red?,blood,,grass,blood\n"
JSON_LINES = '{"question": "Is it?", "choices": ["yes", "no"], "answer": 1}\n'


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("q.csv", CSV, [("sum", ["3", "4", "5"], "B"), ("question-3", ["blood", "grass"], "A")]),
        ("q.jsonl", JSON_LINES, [("question-1", ["yes", "no"], "B")]),
    ],
)
def test_questions_of_a_file(tmp_path: Path, file: str, text: str, expected: list[Any]) -> None:
    (tmp_path / file).write_text(text)
    rows = prepared("mcqa", tmp_path, f"mcqa_file={file}")
    assert [(row["task_id"], row["choices"], row["answer"]) for row in rows] == expected
    right = rewards("mcqa", tmp_path, rows, lambda row: f"Answer: {row['answer']}", f"mcqa_file={file}")
    assert right == [1.0] * len(rows)


def test_mistakes_in_a_file_are_told_with_their_lines(tmp_path: Path) -> None:
    lines = ['{"question": "Is it?", "choices": ["yes"], "answer": 0}', "{", '{"question": "?", "choices": {"A": 1}}']
    lines += ['{"question": "Is it?", "choices": ["yes", "no"], "answer": "maybe"}']
    lines += ['{"question": " ", "choices": ["a", "b"], "answer": 0}', '{"question": "?", "choices": ["a", "a"]}']
    lines += ['{"id": "x", "question": "?", "choices": ["a", "b"], "answer": 0}'] * 2
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    run = gym("eval", "prepare", "--benchmark", "mcqa", "mcqa_file=q.jsonl", cwd=tmp_path, module="gym")
    assert run.returncode == 2
    told = run.stderr.splitlines()
    assert [line.partition("  ")[0] for line in told[:7]] == [f"q.jsonl:{number}" for number in (1, 2, 3, 4, 5, 6, 8)]
    words = ("no JSON: Expecting", "no `question`", "the choice `a` stands twice", "is that of line 7 too")
    assert [word for line, word in zip((1, 4, 5, 6), words, strict=True) if word not in told[line]] == []
    assert "`answer` is 'maybe', which is no letter, no index and no text of its 2 choices" in told[3]
    assert "Traceback" not in run.stderr
