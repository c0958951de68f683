"""Factors of a dataset on the times and resources of its tasks."""

from __future__ import annotations

import math

from pydantic import Field

from gym.harbor.config import Environment, Seconds, Table, TaskTable, Verifier


class Scales(Table):
    """Factors; 1 changes nothing.

    Attributes:
        timeout_multiplier: Of the times of agent, verifier and build, beside their own.
        resource_multiplier: Of cpus, memory_mb and storage_mb.
    """

    timeout_multiplier: Seconds = 1.0
    agent_timeout_multiplier: Seconds = 1.0
    verifier_timeout_multiplier: Seconds = 1.0
    build_timeout_multiplier: Seconds = 1.0
    resource_multiplier: Seconds = 1.0

    @property
    def changed(self) -> dict[str, float]:
        """The factors that are not 1."""
        return {name: value for name in Scales.model_fields if (value := getattr(self, name)) != 1}


class Defaults(Scales):
    """`[gym.defaults]` of a dataset.toml."""

    num_repeats: int = Field(1, ge=1, description="Attempts a task; the run's own `num_repeats` wins.")


def scaled(table: TaskTable, scales: Scales) -> TaskTable:
    """The task with its times and resources multiplied; what it does not limit stays unlimited."""
    if not scales.changed:
        return table
    agent_factor = scales.timeout_multiplier * scales.agent_timeout_multiplier
    steps = tuple(
        step.model_copy(
            update={
                "agent": step.agent.model_copy(update=_times(step.agent.timeout_sec, agent_factor)),
                "verifier": _verifier(step.verifier, scales, "timeout_sec" in step.verifier.model_fields_set),
            }
        )
        for step in table.steps
    )
    return table.model_copy(
        update={
            "agent": table.agent.model_copy(update=_times(table.agent.timeout_sec, agent_factor)),
            "environment": _environment(table.environment, scales),
            "verifier": _verifier(table.verifier, scales, True),
            "steps": steps,
        }
    )


def _times(seconds: float | None, factor: float) -> dict[str, float]:
    return {} if seconds is None else {"timeout_sec": seconds * factor}


def _verifier(verifier: Verifier, scales: Scales, own_time: bool) -> Verifier:
    factor = scales.timeout_multiplier * scales.verifier_timeout_multiplier
    update: dict[str, object] = dict(_times(verifier.timeout_sec, factor)) if own_time else {}
    if verifier.environment is not None:
        update["environment"] = _environment(verifier.environment, scales)
    return verifier.model_copy(update=update)


def _environment(environment: Environment, scales: Scales) -> Environment:
    update: dict[str, object] = {
        "build_timeout_sec": environment.build_timeout_sec * scales.timeout_multiplier * scales.build_timeout_multiplier
    }
    if environment.cpus is not None:
        update["cpus"] = environment.cpus * scales.resource_multiplier
    for name in ("memory_mb", "storage_mb"):
        if (size := getattr(environment, name)) is not None:
            update[name] = math.ceil(size * scales.resource_multiplier)
    return environment.model_copy(update=update)
