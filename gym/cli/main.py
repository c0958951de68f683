"""The `gym` command: which verbs there are, and how the words of the command line find one.

`gym --help` imports nothing but the standard library; each verb imports what it needs when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import gym
from gym.cli import flags
from gym.cli.console import guarded, print_json
from gym.cli.verbs import Verb
from gym.errors import EXIT_OK, Problem, UserError, did_you_mean

KINDS = ("agents", "benchmarks", "models", "environments", "sandboxes", "experiments")
FIELDS = flags.Flag("--fields", "the settings of the implementation, from its schema", kind="switch")
_NO_CONFIG = "Without --config, the groups of conf/config.yaml are composed, as `python -m gym.run` does."


def _listing(kind: str, example: str) -> Verb:
    return Verb(
        f"list {kind}",
        "gym.cli.listing:run",
        f"the {kind} that can be chosen, or one of them in detail",
        (f"gym list {kind}", example),
        (FIELDS,),
        takes="name",
    )


VERBS = (
    Verb(
        "env resolve",
        "gym.cli.env_resolve:run",
        "print the resolved configuration, or who set a key",
        (
            "gym env resolve --config run.yaml",
            "gym env resolve +experiment=onboarding --explain agent.responses_api_agents.simple_agent.max_steps",
        ),
        (*flags.SELECTORS, flags.Flag("--explain", "who set this key, in order", "KEY")),
        f"Secrets are shown as ***. Pairings are not checked; `gym eval plan` does. {_NO_CONFIG}",
    ),
    Verb(
        "env start",
        "gym.cli.env_servers:start",
        "start the servers of a configuration, and keep them running",
        ("gym env start +experiment=onboarding", "gym env start --config run.yaml"),
        (*flags.SELECTORS, flags.UNSUPPORTED),
        "They stop on Ctrl-C and on `gym env stop`. Where they are is written to .gym/servers.json (only for you);\n"
        "`gym eval run --no-serve` in the same folder uses them.",
    ),
    Verb(
        "env stop",
        "gym.cli.env_servers:stop",
        "stop the servers that `gym env start` runs in this folder",
        ("gym env stop",),
        takes="nothing",
    ),
    Verb(
        "env status",
        "gym.cli.env_servers:status",
        "show the running servers, and whether they answer",
        ("gym env status",),
        details="Exit code 0: all answer; 1: some do not, or none run.",
        takes="nothing",
    ),
    Verb(
        "env prefetch",
        "gym.cli.prefetch:run",
        "install what a configuration needs: runtimes, environments, images; tell what is missing",
        ("gym env prefetch +experiment=onboarding",),
        flags.CHOICES,
    ),
    Verb(
        "env sweep",
        "gym.cli.sweep:run",
        "remove sandboxes that a killed run left behind",
        (
            "gym env sweep",
            "gym env sweep sandbox=opensandbox",
            "gym env sweep --config run.yaml",
            "gym env sweep --images",
        ),
        (*flags.CHOICES, flags.IMAGES),
        "Without a configuration: local sandboxes and Docker containers, as they are by default. With one: those of\n"
        "its sandbox providers, such as another Docker host, another `sandbox.root`, or an OpenSandbox deployment.\n"
        "Those of runs that go on are left alone.\n"
        "Exit code 0: swept; 1: a provider of the configuration could not be.",
    ),
    Verb(
        "eval plan",
        "gym.cli.eval_plan:run",
        "check a configuration, and show what a run of it would do",
        ("gym eval plan +experiment=onboarding", "gym eval plan benchmark=onboarding agent=simple"),
        flags.RUN,
        f"Nothing is started and, unless a task folder is given, nothing is written. {_NO_CONFIG}",
    ),
    Verb(
        "eval prepare",
        "gym.cli.eval_prepare:run",
        "prepare the datasets of a configuration",
        ("gym eval prepare --config run.yaml", "gym eval prepare --benchmark onboarding --all"),
        (*flags.CHOICES, flags.SPLIT, flags.Flag("--all", "datasets of every split", kind="switch")),
        "Runs the prepare script of each dataset of the split. Pairings are not checked, and no model is needed.",
    ),
    Verb(
        "eval run",
        "gym.cli.eval_run:run",
        "run episodes, verify and report",
        (
            "gym eval run +experiment=onboarding",
            "gym eval run --config run.yaml --output results/first --limit 1 --concurrency 1",
            "gym eval run +experiment=onboarding --model-provider openai --model NAME --num-repeats 3",
            "gym eval run path/to/task-folders --agent codex --model-provider openai --model NAME",
        ),
        (*flags.RUN, flags.NO_SERVE),
        "Exit code 0: all well; 1: some episodes failed; 2: the input is wrong; 130: interrupted.\n"
        f"Started again with the same --output, it continues. {_NO_CONFIG}\n"
        "A folder of Harbor tasks needs no configuration: one is written to results/harbor/, and run (docs/harbor.md).",
    ),
    Verb(
        "eval export",
        "gym.cli.eval_export:run",
        "write the rollouts of a run in a format of others",
        ("gym eval export results/onboarding/latest", "gym eval export results/first --format atif --output atif"),
        (
            flags.Flag("--format", "atif (default): trajectories; harbor: a job with a folder for each trial", "NAME"),
            flags.Flag("--output", "a new folder; default: one in the run's directory", "DIR"),
        ),
        "atif: one JSON file for each finished rollout, and manifest.jsonl, which lists them with their rewards.\n"
        "harbor: a folder for each attempt, laid out as Harbor's trials, for `harbor view DIR`.",
        takes="name",
    ),
    Verb(
        "dataset init",
        "gym.cli.dataset:init",
        "write a dataset of one task, to begin with",
        ("gym dataset init my-tasks",),
        (flags.Flag("--image", "image of the task (gym-base)", "IMAGE"),),
        takes="name",
    ),
    Verb(
        "dataset validate",
        "gym.cli.dataset:validate",
        "check the task folders of a dataset, and prove each task",
        ("gym dataset validate path/to/task-folders", "gym dataset validate path/to/one-task --static"),
        (
            flags.Flag("--static", "read the folders only; run nothing", kind="switch"),
            flags.SANDBOX,
            flags.Flag("--concurrency", "episodes at once", "N", kind="number"),
        ),
        "A task is sound when its solution gets the reward 1 and doing nothing gets 0. Both are run (agents oracle\n"
        "and nop, sandbox docker unless told otherwise).\n"
        "Exit code 0: all are sound; 1: a task is not; 2: a folder is not as it must be, or cannot run here.",
        takes="name",
    ),
    Verb(
        "dataset digest",
        "gym.cli.dataset:digest",
        "print the content digests of task folders, as dataset.toml lists them",
        ("gym dataset digest path/to/task-folders",),
        takes="name",
    ),
    _listing("agents", "gym list agents simple --fields"),
    _listing("benchmarks", "gym list benchmarks onboarding --fields"),
    _listing("models", "gym list models openai --fields"),
    _listing("environments", "gym list environments single_agent_turn --fields"),
    _listing("sandboxes", "gym list sandboxes local --fields"),
    _listing("experiments", "gym list experiments onboarding"),
    Verb(
        "list pairings",
        "gym.cli.pairings:run",
        "which agent goes with which benchmark, and why not",
        ("gym list pairings", "gym list pairings model-provider=openai"),
        details="Each pair is composed and planned; overrides apply to all of them.",
    ),
    Verb(
        "doctor",
        "gym.cli.doctor:run",
        "what works on this machine, and what is missing",
        ("gym doctor",),
        takes="nothing",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return guarded(lambda: _dispatch(arguments), as_json="--json" in arguments)
    except SystemExit as left:
        return int(left.code or 0)  # argparse printed the help


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return EXIT_OK
    if arguments[0] == "--version":
        return _version(arguments[1:])
    for verb in VERBS:
        words = verb.name.split()
        if arguments[: len(words)] == words:
            return verb.run(arguments[len(words) :])
    group = [verb for verb in VERBS if verb.name.split()[0] == arguments[0]]
    if group and arguments[1:2] in (["-h"], ["--help"]):
        print(_help(arguments[0]))
        return EXIT_OK
    raise UserError(_no_verb(arguments, group))


def _no_verb(arguments: list[str], group: list[Verb]) -> Problem:
    if not group:
        known = list(dict.fromkeys(verb.name.split()[0] for verb in VERBS))
        given, what = arguments[0], f"unknown {'flag' if arguments[0].startswith('-') else 'command'} `{arguments[0]}`"
        near = did_you_mean(given, [*known, "--help", "--version"])
    else:
        known = [verb.name.split()[1] for verb in group]
        given = arguments[1] if len(arguments) > 1 else ""
        what = f"unknown command `gym {arguments[0]} {given}`" if given else f"`gym {arguments[0]}` needs a verb"
        near = did_you_mean(given, known) if given else ""
    data: dict[str, object] = {"kind": "command", "given": given, "available": known}
    return Problem(what, near or f"one of {', '.join(known)}", flags.COMMAND_LINE, data=data)


def _help(group: str = "") -> str:
    shown = [verb for verb in VERBS if not group or verb.name.startswith(group + " ")]
    first = next((verb for verb in shown if verb.name == "eval run"), shown[0])
    width = max(len(verb.name) for verb in shown)
    lines = [f"usage: gym {group or 'COMMAND'} ..."]
    lines += [] if group else ["", gym.__doc__ or ""]
    lines += ["", "commands:", *(f"  {verb.name:{width}}  {verb.summary}" for verb in shown), ""]
    lines += ["`gym COMMAND --help` shows the flags and examples of a command, `gym --version` the version;"]
    lines += ["--json prints JSON wherever data are printed."]
    return "\n".join([*lines, "", "example:", f"  {first.examples[0]}"])


def _version(rest: list[str]) -> int:
    from pathlib import Path

    if rest not in ([], ["--json"]):
        raise UserError(Problem(f"`gym --version` takes no `{rest[0]}`", where=flags.COMMAND_LINE))
    python, place = sys.version.split()[0], str(Path(gym.__file__).parent)
    if rest:
        print_json({"version": gym.__version__, "python": python, "path": place})
    else:
        print(f"gym {gym.__version__} (Python {python}, {place})")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
