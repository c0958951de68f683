"""What containers can do beyond the conformance suite: users, read-only roots, limits, networks, labels."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Common, ExecResult, Resources, Sandbox, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig, networks
from gym.testing.sandbox_conformance.commands import HOLD, free
from gym.testing.sandbox_conformance.servers import greeting, reached
from tests.sandbox.conftest import IMAGE, docker
from tests.sandbox.docker_tools import ask, containers
from tests.sandbox.running import PROJECT


@pytest.fixture
async def sandbox(containers: DockerProvider) -> Sandbox:
    return await containers.create(SandboxSpec())


async def with_settings(tmp_path: Path, **settings: object) -> DockerProvider:
    docker(tmp_path)
    return DockerProvider(DockerProviderConfig.model_validate({"default_image": IMAGE, **settings}))


def test_settings(containers: DockerProvider) -> None:
    for name, field in DockerProviderConfig.model_fields.items():
        assert field.description, name
    shipped = OmegaConf.to_container(OmegaConf.load(PROJECT / "conf" / "sandbox" / "docker.yaml"))
    assert isinstance(shipped, dict)
    block = dict(shipped["sandbox"])
    assert block.pop("_target_") == "gym.sandbox.providers.docker.DockerProvider"
    assert DockerProviderConfig.model_validate(block).default_image == IMAGE
    assert containers.describe().startswith("docker ")
    assert containers.isolated


async def test_nothing_is_reached_before_it_is_needed() -> None:
    provider = DockerProvider(DockerProviderConfig(host="unix:///nowhere/docker.sock"))
    assert provider.isolated
    assert provider.capabilities.users
    with pytest.raises(
        UserError, match=r"Docker daemon at unix:///nowhere/docker\.sock does not answer: .*start Docker"
    ):
        provider.describe()
    with pytest.raises(UserError, match="needs an image"):
        await provider.create(SandboxSpec())
    with pytest.raises(EpisodeFailure, match="does not answer") as caught:
        await provider.create(SandboxSpec(image="x"))
    assert caught.value.kind == "sandbox_start"
    await provider.aclose()


@pytest.mark.parametrize("host", ["ssh://somewhere", "nonsense"])
async def test_hosts_that_are_not_supported(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(UserError, match="only unix:// and tcp:// without TLS are supported"):
        DockerProvider(DockerProviderConfig()).describe()


async def test_labels_and_limits(tmp_path: Path) -> None:
    provider = await with_settings(
        tmp_path, default_metadata={"team": "a", "rollout": "default"}, default_memory_mib=256, cap_drop=["NET_RAW"]
    )
    provider.common = Common(labels={"run": "results/x"})
    sandbox = await provider.create(
        SandboxSpec(labels={"rollout": "7-0"}, ttl_seconds=600, resources=Resources(cpu=0.5, pids=50))
    )
    found = ask(lambda api: api.inspect_container(containers(sandbox.id)[0]["Id"]))
    labels, host = found["Config"]["Labels"], found["HostConfig"]
    told = {"team": "a", "rollout": "7-0", "run": "results/x"}
    assert {key: labels[f"gym.label.{key}"] for key in told} == told
    assert json.loads(labels["gym.owner"])["pid"] == os.getpid()
    assert int(labels["gym.expires"]) > 0
    assert (host["Memory"], host["MemorySwap"], host["CpuQuota"]) == (256 * 2**20, 256 * 2**20, 50_000)
    assert (host["PidsLimit"], host["CapDrop"], host["AutoRemove"]) == (58, ["NET_RAW"], True)
    await provider.aclose()
    assert containers(sandbox.id) == []


ELSEWHERE = """
import asyncio
from pathlib import Path
from gym.sandbox.interface import Common, Mount, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig

async def main():
    provider = DockerProvider(DockerProviderConfig(default_image={image!r}))
    provider.common = Common(mounts=(Mount(Path({folder!r}), "/gym/runtime"),))
    for _ in range(2):
        sandbox = await provider.create(SandboxSpec())
        print((await sandbox.exec("ls -d /gym")).exit_code)
    await provider.aclose()

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
async def test_common_mounts_are_left_out_where_the_daemon_does_not_see_them(tmp_path: Path) -> None:
    docker(tmp_path)
    code = ELSEWHERE.format(image=IMAGE, folder=f"{tmp_path}/runtime")
    # Only this process sees the folder, as in a container to which the daemon's socket is mounted.
    hidden = f"mount -t tmpfs none {tmp_path} && mkdir {tmp_path}/runtime && exec {shlex.join([sys.executable, '-'])}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden], input=code, cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "2\n2\n", done.stderr
    assert done.stderr.count("does not see this machine's folders") == 1


async def test_process_limit(containers: DockerProvider) -> None:
    sandbox = await containers.create(SandboxSpec(resources=Resources(pids=24)))
    result = await sandbox.exec("for i in $(seq 60); do sleep 1000 & done; echo all", timeout_seconds=20)
    assert "all" not in result.stdout_text


