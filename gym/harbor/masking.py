"""Keeps the values of secret variables out of what a verifier's output is kept as."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gym.composition.credentials import is_secret_name
from gym.harbor.images import containers
from gym.harbor.task import Task
from gym.harbor.variables import WHOLE, fill_env

MASK = "***"
SHORTEST = 8
"""Characters of a secret; a shorter value would be masked wherever it stands for something else."""


def masker(task: Task, environment: Mapping[str, str], more: Callable[[str], str] = str) -> Callable[[str], str]:
    """A function that takes the secrets of a task's variables out of a text.

    Args:
        more: Takes others out, those of the run.
    """
    secrets = sorted(set(_secrets(task, environment)), key=len, reverse=True)

    def mask(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, MASK)
        return more(text)

    return mask


def _secrets(task: Task, environment: Mapping[str, str]) -> Iterator[str]:
    tables = [box.config.env for box in containers(task)]
    tables += [dict(step.verifier.env) for step in task.steps]
    for table in tables:
        for name, value in fill_env(table, environment).values.items():
            variable = WHOLE.fullmatch(table[name])
            secret = is_secret_name(name) or (variable is not None and is_secret_name(variable["name"]))
            if secret and len(value) >= SHORTEST:
                yield value
