"""`gym eval export`: the rollouts of a run in a format of others."""

from __future__ import annotations

from pathlib import Path

from gym.cli.console import print_json
from gym.cli.flags import COMMAND_LINE
from gym.cli.verbs import Arguments
from gym.errors import EXIT_OK, Problem, UserError, did_you_mean


def run(arguments: Arguments) -> int:
    """Writes one document for each rollout. Returns the exit code.

    Raises:
        UserError: An unknown format, no run, or a folder that is in use.
    """
    from gym.report.exports import FORMATS, export

    if arguments.name is None:
        raise UserError(Problem("no run is named", "gym eval export RUN_DIR", COMMAND_LINE))
    chosen = arguments.values["format"] or "atif"
    if chosen not in FORMATS:
        fix = did_you_mean(chosen, list(FORMATS)) or f"one of {', '.join(FORMATS)}"
        raise UserError(Problem(f"unknown format `{chosen}`", fix, COMMAND_LINE))
    source = Path(arguments.name)
    target = Path(arguments.values["output"] or source / chosen)
    lines = export(source, target, FORMATS[chosen])
    if arguments.json:
        print_json(lines)
    else:
        print(f"{len(lines)} trajectories in {target}")
    return EXIT_OK