async def test_a_fork_bomb_does_not_outlive_its_time(containers: DockerProvider) -> None:
    sandbox = await containers.create(SandboxSpec(resources=Resources(pids=40)))
    bomb = "bomb() { bomb | bomb & }; trap '' TERM; bomb; sleep 1000"
    (outcome,) = await asyncio.gather(sandbox.exec(["bash", "-c", bomb], timeout_seconds=2), return_exceptions=True)
    if isinstance(outcome, ExecResult):
        assert outcome.timed_out
        assert (await sandbox.exec("true")).exit_code == 0
    else:
        # No room was left for what would have killed it.
        assert isinstance(outcome, EpisodeFailure)
        assert outcome.kind == "sandbox_lost"
        assert not await sandbox.alive()


async def test_out_of_memory_is_told_although_the_command_went_on(containers: DockerProvider) -> None:
    sandbox = await containers.create(SandboxSpec(resources=Resources(memory_mib=64)))
    result = await sandbox.exec("python3 -c 'bytearray(400_000_000)'; echo went on")
    assert (result.exit_code, result.stdout, result.oom) == (0, b"went on\n", True)
    assert await sandbox.alive()


async def test_a_timeout_also_kills_processes_of_other_users(sandbox: Sandbox) -> None:
    await sandbox.exec("chmod 777 .; touch lock; chmod 666 lock")
    other = f"setpriv --reuid=1000 --regid=1000 --clear-groups setsid sh -c {shlex.quote(HOLD)}"
    result = await sandbox.exec(f"{other} & sleep 1000", timeout_seconds=2)
    assert (result.timed_out, result.stdout) == (True, b"locked\n")
    assert await free(sandbox)


async def test_a_command_that_kills_everything_ends_alone(sandbox: Sandbox) -> None:
    result = await sandbox.exec(
        f"setsid sh -c {shlex.quote(HOLD)} & until [ -e lock ]; do :; done; kill -9 -1; sleep 1000"
    )
    assert (result.exit_code, result.signal) == (137, 9)
    assert await free(sandbox)
    zombies = await sandbox.exec("ps axo stat= | grep -c ^Z")
    assert zombies.stdout == b"0\n"


