"""Commands as another user than root: what they own, and what they cannot put off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
from gym.testing.sandbox_conformance.servers import greeting, reached
from tests.sandbox.conftest import IMAGE, docker
from tests.sandbox.docker_tools import ask, containers

FEWER = [
    {"no_new_privileges": True},
    {"cap_drop": ["ALL"]},
    {"cap_drop": ["ALL"], "no_new_privileges": True, "read_only_root": True},
    {"cap_drop": ["ALL"], "tmpfs": {"/deep/work": ""}},
]


@pytest.fixture
async def boxes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """The provider with the settings of the test, for the user `agent`."""
    docker(tmp_path)
    settings = {"default_image": IMAGE, "user": "agent", **getattr(request, "param", {})}
    made = DockerProvider(DockerProviderConfig.model_validate(settings))
    yield made
    await made.aclose()


@pytest.mark.parametrize("boxes", FEWER, indirect=True)
async def test_a_user_works_with_fewer_privileges(boxes: DockerProvider, tmp_path: Path) -> None:
    sandbox = await boxes.create(SandboxSpec(workdir="/deep/work"))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("x")
    await sandbox.upload(tmp_path / "tree", "tree")
    await sandbox.upload(tmp_path / "tree", sandbox.workdir)
    borrowed = await boxes.connect(sandbox.descriptor())
    await borrowed.upload(b"x", "new/bytes")
    done = await borrowed.exec(
        "touch made; for f in new new/bytes tree tree/file made; do [ -O $f ] || echo $f; done; id -un;"
        "umask 077; mkdir own; echo secret >own/secret; grep -h CapEff /proc/self/status"
    )
    assert done.stdout_text == f"agent\nCapEff:\t{0:016}\n", done.stderr_text
    assert await sandbox.read_file("own/secret", 10) == b"secret\n"
    assert (await sandbox.exec("sleep 1000 & sleep 1000", timeout_seconds=0.5)).timed_out
    await sandbox.renew(100)
    await sandbox.fence()
    assert (await sandbox.exec("ls")).stdout == b"file\nmade\nnew\nown\ntree\n"


@pytest.mark.parametrize("boxes", [{"cap_drop": ["ALL"], "user": user} for user in ("root", "agent")], indirect=True)
async def test_what_its_owner_has_closed_is_copied(boxes: DockerProvider, tmp_path: Path) -> None:
    sandbox = await boxes.create(SandboxSpec(workdir="/work"))
    closed = await sandbox.exec("mkdir -p 'a b/c'; echo x >'a b/c/d'; chmod 0 'a b/c/d' 'a b/c' 'a b' .")
    assert closed.exit_code == 0, closed
    assert await sandbox.download("/work", tmp_path / "copy") == []
    assert (tmp_path / "copy" / "a b" / "c" / "d").read_text() == "x\n"


@pytest.mark.parametrize("boxes", [{"cap_drop": ["ALL"]}], indirect=True)
async def test_what_others_have_closed_is_refused(boxes: DockerProvider, tmp_path: Path) -> None:
    sandbox = await boxes.create(SandboxSpec(workdir="/work"))
    for folder in ("/root", "/etc"):  # closed itself, and with a closed file
        with pytest.raises(PermissionError):
            await sandbox.download(folder, tmp_path / "copy")


async def test_only_root_can_put_off_the_end_of_a_container(boxes: DockerProvider) -> None:
    sandbox = await boxes.create(SandboxSpec(ttl_seconds=600))
    tried = await sandbox.exec(
        "echo 99999999999 >/dev/shm/.gym/until; mv /dev/shm/.gym /dev/shm/x; rm -r /dev/shm/.gym"
    )
    assert tried.stderr_text.count("ermi") >= 3, tried
    assert (await sandbox.exec("[ ! -e /dev/shm/.gym/until ]", user="root")).exit_code == 0
    await sandbox.exec("mkdir /dev/shm/.gym/until", user="root")
    with pytest.raises(EpisodeFailure, match="directory"):
        await sandbox.renew(700)


async def test_a_paused_container_is_noticed(boxes: DockerProvider) -> None:
    sandbox = await boxes.create(SandboxSpec())
    container = containers(sandbox.id)[0]["Id"]
    ask(lambda api: api.pause(container))
    assert not await sandbox.alive()
    with pytest.raises(EpisodeFailure, match="is paused"):
        await sandbox.exec("true")


@pytest.mark.parametrize("boxes", [{"read_only_root": True}], indirect=True)
async def test_a_read_only_root_keeps_its_name_servers(boxes: DockerProvider) -> None:
    sandbox = await boxes.create(SandboxSpec(network="open"))
    await sandbox.change_network("none")
    await sandbox.change_network("open")
    with pytest.raises(UserError, match="cannot be changed to gym_only: with a read-only root"):
        await sandbox.change_network("gym_only")


async def test_only_sandboxes_of_a_network_reach_its_servers(boxes: DockerProvider) -> None:
    async with greeting("gym") as port:
        url = f"http://127.0.0.1:{port}"
        closed, opened = [await boxes.create(SandboxSpec(network=network)) for network in ("gym_only", "open")]
        inside = await closed.gym_url(url)
        assert await reached(closed, inside) == "gym"
        assert await reached(opened, await opened.gym_url(url)) == "gym"
        assert await reached(opened, inside, 1) != "gym"
