"""`gym list pairings`: which agent goes with which benchmark, by composing and planning each pair."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Literal

from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.composition import groups
from gym.composition.compose import compose
from gym.errors import EXIT_OK, UserError
from gym.planning.plan import plan
from gym.planning.resolve import resolve


@dataclass(frozen=True)
class Pairing:
    """One pair. `?` means that it could not be composed, so nothing is known."""

    agent: str
    benchmark: str
    verdict: Literal["ok", "refused", "?"]
    reason: str = ""


def run(arguments: Arguments) -> int:
    """Prints the matrix, and below it the reasons.

    Raises:
        UserError: The overrides are wrong, whatever the pair.
    """
    overrides = arguments.overrides()
    if problems := compose(overrides).problems:
        raise UserError(problems)
    agents, benchmarks = list(groups.options("agent")), list(groups.options("benchmark"))
    found = _all(agents, benchmarks, overrides)
    if arguments.json:
        print_json([asdict(item) for item in found])
        return EXIT_OK
    cells = {(item.agent, item.benchmark): item.verdict for item in found}
    rows = [[agent, *(cells[agent, benchmark] for benchmark in benchmarks)] for agent in agents]
    print_table(["agent", *benchmarks], rows)
    reasons = [[item.agent, item.benchmark, item.verdict, item.reason] for item in found if item.verdict != "ok"]
    if reasons:
        print()
        print_table(["agent", "benchmark", "verdict", "why"], reasons)
    return EXIT_OK


def _all(agents: Sequence[str], benchmarks: Sequence[str], overrides: Sequence[str]) -> list[Pairing]:
    """Every pair, in order. The work is spread over the cores; forked processes need not import anything again."""
    pairs = [(agent, benchmark) for agent in agents for benchmark in benchmarks]
    workers = min(os.cpu_count() or 1, len(pairs))
    if not pairs:
        return []
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        return list(pool.map(partial(_pairing, overrides), pairs, chunksize=-(-len(pairs) // (4 * workers))))


def _pairing(overrides: Sequence[str], pair: tuple[str, str]) -> Pairing:
    agent, benchmark = pair
    try:
        resolved = resolve(compose([*overrides, f"agent={agent}", f"benchmark={benchmark}"]))
        resolved.raise_problems()
    except UserError as error:
        return Pairing(agent, benchmark, "?", _reason(error))
    try:
        plan(resolved, datasets=False)
    except UserError as error:
        return Pairing(agent, benchmark, "refused", _reason(error))
    return Pairing(agent, benchmark, "ok")


def _reason(error: UserError) -> str:
    first, more = error.problems[0], len(error.problems) - 1
    return f"{first.what}" + (f" (and {more} more)" if more else "")
