"""`gym dataset`: a new dataset, whether its task folders are sound, and their digests."""

from __future__ import annotations

import sys
from pathlib import Path

from gym.cli.console import print_json, print_table
from gym.cli.flags import COMMAND_LINE
from gym.cli.verbs import Arguments
from gym.errors import EXIT_OK, EXIT_SOME_FAILED, Problem, UserError
from gym.harbor.dataset import Dataset, load_dataset, scan


def init(arguments: Arguments) -> int:
    """Writes a dataset of one task, to begin with."""
    from gym.harbor.init import init

    folder = init(_folder(arguments), arguments.values["image"] or "gym-base")
    if arguments.json:
        print_json({"folder": str(folder)})
    else:
        print(f"wrote {folder}; prove it with `gym dataset validate {folder}`")
    return EXIT_OK


def digest(arguments: Arguments) -> int:
    """Prints the digest of each task, as dataset.toml lists them, and of the whole."""
    dataset = scan(_folder(arguments))
    if arguments.json:
        print_json({"digest": dataset.digest, "tasks": {entry.task_id: entry.digest for entry in dataset.entries}})
        return EXIT_OK
    for entry in dataset.entries:
        name = entry.task.name if entry.task else entry.task_id
        print(f'[[tasks]]\nname = "{name}"\ndigest = "{entry.digest}"\n')
    print(f"# the dataset: {dataset.digest}")
    return EXIT_OK


def validate(arguments: Arguments) -> int:
    """Checks every task folder; then, unless told otherwise, proves each task by an oracle and by doing nothing."""
    dataset = load_dataset(_folder(arguments))
    if arguments.values["static"]:
        return _told_static(dataset, as_json=arguments.json)
    from gym.harbor.proof import prove

    proofs, misfits = prove(dataset, sandbox=arguments.values["sandbox"] or "docker", concurrency=_number(arguments))
    for problem in misfits:
        print(problem, file=sys.stderr)
    if arguments.json:
        print_json([proof.as_dict() for proof in proofs])
    else:
        rows = [[proof.task_id, proof.oracle.text, proof.nop.text, proof.verdict] for proof in proofs]
        print_table(["task", "oracle", "nop", "verdict"], rows, right={"oracle", "nop"})
    bad = sum(not proof.is_sound for proof in proofs)
    if bad:
        print(f"{bad} of {len(proofs)} tasks {'is' if bad == 1 else 'are'} not proven", file=sys.stderr)
    return EXIT_SOME_FAILED if bad else EXIT_OK


def _told_static(dataset: Dataset, *, as_json: bool) -> int:
    if as_json:
        print_json(
            [{"task": task.task_id, "steps": len(task.steps), "solution": task.has_solution} for task in dataset.tasks]
        )
        return EXIT_OK
    rows = [[task.task_id, str(len(task.steps)), "yes" if task.has_solution else "no"] for task in dataset.tasks]
    print_table(["task", "steps", "solution"], rows, right={"steps"})
    return EXIT_OK


def _folder(arguments: Arguments) -> Path:
    if arguments.name is None:
        fix = f"`gym {arguments.verb.name} FOLDER`"
        raise UserError(Problem("which folder?", fix, COMMAND_LINE))
    return Path(arguments.name)


def _number(arguments: Arguments) -> int | None:
    given = arguments.values["concurrency"]
    if given is not None and (not given.isdecimal() or int(given) < 1):
        raise UserError(Problem(f"--concurrency wants a number of at least 1, got `{given}`", where=COMMAND_LINE))
    return int(given) if given else None
