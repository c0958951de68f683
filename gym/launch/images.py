"""The images of a run's sandboxes, had ready before its first episode: several at a time, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gym.errors import Problem, UserError
from gym.launch.closing import close_all
from gym.launch.supervised import Event
from gym.planning.plan import Plan
from gym.planning.resolve import Instance, KeyPath
from gym.sandbox.spec import ImageProgress
from gym.sandbox.spec_config import SandboxConfig
from gym.servers.contract import ServerRef, Task
from gym.servers.environment import EnvironmentServer
from gym.servers.resources import ResourcesServer

Wanted = dict[str, dict[str | None, KeyPath]]
"""By sandbox provider block: images, None for its default one, and the setting that names each."""


async def prepare(plan: Plan, tell: Callable[[Event], None], tasks: Iterable[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Pulls what is not there. The providers stay open for the servers; where it fails, they are closed.

    Args:
        tell: Is told the progress.
        tasks: Task rows that will run, for benchmarks whose tasks name images.

    Returns:
        The digest of each image.

    Raises:
        UserError: All images that cannot be had, with the setting that names each.
    """
    steps, rows = Steps(tell), list(tasks) if _preparing(plan) else tasks
    try:
        found = await _prepare(plan, wanted(plan, rows), steps)
        for item, server in _preparing(plan):
            mine = [_task(row) for row in rows if plan.routes[row["task_id"]["taskset"]] == item.name]
            found |= await server.prepare(item.config, mine, plan.providers, steps)
        return found
    except BaseException:
        for left in await close_all(plan.providers):
            tell(left)
        raise
    finally:
        tell(Event("progress", "images", ""))


def _preparing(plan: Plan) -> list[tuple[Instance, type[EnvironmentServer[Any]]]]:
    """The environment servers that prepare something for their tasks themselves."""
    return [
        (item, item.server_class)
        for item in plan.of_type("environment_servers")
        if issubclass(item.server_class, EnvironmentServer) and item.server_class.prepares
    ]


def _task(row: Mapping[str, Any]) -> Task:
    return Task.model_validate({name: row[name] for name in ("task_id", "task_input")})


async def _prepare(plan: Plan, found: Wanted, steps: Steps) -> dict[str, str]:
    each = (plan.providers[name].prepare(list(images), steps) for name, images in found.items())
    outcomes = await asyncio.gather(*each, return_exceptions=True)
    problems: list[Problem] = []
    for images, outcome in zip(found.values(), outcomes, strict=True):
        if isinstance(outcome, UserError):
            problems += [_located(plan, images, problem) for problem in outcome.problems]
        elif isinstance(outcome, BaseException):
            raise outcome
    if problems:
        raise UserError(problems)
    return {name: digest for outcome in outcomes if isinstance(outcome, dict) for name, digest in outcome.items()}


def wanted(plan: Plan, tasks: Iterable[Mapping[str, Any]] = ()) -> Wanted:
    """The images that settings name, and those of the tasks."""
    found: Wanted = {}
    for item in plan.instances.values():
        block, spec = getattr(item.config, "sandbox_provider", None), getattr(item.config, "sandbox_config", None)
        if block in plan.providers and isinstance(spec, SandboxConfig) and (spec.image or not _names_images(item)):
            default = (block, "default_image")
            key = default if spec.image is None else (*item.key, "sandbox_config", "image")
            found.setdefault(block, {}).setdefault(spec.image, key)
    for block, image in _of_tasks(plan, tasks):
        found.setdefault(block, {}).setdefault(image, ())
    return found


def _of_tasks(plan: Plan, tasks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Provider block and image of tasks, for resources servers that have `task_images`."""
    naming = {item.name: _naming_server(plan, item) for item in plan.of_type("environment_servers")}
    for row in tasks if any(naming.values()) else ():
        found = naming.get(plan.routes[row["task_id"]["taskset"]])
        if found is not None:
            block, item = found
            server: type[ResourcesServer[Any, Any]] = item.server_class  # type: ignore[assignment]
            data = _task(row).task_input.task_data
            images = server.task_images(server.task_type.model_validate(data), item.config)
            yield from ((block, image) for image in images)


def _naming_server(plan: Plan, environment: Instance) -> tuple[str, Instance] | None:
    """The resources server of an environment server, with its provider block, where its tasks name images."""
    for _, ref in environment.config:
        item = plan.instances.get(ref.name) if isinstance(ref, ServerRef) else None
        block = getattr(item and item.config, "sandbox_provider", None)
        if item is not None and block in plan.providers and _names_images(item):
            return block, item
    return None


def _names_images(item: Instance) -> bool:
    return issubclass(item.server_class, ResourcesServer) and item.server_class.names_images()


def _located(plan: Plan, images: Mapping[str | None, KeyPath], problem: Problem) -> Problem:
    """The problem at the setting that names the image, where one does."""
    image = problem.data.get("image")
    key = images.get(image if isinstance(image, str) else None) or images.get(None)
    if image is None or not key:
        return problem
    origins = plan.resolved.composed.origins
    return replace(problem, where=origins.where(key), key=".".join(key), order=origins.order(key))


class Steps:
    """Tells what happens to images: a line when one is pulled or built, when it is there, and when that has failed."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._pulling: dict[str, ImageProgress] = {}
        self._building: set[str] = set()

    def __call__(self, step: ImageProgress) -> None:
        """One step of one image."""
        known = self._pulling.pop(step.image, None)
        if step.state == "pulling":
            self._pulling[step.image] = step
            if known is None:
                self._tell(Event("note", step.image, f"pulling the image {step.image}"))
            if step.total_bytes:
                self._tell(Event("progress", step.image, self._summary()))
        elif step.state == "building":
            self._building.add(step.image)
            self._tell(Event("note", step.image, f"building the image of {step.message}"))
        elif step.image in self._building:
            what = step.message if step.state == "failed" else f"the image of {step.message} is built"
            self._tell(Event("note", step.image, what))
        elif step.state == "ready":
            size = f" ({known.total_bytes / 1e6:.0f} MB)" if known is not None and known.total_bytes else ""
            self._tell(Event("note", step.image, f"the image {step.image} is here{size}"))

    def _summary(self) -> str:
        done = sum(step.done_bytes for step in self._pulling.values())
        total = sum(step.total_bytes for step in self._pulling.values())
        names = ", ".join(sorted(self._pulling))
        return f"pulling {names}: {done / 1e6:.0f} of {total / 1e6:.0f} MB"
