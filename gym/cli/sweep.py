"""`gym env sweep`: removes sandboxes whose run has ended without them, and shows those that there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.errors import EXIT_OK, EXIT_SOME_FAILED, Problem, UserError
from gym.report.table import duration
from gym.sandbox.spec import Found

if TYPE_CHECKING:
    from gym.sandbox.interface import SandboxProvider

HEAD = ["sandbox", "run", "rollout", "process", "age"]


def run(arguments: Arguments) -> int:
    """Sweeps the providers of a configuration, or where none is given, `local` and `docker` as they are by default.

    Returns:
        1 where a provider that was asked for could not be swept.
    """
    from gym.sandbox.sweep import sweep_all

    chosen = _chosen(arguments)
    images = arguments.values["images"]
    swept = asyncio.run(sweep_all(chosen, images=images))
    code = EXIT_SOME_FAILED if chosen is not None and any(item.problem for item in swept) else EXIT_OK
    if arguments.json:
        print_json([asdict(item) for item in swept])
        return code
    columns = ["removed", "images"] if images else ["removed"]
    rows = [[item.provider, *(str(getattr(item, name)) for name in columns), item.problem or "-"] for item in swept]
    print_table(["provider", *columns, "not swept because"], rows, right=set(columns))
    if found := [(item.provider, one) for item in swept for one in item.found]:
        print()
        shown = [[name, *shown_row(one), "removed" if one.left else "in use"] for name, one in found]
        print_table(["provider", *HEAD, "state"], shown)
    return code


def _chosen(arguments: Arguments) -> list[SandboxProvider] | None:
    """The providers of the configuration on the command line; None where there is none.

    Raises:
        UserError: What is wrong with it. It needs no model.
    """
    overrides = arguments.overrides()
    if not overrides and not arguments.files:
        return None
    from gym.cli.eval_prepare import is_of_models
    from gym.composition.compose import compose
    from gym.planning.resolve import resolve

    resolved = resolve(compose(overrides, arguments.files))
    if problems := [problem for problem in resolved.problems if not is_of_models(resolved, problem)]:
        raise UserError(problems)
    if not resolved.components:
        raise UserError(Problem("this configuration has no sandbox provider", "choose one with sandbox=NAME"))
    return [component.component_class(component.config) for component in resolved.components.values()]


def shown_row(found: Found) -> Sequence[str]:
    """A sandbox as a row of a table: whose it is."""
    labels = found.labels
    pid = "-" if found.pid is None else str(found.pid)
    age = duration(max(0.0, time.time() - found.created_at))
    return [found.id, labels.get("run", "-"), labels.get("rollout", "-"), pid, age]