async def test_own_exit_codes_are_not_taken_for_the_daemons(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo 'OCI runtime exec failed: not really'; exit 126")
    assert (result.exit_code, result.stdout_text) == (126, "OCI runtime exec failed: not really\n")
    with pytest.raises(UserError, match="the image has no user `nobody-here`"):
        await sandbox.exec("true", user="nobody-here")


@pytest.mark.parametrize("user", ["agent", "4321", "1000:1000"])
async def test_commands_as_a_user_own_their_work(tmp_path: Path, user: str) -> None:
    provider = await with_settings(tmp_path, user=user)
    assert not provider.capabilities.root
    sandbox = await provider.create(SandboxSpec(workdir="/deep/work"))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("x")
    await sandbox.upload(b"x", "new/bytes")
    await sandbox.upload(tmp_path / "tree", "tree")
    done = await sandbox.exec(
        "touch made; for f in . new new/bytes tree tree/file; do [ -O $f ] || echo $f; done; id -u"
    )
    assert done.stdout_text == ("4321\n" if user == "4321" else "1000\n"), done.stderr_text
    assert (await sandbox.exec("id -u", user="root")).stdout == b"0\n"
    borrowed = await provider.connect(sandbox.descriptor())
    await borrowed.upload(b"y", "borrowed")
    assert (await borrowed.exec("[ -O borrowed ] && id -u")).stdout == done.stdout
    await provider.aclose()


async def test_the_images_own_user_is_kept(sandbox: Sandbox, containers: DockerProvider) -> None:
    from tests.sandbox import docker_tools

    image = f"gym-test-user:{sandbox.id}"
    original = docker_tools.containers(sandbox.id)[0]["Id"]
    ask(lambda api: api.commit(original, *image.split(":"), changes="USER agent"))
    try:
        own = await containers.create(SandboxSpec(image=image))
        assert (await own.exec("touch x; id -un")).stdout == b"agent\n"
        await own.stop()
    finally:
        ask(lambda api: api.remove_image(image))


async def test_a_read_only_root(tmp_path: Path) -> None:
    provider = await with_settings(tmp_path, read_only_root=True, tmpfs={"/data": "size=1m"})
    sandbox = await provider.create(SandboxSpec())
    tried = await sandbox.exec("touch /usr/x /etc/x /x; echo '#!/bin/sh\necho runs' >tool; chmod +x tool; ./tool")
    assert tried.stdout == b"runs\n"
    assert tried.stderr_text.count("Read-only file system") == 3
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_text("in")
    for place in ("tree", "/tmp/tree"):
        await sandbox.upload(tmp_path / "tree", place)
        await sandbox.download(place, tmp_path / "back")
        assert (tmp_path / "back" / "sub" / "file").read_text() == "in"
    await sandbox.upload(b"bytes", "/tmp/a/b")
    assert await sandbox.read_file("/tmp/a/b", 10) == b"bytes"
    with pytest.raises(OSError, match="Read-only"):
        await sandbox.upload(b"x", "/etc/new/x")
    with pytest.raises(OSError, match="No space"):
        await sandbox.upload(bytes(3_000_000), "/data/big")
    assert (await sandbox.exec("ls -A /data")).stdout == b""
    await provider.aclose()


async def test_fewer_privileges(tmp_path: Path) -> None:
    provider = await with_settings(tmp_path, cap_drop=["ALL"], no_new_privileges=True, user="agent")
    sandbox = await provider.create(SandboxSpec())
    status = dict(line.split(":\t") for line in (await sandbox.exec("cat /proc/self/status")).stdout_text.splitlines())
    assert (status["CapEff"], status["CapBnd"], status["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
    await provider.aclose()


async def test_images_without_tar_are_served(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.exec("rm -f $(command -v tar)")
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_text("in")
    (tmp_path / "tree" / "link").symlink_to("sub/file")
    await sandbox.upload(tmp_path / "tree", "a/tree")
    assert (await sandbox.exec("cat a/tree/link")).stdout == b"in"
    assert await sandbox.download("a/tree", tmp_path / "back") == []
    assert (tmp_path / "back" / "link").read_text() == "in"


async def test_sockets_are_left_out(sandbox: Sandbox, tmp_path: Path) -> None:
    script = "import socket; socket.socket(socket.AF_UNIX).bind('d/s'); open('d/f', 'w').close()"
    await sandbox.exec(["sh", "-c", 'mkdir d; python3 -c "$0"', script])
    assert await sandbox.download("d", tmp_path / "d") == ["s"]
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["f"]


@pytest.fixture
async def apart(containers: DockerProvider) -> AsyncIterator[tuple[Sandbox, Sandbox]]:
    """Two sandboxes of the same policy, of which the first one serves `inside` at port 8000."""
    one, two = [await containers.create(SandboxSpec(network="open")) for _ in range(2)]
    await one.upload(b"inside", "index.html")
    serving = asyncio.ensure_future(one.exec(["python3", "-m", "http.server", "8000"]))
    while (await one.exec("grep -q :1F40 /proc/net/tcp")).exit_code:
        await asyncio.sleep(0.05)
    yield one, two
    serving.cancel()


async def test_sandboxes_do_not_reach_each_other(apart: tuple[Sandbox, Sandbox]) -> None:
    host, port = await apart[0].forward(8000)
    assert await reached(apart[0], f"http://{host}:{port}") == "inside"
    assert (await reached(apart[1], f"http://{host}:{port}", 1)).startswith("refused")


async def test_open_sandboxes_know_this_machine_by_name(containers: DockerProvider) -> None:
    sandbox = await containers.create(SandboxSpec(network="open"))
    assert "host.docker.internal" in (await sandbox.exec("cat /etc/hosts")).stdout_text


@pytest.mark.skipif(os.geteuid() != 0, reason="filter rules need root")
async def test_gym_only_hides_the_other_addresses_of_this_machine(containers: DockerProvider) -> None:
    bridge = ask(lambda api: networks.look_up(api, "bridge").gateway)
    async with greeting("gym") as gym, greeting("other", bridge) as other:
        sandbox = await containers.create(SandboxSpec(network="gym_only"))
        url = await sandbox.gym_url(f"http://127.0.0.1:{gym}")
        gateway = url.removeprefix("http://").partition(":")[0]
        async with greeting("beside", gateway) as beside:
            for address in (f"{bridge}:{other}", f"{gateway}:{beside}"):
                assert (await reached(sandbox, f"http://{address}", 1)).startswith("refused"), address
            assert await reached(sandbox, url) == "gym"
        opened = await containers.create(SandboxSpec(network="open"))
        assert await reached(opened, f"http://{bridge}:{other}") == "other"


def own_networks() -> set[str]:
    """The networks of this process; others may use the same daemon."""
    found = ask(lambda api: api.networks(filters={"label": "gym.owner"}))
    return {item["Name"] for item in found if f'"pid":{os.getpid()},' in item["Labels"]["gym.owner"]}


async def test_networks_are_shared_and_removed(containers: DockerProvider) -> None:
    before = own_networks()
    await asyncio.gather(*(containers.create(SandboxSpec(network="gym_only")) for _ in range(3)))
    made = own_networks() - before
    assert len(made) == 1
    await containers.aclose()
    assert not own_networks() & made
    if os.geteuid() == 0:
        rules = subprocess.run(["iptables", "-w", "-S", "INPUT"], capture_output=True, text=True, check=True).stdout
        assert not any(name in rules for name in made)


async def test_a_start_that_the_daemon_refuses_leaves_nothing(tmp_path: Path) -> None:
    provider = await with_settings(tmp_path)
    with pytest.raises(EpisodeFailure, match="could be started") as caught:
        await provider.create(SandboxSpec(workdir="/etc/passwd", labels={"who": "refused"}))
    assert caught.value.kind == "sandbox_start"
    assert not [item for item in containers() if item["Labels"].get("gym.label.who") == "refused"]
    await provider.aclose()
