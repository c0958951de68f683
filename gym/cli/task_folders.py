"""`gym eval run FOLDER --agent NAME`: a folder of Harbor tasks needs no YAML.

The folder becomes rows and a run configuration under `results/harbor/<taskset>/`, and the command goes on as if that
file had been given by `--config`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gym.cli.flags import COMMAND_LINE
from gym.cli.verbs import Arguments
from gym.errors import Problem, UserError

CHOSEN = {"agent": "--agent", "sandbox": "--sandbox", "model-provider": "--model-provider"}
KEPT = {"model_url": "policy_base_url", "model": "policy_model_name"}
WITHOUT = {"config": "--config", "benchmark": "--benchmark", "environment": "--environment", "input": "--input"}


def opened(arguments: Arguments) -> Arguments:
    """The arguments with the configuration of the task folder that they name, if they name one.

    Raises:
        UserError: Everything that is wrong with the folder; no agent is chosen; a flag that has no place here.
    """
    folder = next((word for word in arguments.words if is_folder(word)), None)
    if folder is None:
        return arguments
    from gym.harbor import rows, run_config
    from gym.harbor.dataset import load_dataset
    from gym.tasks.rows import write_rows

    _refuse(arguments, folder)
    choice = run_config.Choice(
        agent=_chosen(arguments, "agent") or _no_agent(),
        sandbox=_chosen(arguments, "sandbox") or run_config.Choice.sandbox,
        model_provider=_chosen(arguments, "model-provider"),
        settings=tuple((key, str(value)) for name, key in KEPT.items() if (value := arguments.values.get(name))),
    )
    dataset = load_dataset(Path(folder))
    path = run_config.write(dataset, choice)
    write_rows(run_config.rows_path(dataset), rows.rows(dataset, dataset.taskset))
    values = {**arguments.values, "config": [str(path)], "agent": None, "sandbox": None, "model_provider": None}
    words = [word for word in arguments.words if word != folder and _key(word) not in CHOSEN]
    if "output" in values and not values["output"] and "output" not in map(_key, words):
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        values["output"] = str(run_config.place(dataset) / choice.agent.replace("/", "_") / stamp)
    return replace(arguments, values=values, words=words)


def is_folder(word: str) -> bool:
    """Whether a word of the command line is meant as a folder."""
    return "=" not in word and not word.startswith("~") and ("/" in word or word in (".", "..") or Path(word).is_dir())


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+") if "=" in word else ""


def _chosen(arguments: Arguments, group: str) -> str | None:
    """An option, by flag or as `group=option`."""
    typed = next((word.partition("=")[2] for word in arguments.words if _key(word) == group), None)
    flag = arguments.values.get(group.replace("-", "_"))
    if typed and flag and typed != flag:
        raise UserError(Problem(f"{CHOSEN[group]} {flag} and {group}={typed} differ", "keep one of them", COMMAND_LINE))
    return flag or typed


def _no_agent() -> str:
    fix = "add --agent NAME (`gym list agents`); oracle and nop try the tasks themselves"
    raise UserError(Problem("a task folder needs an agent", fix, COMMAND_LINE))


def _refuse(arguments: Arguments, folder: str) -> None:
    others = [word for word in arguments.words if is_folder(word) and word != folder]
    problems = [Problem(f"one folder, please; `{word}` is another", where=COMMAND_LINE) for word in others]
    if Path(folder).is_file():
        problems.append(Problem(f"`{folder}` is a file, no task folder", "did you mean --config FILE?", COMMAND_LINE))
    for name, flag in WITHOUT.items():
        if arguments.values.get(name) or any(_key(word) == name for word in arguments.words):
            problems.append(Problem(f"{flag} has no place beside the task folder `{folder}`", "", COMMAND_LINE))
    if problems:
        raise UserError(problems)
