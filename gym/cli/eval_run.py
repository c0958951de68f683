"""`gym eval run`: episodes from a plan, on servers of this process or on those that run already."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gym.cli import task_folders
from gym.cli.console import print_json
from gym.cli.verbs import Arguments
from gym.composition.compose import compose
from gym.planning.plan import plan
from gym.planning.resolve import resolve

if TYPE_CHECKING:
    from gym.planning.plan import Plan
    from gym.rollouts.execute import Running


def run(arguments: Arguments) -> int:
    """Runs and reports; returns the exit code."""
    from gym.rollouts.execute import execute
    from gym.rollouts.report import run_and_report

    arguments = task_folders.opened(arguments)
    made = plan(resolve(compose(arguments.overrides(), arguments.files)))
    running = _running(made) if arguments.values["no_serve"] else None
    if not arguments.json:
        return run_and_report(made, running=running)
    outcome = asyncio.run(execute(made, running=running))
    print_json(
        {
            "results": outcome.path,
            "seconds": round(outcome.seconds, 3),
            "stop_reason": outcome.stop_reason,
            "exit_code": outcome.exit_code,
            **outcome.summary,
        }
    )
    return outcome.exit_code


def _running(made: Plan) -> Running:
    from gym.cli import state
    from gym.rollouts.execute import Running

    servers = state.running()
    state.refuse_others(servers, made)
    if (note := state.kept(servers, made)) is not None:
        made.notes.append(note)
    return Running(lambda: state.client(servers), servers.images)
