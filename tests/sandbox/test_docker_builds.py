"""Images built from folders: each once, with the reason where that fails, and an end when the time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from gym.errors import UserError
from gym.sandbox.interface import ImageBuild, ImageProgress, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, leftovers
from gym.sandbox.providers.docker.daemon import Daemon
from gym.sandbox.spec import TASK_LABEL
from tests.sandbox.conftest import docker
from tests.sandbox.docker_tools import ask


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """A provider; what it has built is removed."""
    made = docker(tmp_path)
    yield made
    await made.aclose()
    tags = ask(lambda api: [tag for item in api.images("gym-test-build") for tag in item["RepoTags"] or ()])
    ask(lambda api: [api.remove_image(tag) for tag in tags])


WHOLE = """
FROM gym-base
COPY word /srv/app/word
WORKDIR /srv/app
USER agent
ENTRYPOINT ["x"]
"""


def order(path: Path, dockerfile: str, seconds: float = 120, label: str = "gym.test") -> ImageBuild:
    """A folder with a Dockerfile."""
    path.mkdir()
    path.joinpath("Dockerfile").write_text(dockerfile)
    path.joinpath("word").write_text("marzipan\n")
    return ImageBuild(f"gym-test-build:{uuid4().hex}", path, seconds, {TASK_LABEL: "t/task", label: ""})


async def test_a_folder_becomes_an_image_once(provider: DockerProvider, tmp_path: Path) -> None:
    steps: list[ImageProgress] = []
    wanted = order(tmp_path / "a", WHOLE)
    first, second = await asyncio.gather(provider.build(wanted, steps.append), provider.build(wanted))
    assert first == second
    assert (first.user, first.workdir, first.entrypoint) == ("agent", "/srv/app", ("x",))
    assert [(step.state, step.message) for step in steps] == [("building", "t/task"), ("ready", "t/task")]
    assert await provider.image(wanted.tag) == first
    sandbox = await provider.create(SandboxSpec(image=wanted.tag, workdir=first.workdir))
    assert sandbox.image_digest == first.digest
    assert await sandbox.read_file("word", 100) == b"marzipan\n"
    await sandbox.stop()


async def test_images_of_tasks_are_swept_unless_they_are_new_or_in_use(
    provider: DockerProvider, tmp_path: Path
) -> None:
    mine = f"gym.test.{uuid4().hex}"  # others may be building now
    wanted = order(tmp_path / "a", WHOLE, label=mine)
    await provider.build(wanted)
    sweep = partial(leftovers.sweep_images, Daemon(None), mine)
    sandbox = await provider.create(SandboxSpec(image=wanted.tag))
    assert await sweep() == await sweep(least_age_seconds=-5) == 0
    await sandbox.stop()
    assert [await sweep(least_age_seconds=-5), await sweep(least_age_seconds=-5)] == [1, 0]


@pytest.mark.parametrize(
    ("dockerfile", "said"),
    [
        ("FRM x\n", "unknown instruction: FRM"),
        ("", "cannot be empty"),
        ("FROM gym-base\nRUN <<END\nls\nEND\n", "unknown instruction: LS.*needs BuildKit"),
    ],
)
async def test_a_dockerfile_that_is_none_is_told(
    provider: DockerProvider, tmp_path: Path, dockerfile: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        await provider.build(order(tmp_path / "a", dockerfile))


async def test_a_build_that_fails_says_why_and_is_not_tried_again(provider: DockerProvider, tmp_path: Path) -> None:
    steps: list[ImageProgress] = []
    wanted = order(tmp_path / "a", "FROM gym-base\nRUN echo the; echo reason >&2; exit 7\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"t/task could not be built: .* code: 7; .* \| (the|reason)"):
            await provider.build(wanted, steps.append)
    assert [step.state for step in steps] == ["building", "failed"]


async def test_a_build_ends_when_its_time_is_up(provider: DockerProvider, tmp_path: Path) -> None:
    wanted = order(tmp_path / "a", "FROM gym-base\nRUN echo begun; exec sleep 300\n", 3)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"not done within 3 s; it said at the end: .* begun"):
        await provider.build(wanted)
    assert time.monotonic() - began < 60
