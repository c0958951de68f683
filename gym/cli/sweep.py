"""`gym env sweep`: removes sandboxes whose run has ended without them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.errors import EXIT_OK


def run(arguments: Arguments) -> int:
    """Sweeps the local and the Docker provider. Returns the exit code."""
    from gym.sandbox.sweep import sweep_all

    swept = asyncio.run(sweep_all())
    if arguments.json:
        print_json([asdict(item) for item in swept])
    else:
        rows = [[item.provider, str(item.removed), item.problem or "-"] for item in swept]
        print_table(["provider", "removed", "not swept because"], rows, right={"removed"})
    return EXIT_OK
