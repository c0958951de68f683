"""What a sandbox adds to the start of a harness: `python -m tests.performance.harness_start [--rounds N]`.

A turn is an answer of one word by a scripted model, in a fresh sandbox as a resources server lends it: created, seeded,
run, closed. The same turn without a sandbox, in a process of this machine, is the program's own start. Needs Docker
with the image `gym-base`, bubblewrap, and the runtimes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gym.harness.agent import HarnessAgent
from gym.sandbox.interface import SandboxProvider
from tests.harness.bench import needs_runtime, on_the_bench
from tests.harness.fake_model import FakeModel, say
from tests.harness.test_real_harnesses import HARNESSES
from tests.sandbox.conftest import bubblewrap, docker, plain

STEPS = ("create", "seed", "run", "close")
PLACES: list[tuple[str, Callable[[Path], SandboxProvider], bool]] = [
    ("no sandbox", plain, True),
    ("docker, runtime mounted", docker, True),
    ("docker, runtime uploaded", docker, False),
    ("local, runtime mounted", bubblewrap, True),
]


async def turn(harness: type[HarnessAgent[Any]], provider: SandboxProvider, *, mounted: bool) -> list[float]:
    """Seconds of each step."""
    with FakeModel([[say("42")]]) as model:
        times = [time.perf_counter()]
        async with on_the_bench(harness, model, provider, mounted=mounted) as bench:
            times.append(time.perf_counter())
            await bench.seed()
            times.append(time.perf_counter())
            response = await bench.activate("what?")
            times.append(time.perf_counter())
            assert response.output_text == "42"
            await bench.close()
            times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]


async def measure(harness: type[HarnessAgent[Any]], rounds: int) -> None:
    """Prints the medians of one harness, each place beside the turn without a sandbox."""
    own = 0.0
    for name, make, mounted in PLACES:
        with tempfile.TemporaryDirectory() as folder:
            provider = make(Path(folder))
            found = [await turn(harness, provider, mounted=mounted) for _ in range(rounds)]
            await provider.aclose()
        total = statistics.median(map(sum, found))
        own = own or total
        steps = ", ".join(
            f"{step} {statistics.median(column):.2f}"
            for step, column in zip(STEPS, zip(*found, strict=True), strict=True)
        )
        print(f"{harness.harness}, {name}: {total:.2f} s, {total - own:+.2f} s ({steps})", flush=True)


async def main() -> None:
    """Measures and prints all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for harness in HARNESSES:
        needs_runtime(harness)
        await measure(harness, arguments.rounds)


if __name__ == "__main__":
    asyncio.run(main())
