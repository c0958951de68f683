"""`gym env sweep`: removes sandboxes whose run has ended without them, and shows those that there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict

from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.errors import EXIT_OK
from gym.report.table import duration
from gym.sandbox.spec import Found

HEAD = ["sandbox", "run", "rollout", "process", "age"]


def run(arguments: Arguments) -> int:
    """Sweeps the local and the Docker provider. Returns the exit code."""
    from gym.sandbox.sweep import sweep_all

    swept = asyncio.run(sweep_all())
    if arguments.json:
        print_json([asdict(item) for item in swept])
        return EXIT_OK
    rows = [[item.provider, str(item.removed), item.problem or "-"] for item in swept]
    print_table(["provider", "removed", "not swept because"], rows, right={"removed"})
    if found := [(item.provider, one) for item in swept for one in item.found]:
        print()
        shown = [[name, *shown_row(one), "removed" if one.left else "in use"] for name, one in found]
        print_table(["provider", *HEAD, "state"], shown)
    return EXIT_OK


def shown_row(found: Found) -> Sequence[str]:
    """A sandbox as a row of a table: whose it is."""
    labels = found.labels
    pid = "-" if found.pid is None else str(found.pid)
    age = duration(max(0.0, time.time() - found.created_at))
    return [found.id, labels.get("run", "-"), labels.get("rollout", "-"), pid, age]
