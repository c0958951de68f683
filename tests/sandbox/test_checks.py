"""What is refused before anything is started: settings by their own checks, specs by `SandboxProvider.check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gym.composition.compose import compose
from gym.errors import UserError
from gym.planning.plan import plan
from gym.planning.resolve import resolve
from gym.sandbox.interface import Resources, Sandbox, SandboxProvider, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.sandbox.spec_config import SandboxConfig
from tests.conftest import Project
from tests.sandbox.conftest import IMAGE, docker

SPECS = [
    ({"network": "weird"}, "network", "has no network `weird`"),
    ({"workdir": "/a/../b"}, "workdir", "without `..`"),
    ({"env": {"A=B": "1"}}, "env", "no environment can hold the variable 'A=B'"),
    ({"env": {"A": "\0"}}, "env", "no environment can hold the variable 'A'"),
    ({"ttl_seconds": -1}, "ttl_seconds", "out of bounds"),
    ({"ttl_seconds": 1e300}, "ttl_seconds", "out of bounds"),
    ({"resources": Resources(cpu=-1)}, "resources.cpu", "use 0.01 to 10000"),
    ({"resources": Resources(memory_mib=2)}, "resources.memory_mib", "use 6 to"),
]


@pytest.mark.parametrize(("asked", "key", "what"), SPECS, ids=[f"{key} {what[:12]}" for _, key, what in SPECS])
async def test_specs(provider: SandboxProvider, asked: dict[str, object], key: str, what: str) -> None:
    spec = SandboxSpec(**asked)  # type: ignore[arg-type]
    (told,) = provider.check(spec)
    assert (told.key, what in str(told)) == (key, True), told
    with pytest.raises(UserError) as caught:
        await provider.create(spec)
    assert caught.value.problems == [told]


async def test_specs_that_one_provider_refuses() -> None:
    local, containers = LocalProvider(LocalProviderConfig(isolation="none")), DockerProvider(DockerProviderConfig())
    assert [problem.key for problem in local.check(SandboxSpec(image="x"))] == ["image"]
    assert [problem.key for problem in containers.check(SandboxSpec())] == ["image"]
    assert containers.check(SandboxSpec(image="x")) == []


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
async def test_paths_that_cannot_be(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    uses = sandbox.upload(b"x", name), sandbox.read_file(name, 1), sandbox.download(name, tmp_path / "x")
    for use in uses:
        with pytest.raises(ValueError, match="a path cannot contain"):
            await use


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"cap_drop": ["NET_RAWW"]}, "no capability `NET_RAWW`"),
        ({"tmpfs": {"/scratch": "size=abc"}}, "`size=abc` is no option"),
        ({"tmpfs": {"scratch": ""}}, "`scratch` is no folder"),
        ({"tmpfs": {"/": "size=1m"}}, "`/` is no folder"),
        ({"default_memory_mib": 1}, "greater than or equal to 6"),
        ({"default_memory_mib": 2**63}, "less than or equal"),
        ({"default_cpu": 0.001}, "greater than or equal"),
        ({"default_cpu": 1e9}, "less than or equal"),
        ({"default_pids": 2**63}, "less than or equal"),
        ({"default_disk_mib": 2**63}, "less than or equal"),
        ({"default_ttl_seconds": 1e300}, "less than or equal"),
        ({"user": "a:b:c"}, "`a:b:c` is no user"),
        ({"user": -1}, "`-1` is no user"),
        ({"user": 2**31}, "is no user"),
        ({"host": "ssh://somewhere"}, "only unix:// and tcp://"),
    ],
)
def test_settings_of_docker(settings: dict[str, object], what: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DockerProviderConfig.model_validate(settings)
    (told,) = caught.value.errors()
    assert what in told["msg"]


def test_settings_that_docker_takes() -> None:
    taken = {"cap_drop": ["cap_net_raw", "ALL"], "tmpfs": {"/x": "size=64m,exec,mode=1777"}, "host": "tcp://127.0.0.1"}
    assert DockerProviderConfig.model_validate({**taken, "user": 1000}).user == "1000"
    assert SandboxConfig.model_validate({"resources": {"memory_mib": 6}, "ttl_s": 1}).ttl_seconds == 1


@pytest.mark.parametrize(("user", "missing"), [("nobody-here", "nobody-here"), ("agent:no-group", "no-group")])
async def test_users_that_an_image_does_not_know(tmp_path: Path, user: str, missing: str) -> None:
    docker(tmp_path)
    provider = DockerProvider(DockerProviderConfig(default_image=IMAGE, pull="never", user=user))
    with pytest.raises(UserError, match=f"`{IMAGE}` does not know `{missing}`"):
        await provider.prepare([None])
    await provider.aclose()


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("image=x", "a local sandbox cannot start from the image `x`"),
        ("workdir=/a/../b", "the work directory `/a/../b` cannot be used"),
        ("resources.memory_mib=2", "wants an integer from 6 to"),
    ],
)
def test_a_plan_tells_where_it_was_set(project: Project, setting: str, what: str) -> None:
    project({})
    given = f"benchmark.resources_servers.workspace_tasks.sandbox_config.{setting}"
    with pytest.raises(UserError) as caught:
        plan(resolve(compose(["+experiment=onboarding", "sandbox=local", given], [])))
    (told,) = map(str, caught.value.problems)
    assert told.startswith(f"command line: {given}  ")
    assert what in told
