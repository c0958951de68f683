"""The images of tasks: pulled, or built from a folder with a Dockerfile and named after what is in that folder.

A built image is `gym-harbor:<digest of its folder>`: a folder that has not changed is not built again, in whichever
task or run it stands.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.harbor.task import Container, Task
from gym.sandbox.interface import ImageBuild, ImageFacts, OnImageProgress, SandboxProvider
from gym.sandbox.spec import TASK_LABEL

REPOSITORY = "gym-harbor"
log = logging.getLogger(__name__)
TAG_CHARACTERS = 32


def containers(task: Task) -> Iterator[Container]:
    """The agent's container, and those of verifiers that have one."""
    yield task.environment
    yield from (step.verifier.container for step in task.steps if step.verifier.container is not None)


def tag(context: Path) -> str:
    """The name of the image that a folder makes."""
    digest = hashlib.sha256()
    for path in sorted(context.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        name = path.relative_to(context).as_posix()
        if path.is_symlink():
            told = f"link\0{path.readlink()}"
        else:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            told = f"{'program' if path.stat().st_mode & 0o111 else 'file'}\0{content}"
        digest.update(f"{name}\0{told}\n".encode())
    return f"{REPOSITORY}:{digest.hexdigest()[:TAG_CHARACTERS]}"


async def image_of(
    provider: SandboxProvider,
    task: Task,
    container: Container,
    build_multiplier: float,
    on_progress: OnImageProgress | None = None,
) -> ImageFacts:
    """The image of a container; it is built or pulled unless it is there.

    Raises:
        UserError: It cannot be had.
    """
    if container.context is None:
        assert container.docker_image is not None
        return await provider.image(container.docker_image, on_progress)
    name = await asyncio.to_thread(tag, container.context)
    seconds = container.config.build_timeout_sec * build_multiplier
    order = ImageBuild(name, container.context, seconds, {TASK_LABEL: task.name})
    return await provider.build(order, on_progress)


async def image_in_episode(
    provider: SandboxProvider, task: Task, container: Container, build_multiplier: float
) -> ImageFacts:
    """The same while an episode runs; mostly it was prepared before.

    Raises:
        EpisodeFailure: `image_build` where it cannot be built, `image_pull` where it cannot be pulled.
    """
    try:
        return await image_of(provider, task, container, build_multiplier)
    except UserError as error:
        kind = "image_pull" if container.context is None else "image_build"
        raise EpisodeFailure(kind, str(error)) from error


async def prepare(
    provider: SandboxProvider, tasks: Iterable[Task], build_multiplier: float, on_progress: OnImageProgress
) -> dict[str, str]:
    """Has the images of tasks ready before the first episode; the provider bounds how many at a time.

    What fails is told, and then fails the episodes of its task, not those of others.

    Returns:
        The digest of each image.

    Raises:
        UserError: No image can be pulled, and none is built.
    """
    wanted = [(task, container) for task in tasks for container in containers(task)]
    work = (image_of(provider, task, container, build_multiplier, on_progress) for task, container in wanted)
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    problems: list[Problem] = []
    for (task, container), outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, UserError):
            if container.context is None:
                key = (*container.key, "docker_image")
                problems += [task.problem(key, problem.what, problem.fix) for problem in outcome.problems]
        elif isinstance(outcome, BaseException):
            raise outcome
    found = {image.name: image.digest for image in outcomes if isinstance(image, ImageFacts)}
    if problems and not found:
        raise UserError(problems)
    for problem in problems:
        log.warning("%s", problem)
    return found
