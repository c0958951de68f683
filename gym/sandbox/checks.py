"""What no sandbox can be made of, whatever the provider. Only the standard library is imported here."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict

from gym.errors import Problem
from gym.sandbox.spec import SandboxSpec
from gym.sandbox.words import checked_environment, refuses_workdir

LIMITS: dict[str, tuple[float, float]] = {
    # A share of the cores below this one is refused by the kernel; the rest is what a daemon still counts with.
    "cpu": (0.01, 10_000),
    "memory_mib": (6, 2**30),
    "pids": (1, 2**22),
    "disk_mib": (1, 2**30),
}
"""The smallest and the largest value of each limit in `Resources`."""
LONGEST_TTL_SECONDS = 10 * 365 * 86_400


def unfit_spec(spec: SandboxSpec, provider: str, networks: Collection[str], *, utf8: bool = False) -> Iterator[Problem]:
    """What is wrong with a spec; keys are those of a `sandbox_config`.

    Args:
        spec: What is asked for.
        provider: Name of the provider.
        networks: Those that it has.
        utf8: It cannot carry other bytes in variables.
    """
    if spec.network not in networks:
        fix = f"use one of {', '.join(sorted(networks))}, or another sandbox"
        yield Problem(f"the {provider} sandbox has no network `{spec.network}`", fix, key="network")
    if (reason := refuses_workdir(spec.workdir)) is not None:
        yield Problem(f"the work directory `{spec.workdir}` cannot be used: {reason}", key="workdir")
    try:
        checked_environment(spec.env, utf8=utf8)
    except ValueError as error:
        yield Problem(str(error), key="env")
    if spec.ttl_seconds is not None and not 0 < spec.ttl_seconds <= LONGEST_TTL_SECONDS:
        what = f"a ttl of {spec.ttl_seconds:g} s is out of bounds"
        yield Problem(what, f"it may be {LONGEST_TTL_SECONDS} s at most", key="ttl_seconds")
    for name, value in asdict(spec.resources).items():
        low, high = LIMITS[name]
        if value is not None and not low <= value <= high:
            yield Problem(f"{value:g} is out of bounds", f"use {low:g} to {high:g}", key=f"resources.{name}")
