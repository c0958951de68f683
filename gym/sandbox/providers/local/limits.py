"""Limits of one sandbox: what control groups hold for all its processes, and what the shell sets for each alone."""

from __future__ import annotations

import os
from collections.abc import Collection

from gym.sandbox.interface import Resources

# Since this kernel a process limit counts per user namespace; before, it counts all processes of the user.
COUNTS_PER_NAMESPACE = (5, 14)


def shell_lines(resources: Resources, grouped: Collection[str], *, own_namespace: bool) -> str:
    """Shell commands that set the limits which no control group holds; best effort, for each process alone.

    Args:
        resources: The limits of the sandbox.
        grouped: Limits that control groups hold already (`memory`, `pids`).
        own_namespace: Whether commands run in a user namespace of their own, where processes can be counted.
    """
    lines = ["ulimit -c 0"]
    # A limit that is refused was tighter before.
    if resources.memory_mib is not None and "memory" not in grouped:
        # Data, not address space (-v): Node, Go and Java reserve far more address space than they use.
        lines.append(f"ulimit -d {resources.memory_mib * 1024} 2>/dev/null || :")
    if resources.pids is not None and "pids" not in grouped and own_namespace and _kernel() >= COUNTS_PER_NAMESPACE:
        # bash and busybox say -u, dash says -p.
        lines.append(f"{{ ulimit -u {resources.pids} || ulimit -p {resources.pids}; }} 2>/dev/null || :")
    if resources.disk_mib is not None:
        # For one file, in blocks of 512 bytes.
        lines.append(f"ulimit -f {resources.disk_mib * 2048} 2>/dev/null || :")
    return "\n".join(lines)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor.split("-")[0])) or 0)
