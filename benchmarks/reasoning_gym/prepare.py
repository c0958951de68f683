"""Generates the rows of reasoning-gym."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gym.errors import Problem, UserError, did_you_mean
from gym.tasks.rows import write_rows

PATH = Path("benchmarks/reasoning_gym/data/benchmark.jsonl")
ASK = "{}\n\nThink it through, then give nothing but the final answer between <answer> and </answer>.\n"
NO_GENERATOR = frozenset({"composite"})
"""Puts others together, and generates nothing by itself."""


def prepare(generators: list[str], size: int, seed: int) -> str:
    """Writes the rows; returns the path of their file.

    Args:
        generators: Names, or `all`: every generator whose answers can be checked after a way through JSON.
        size: Tasks of each.
        seed: The same seed gives the same tasks.
    """
    for name, value, least in (("size", size, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < least:
            raise UserError(Problem(f"is {value!r}, and no whole number from {least}", key=f"reasoning_gym_{name}"))
    library, known = importlib.import_module("reasoning_gym"), _known()
    everything = generators == ["all"]
    if unknown := [name for name in generators if name not in known] if not everything else []:
        fix = "; ".join(did_you_mean(name, known) or f"there are {len(known)}, such as chain_sum" for name in unknown)
        raise UserError(Problem(f"reasoning-gym has no generator {', '.join(unknown)}", fix, key="generators"))
    rows, unsound = [], []
    for name in sorted(known) if everything else generators:
        made = list(_rows(library, name, size, seed))
        sound = all(_is_sound(library, row) for row in made)
        rows += made if sound else []
        unsound += [] if sound else [name]
    if unsound and not everything:
        what = f"the scorers of {', '.join(unsound)} refuse their own answers as JSON has them"
        raise UserError(Problem(what, "leave these generators out", key="generators"))
    write_rows(PATH, rows)
    return str(PATH)


def _known() -> frozenset[str]:
    return frozenset(importlib.import_module("reasoning_gym.factory").DATASETS) - NO_GENERATOR


def _rows(library: Any, name: str, size: int, seed: int) -> Iterator[dict[str, Any]]:
    generator = library.create_dataset(name, size=size, seed=seed)
    for index in range(size):
        entry = json.loads(json.dumps(generator[index], default=str))
        ask = {"input": ASK.format(entry["question"])}
        yield {"task_id": f"{name}-{index}", "dataset": name, "entry": entry, "responses_create_params": ask}


def _is_sound(library: Any, row: dict[str, Any]) -> bool:
    """Whether the right answer earns 1; some generators have none that is unique, and say so."""
    answer = row["entry"]["answer"]
    return answer is None or float(library.get_score_answer_fn(row["dataset"])(answer, row["entry"])) == 1.0
