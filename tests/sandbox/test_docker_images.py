"""Images of the docker provider: pulled from a real registry on loopback, and what is said when that fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.sandbox.interface import ImageProgress, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
from tests.sandbox.conftest import docker
from tests.sandbox.docker_tools import ask
from tests.sandbox.registry import Registry

Make = Callable[..., DockerProvider]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry().running() as made:
        yield made
    ours = [tag for image in ask(lambda api: api.images()) for tag in image["RepoTags"] or [] if made.address in tag]
    ask(lambda api: [api.remove_image(tag) for tag in ours])


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes providers with these settings, and closes them."""
    docker(tmp_path)
    made: list[DockerProvider] = []

    def one(**settings: object) -> DockerProvider:
        made.append(DockerProvider(DockerProviderConfig.model_validate(settings)))
        return made[-1]

    yield one
    for provider in made:
        await provider.aclose()


async def test_images_are_prepared_in_parallel_with_progress(registry: Registry, make: Make) -> None:
    names = [registry.add("gym-test/small", "1"), registry.add("gym-test/large", "2", size=8_000_000)]
    seen: list[ImageProgress] = []
    digests = await make().prepare([*names, names[0]], seen.append)
    assert set(digests) == set(names)
    assert all(digests[name].startswith(f"{name.rpartition(':')[0]}@sha256:") for name in names)
    for name in names:
        states = [step.state for step in seen if step.image == name]
        assert (states[0], states[-1]) == ("pulling", "ready")
    downloaded = [step for step in seen if step.done_bytes]
    assert max(step.total_bytes for step in downloaded if step.image == names[1]) > 7_000_000
    assert all(step.done_bytes <= step.total_bytes for step in downloaded)
    later: list[str] = []
    assert await make().prepare(names, lambda step: later.append(step.state)) == digests
    assert later == ["here", "here"]


@pytest.mark.parametrize(("policy", "pulls"), [("always", 1), ("missing", 0)])
async def test_the_policy(registry: Registry, make: Make, policy: str, pulls: int) -> None:
    name = registry.add("gym-test/policy", "1")
    await make().prepare([name])
    asked = len(registry.requests)
    provider = make(pull=policy)
    for _ in range(2):
        await provider.prepare([name])
    assert (len(registry.requests) > asked) == bool(pulls)


async def test_work_for_one_image_is_shared(registry: Registry, make: Make) -> None:
    name = registry.add("gym-test/shared", "1")
    provider = make()
    await asyncio.gather(*(provider.prepare([name]) for _ in range(5)))
    assert sum(path.endswith("/manifests/1") for path in registry.requests) <= 2


async def test_a_pull_that_hangs_can_be_given_up(make: Make) -> None:
    provider = make()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = f"127.0.0.1:{silent.getsockname()[1]}/gym-test/x"
        pulling = asyncio.ensure_future(provider.prepare([name]))
        asked, _ = await asyncio.to_thread(silent.accept)
        with asked:
            pulling.cancel()
            async with asyncio.timeout(10):
                await asyncio.gather(pulling, return_exceptions=True)
                await provider.aclose()


async def test_an_image_without_a_shell_is_a_failed_start(registry: Registry, make: Make) -> None:
    from gym.failures import EpisodeFailure

    with pytest.raises(EpisodeFailure, match=r"no container of .* could be started: .*/bin/sh") as caught:
        await make().create(SandboxSpec(image=registry.add("gym-test/empty", "1")))
    assert caught.value.kind == "sandbox_start"


@pytest.mark.parametrize(
    ("image", "settings", "said"),
    [
        ("127.0.0.1:1/gym-test/x", {}, r"`127\.0\.0\.1:1/gym-test/x` is not here, and its registry cannot be reached"),
        ("{registry}/gym-test/missing:9", {}, "its registry does not have it, or wants a `docker login`"),
        ("gym-test-never", {"pull": "never"}, "pull is `never`"),
        ("Not An Image", {}, "which is no name of an image|could not be pulled"),
    ],
)
async def test_what_is_said_of_an_image_that_cannot_be_had(
    registry: Registry, make: Make, image: str, settings: dict[str, str], said: str
) -> None:
    provider = make(**settings)
    name = image.format(registry=registry.address)
    seen: list[ImageProgress] = []
    with pytest.raises(UserError, match=said) as caught:
        await provider.prepare([name], seen.append)
    assert "`docker load` or `docker build` it" in str(caught.value)
    assert seen[-1].state == "failed"
    with pytest.raises(UserError, match=said):
        await provider.create(SandboxSpec(image=name))


async def test_all_missing_images_are_told_at_once(make: Make) -> None:
    provider = make(pull="never", default_image="gym-test-default")
    with pytest.raises(UserError) as caught:
        await provider.prepare([None, "gym-test-a", "gym-test-b", "gym-base"])
    assert [problem.key for problem in caught.value.problems] == ["sandbox.default_image", "image", "image"]
    assert "tests/tools/base_image.py" in str(caught.value)
