"""`gym eval export`: the rollouts of a run in a format of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gym.cli.console import print_json
from gym.cli.flags import COMMAND_LINE
from gym.cli.verbs import Arguments
from gym.errors import EXIT_OK, Problem, UserError, did_you_mean


def run(arguments: Arguments) -> int:
    """Writes one document for each rollout. Returns the exit code.

    Raises:
        UserError: An unknown format, no run, or a folder that is in use.
    """
    from gym.report.exports import export
    from gym.report.trials import export_trials

    formats: dict[str, Callable[[Path, Path], list[dict[str, Any]]]] = {"atif": export, "harbor": export_trials}
    if arguments.name is None:
        raise UserError(Problem("no run is named", "gym eval export RUN_DIR", COMMAND_LINE))
    chosen = arguments.values["format"] or "atif"
    if chosen not in formats:
        fix = did_you_mean(chosen, list(formats)) or f"one of {', '.join(formats)}"
        raise UserError(Problem(f"unknown format `{chosen}`", fix, COMMAND_LINE))
    source = Path(arguments.name)
    target = Path(arguments.values["output"] or source / chosen)
    lines = formats[chosen](source, target)
    if arguments.json:
        print_json(lines)
    else:
        what = "trials" if chosen == "harbor" else "trajectories"
        failed = sum("failure" in line for line in lines)
        print(f"{len(lines)} {what} in {target}" + (f", {failed} of failed attempts" if failed else ""))
    return EXIT_OK
