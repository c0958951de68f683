"""`python -m gym.run`: compose with Hydra's config groups, plan, run.

python -m gym.run +experiment=onboarding
python -m gym.run -m +experiment=onboarding agent=simple,codex
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gym.cli.console import guarded

HYDRA_OWN = ("cfg", "info", "shell_completion", "help", "hydra_help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    from hydra._internal.utils import get_args_parser

    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = get_args_parser()
    parsed = parser.parse_intermixed_args(arguments)
    if any(getattr(parsed, name) for name in HYDRA_OWN):
        return guarded(lambda: _by_hydra(arguments, parsed.overrides))
    if parsed.multirun:
        return guarded(lambda: _sweep(parsed.overrides))
    return guarded(lambda: _run(parsed.overrides))


def _run(overrides: Sequence[str]) -> int:
    from gym.composition.compose import compose
    from gym.planning.plan import plan
    from gym.planning.resolve import resolve
    from gym.rollouts.report import run_and_report

    return run_and_report(plan(resolve(compose(overrides))))


def _sweep(overrides: Sequence[str]) -> int:
    from gym.rollouts import sweep

    ready, _ = sweep.plan_all(sweep.points(overrides))
    return sweep.run_all(ready, fail_fast=any(item.plan.resolved.settings.fail_fast for item in ready))


def _by_hydra(arguments: list[str], overrides: list[str]) -> int:
    """`--cfg`, `--info`, `--help` and shell completion are Hydra's own, on the same composition."""
    import hydra

    from gym.composition import source
    from gym.composition.compose import prepare

    completing = any(item.startswith(("-sc", "--shell-completion", "--shell_completion")) for item in arguments)
    source.register()
    lines = overrides if completing else prepare(overrides, None).lines
    options = [item for item in arguments if item not in overrides]
    sys.argv = [sys.argv[0], *options, *lines]
    hydra.main(version_base="1.3", config_path=None, config_name=source.RUN_PRIMARY)(lambda _config: None)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
