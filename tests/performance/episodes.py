"""Episodes a second of a counter with one tool call and two model calls: `python -m tests.performance.episodes`.

Everything is real but the policy, and in one process; `--hosting apart` puts HTTP between all servers.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import resource
import time

from gym.servers.contract import RunRequest, RunResponse
from tests.contract.world import ENVIRONMENT, HOSTINGS, Hosting, World, world

TEXT = json.dumps({"tool": "increment", "arguments": {"by": 2}})


def request(number: int) -> RunRequest:
    """The n-th episode."""
    params = {"input": [{"type": "message", "role": "user", "content": TEXT}]}
    return RunRequest.model_validate(
        {
            "episode_id": {"rollout_id": f"r{number}"},
            "task": {
                "task_id": {"taskset": "counting", "task_id": str(number)},
                "task_input": {"responses_create_params": params, "task_data": {"expected": 2}},
            },
        }
    )


async def episodes_per_second(here: World, number: int, concurrency: int) -> float:
    """Runs episodes, so many at once; every one must earn its reward."""
    queue = iter(range(number))

    async def worker() -> None:
        for index in queue:
            outcome = (await here.client.post(ENVIRONMENT, "/run", request(index), RunResponse)).body
            assert outcome.result is not None, outcome.failure
            assert outcome.result.reward == 1.0

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return number / (time.perf_counter() - started)


async def main(number: int, hosting: Hosting) -> None:
    """Measures at three concurrencies."""
    for concurrency in (1, 64, 512):
        async with world(hosting) as here:
            await episodes_per_second(here, 200, concurrency)
            rate = await episodes_per_second(here, number, concurrency)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"concurrency {concurrency:>3}: {rate:7.0f} episodes/s   peak memory so far {peak:.0f} MiB")


def run() -> None:
    """Entry of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=2000, help="episodes a concurrency")
    parser.add_argument("--hosting", choices=HOSTINGS, default="in_process", help="who calls whom over HTTP")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    given = parser.parse_args()
    if not given.profile:
        asyncio.run(main(given.episodes, given.hosting))
        return
    profile = cProfile.Profile()
    profile.runcall(asyncio.run, main(given.episodes, given.hosting))
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    run()
