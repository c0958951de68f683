"""What the conformance suite does not ask for, on a real server whose daemon in the sandboxes is a stand-in."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Resources, SandboxSpec
from gym.sandbox.providers.opensandbox import OpenSandboxProvider
from gym.sandbox.providers.opensandbox.labels import MANAGED
from gym.sandbox.providers.opensandbox.remote import Deployment
from tests.sandbox.opensandbox.deployment import Server
from tests.sandbox.running import run_python

if TYPE_CHECKING:
    from opensandbox.models.sandboxes import SandboxInfo

OPEN = SandboxSpec(network="open")
GATEWAY = "import socket; socket.create_connection(('172.17.0.1', 2375), 2)"


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout


async def test_networks(boxes: OpenSandboxProvider) -> None:
    for network, said in (("open", "refused"), ("none", "timed out")):
        sandbox = await boxes.create(SandboxSpec(network=network))  # type: ignore[arg-type]
        probe = await sandbox.exec(["python3", "-c", GATEWAY])
        assert said in probe.stderr_text, network
    with pytest.raises(UserError, match="network `none` cannot reach"):
        await sandbox.gym_url("http://10.0.0.1:80/")


async def test_directly_and_without_the_servers_proxy(deployment: Server, tmp_path: Path) -> None:
    provider = OpenSandboxProvider(deployment.config(use_server_proxy=False))
    sandbox = await provider.create(OPEN)
    content = os.urandom(3_000_000)
    await sandbox.upload(content, "large")
    assert (await sandbox.exec("sha256sum <large; cat large", max_output_bytes=10)).stdout_truncated > 2_999_000
    await sandbox.download("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == content
    assert (await sandbox.exec("sleep 1000", timeout_seconds=0.5)).timed_out
    assert await sandbox.gym_url("http://10.0.0.1:80/") == "http://10.0.0.1:80/"
    with pytest.raises(UserError, match="default_host"):
        await sandbox.gym_url("http://localhost:80/")
    await provider.aclose()


async def test_users(boxes: OpenSandboxProvider) -> None:
    sandbox = await boxes.create(OPEN)
    for user in ("agent", 1000, "1000"):
        result = await sandbox.exec('id -un; id -gn; echo "$HOME"; touch ~/file', user=user, cwd="/")
        assert result.stdout == b"agent\nagent\n/home/agent\n", result
    probe = "id -u; id -g; touch /root/x 2>/dev/null || echo kept out"
    nobody = await sandbox.exec(probe, user=4321, stdin=bytes(99_999))
    assert nobody.stdout == b"4321\n4321\nkept out\n"
    late = await sandbox.exec("setsid sleep 1000 & sleep 1000", user="agent", timeout_seconds=0.5)
    assert late.timed_out
    assert (await sandbox.exec("pgrep -c sleep")).stdout == b"0\n"
    assert (await sandbox.exec('echo "$HOME"', user="agent", env={"HOME": "/mine"})).stdout == b"/mine\n"
    with pytest.raises(UserError, match="no user `somebody`"):
        await sandbox.exec("true", user="somebody")
    # Nothing is left but what belongs to this command itself.
    assert (await sandbox.exec("ls -d /tmp/.gym* | wc -l")).stdout == b"1\n"


async def test_limits(boxes: OpenSandboxProvider) -> None:
    sandbox = await boxes.create(SandboxSpec(network="open", resources=Resources(cpu=0.5, memory_mib=96)))
    result = await sandbox.exec(["python3", "-c", "x = b'x' * 300_000_000; print('held')"])
    assert (result.exit_code, result.stdout, result.oom) == (137, b"", True)
    assert not (await sandbox.exec("true")).oom
    assert docker("inspect", "-f", "{{.HostConfig.NanoCpus}}", f"sandbox-{sandbox.id}").strip() == "500000000"


async def test_metadata_tell_whose_it_is(deployment: Server) -> None:
    config = deployment.config(default_metadata={"team": "a b", "rollout": "default"})
    provider = OpenSandboxProvider(config)
    sandbox = await provider.create(SandboxSpec(network="open", labels={"rollout": "7-0"}, ttl_seconds=100))
    info = await Deployment(config).info(sandbox.id)
    assert info.metadata
    assert info.metadata.items() >= {"rollout": "7-0", **MANAGED}.items()
    assert info.metadata["team"].startswith("a_b-")
    assert 90 < (expires(info) - datetime.now(UTC)).total_seconds() <= 100
    await sandbox.renew(500)
    assert 490 < (expires(await Deployment(config).info(sandbox.id)) - datetime.now(UTC)).total_seconds() <= 500
    assert deployment.api_key not in json.dumps(sandbox.descriptor())
    await provider.aclose()


def expires(info: SandboxInfo) -> datetime:
    assert info.expires_at is not None
    return info.expires_at


CRASH = """
import asyncio, os
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.opensandbox import OpenSandboxConfig, OpenSandboxProvider

async def main():
    provider = OpenSandboxProvider(OpenSandboxConfig.model_validate_json(os.environ["CONFIG"]))
    sandbox = await provider.create(SandboxSpec(network="open"))
    print(sandbox.id, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_what_a_killed_process_left_is_swept(deployment: Server, boxes: OpenSandboxProvider) -> None:
    kept = await boxes.create(OPEN)
    done = run_python(CRASH, CONFIG=deployment.config().model_dump_json())
    left = done.stdout.strip()
    assert left, done.stderr
    found = Deployment(deployment.config())
    assert {kept.id, left} <= {info.id for info in await found.find(MANAGED)}
    assert await boxes.sweep() >= 1
    assert left not in {info.id for info in await found.find(MANAGED)}
    assert (await kept.exec("true")).exit_code == 0


async def test_a_start_that_was_given_up_leaves_nothing(deployment: Server) -> None:
    named = {"test": secrets.token_hex(8)}
    provider = OpenSandboxProvider(deployment.config(default_metadata=named))
    await (await provider.create(OPEN)).stop()  # what only the first start does is done
    starting = asyncio.ensure_future(provider.create(OPEN))
    found = Deployment(deployment.config())
    await asyncio.sleep(0.3)  # the request is on its way
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with asyncio.timeout(60):
        while not await found.find(named):
            await asyncio.sleep(0.1)
    await provider.aclose()
    assert not await found.find(named)


async def test_a_container_that_dies_is_noticed(boxes: OpenSandboxProvider) -> None:
    sandbox = await boxes.create(OPEN)
    begun = asyncio.Event()
    running = asyncio.ensure_future(sandbox.exec("echo; sleep 1000", on_output=lambda *_: begun.set()))
    await begun.wait()
    assert await sandbox.alive()
    docker("kill", f"sandbox-{sandbox.id}")
    with pytest.raises(EpisodeFailure, match=r"is (failed|terminated)") as caught:
        await running
    assert caught.value.kind == "sandbox_lost"
    assert not await sandbox.alive()
    docker("rm", "-f", f"sandbox-{sandbox.id}")
    with pytest.raises(EpisodeFailure, match="is gone"):
        await sandbox.read_file("x", 1)
    await sandbox.stop()


async def test_what_was_lent_is_taken_back(boxes: OpenSandboxProvider) -> None:
    sandbox = await boxes.create(OPEN)
    lent = sandbox.descriptor()
    borrowed = await boxes.connect(lent)
    began = asyncio.Event()
    hold = "setsid sleep 1000 & echo; sleep 1000"
    running = asyncio.ensure_future(borrowed.exec(hold, on_output=lambda *_: began.set()))
    await began.wait()
    await sandbox.exec("env -i setsid sleep 1000 >/dev/null 2>&1 &")
    with pytest.raises(UserError, match="only its owner can fence"):
        await borrowed.fence()
    await sandbox.fence()
    with pytest.raises(EpisodeFailure):
        await running
    for use in (borrowed.exec("true"), boxes.connect(lent)):
        with pytest.raises(EpisodeFailure, match="was taken back by its owner"):
            await use
    assert (await sandbox.exec("pgrep -c sleep")).stdout == b"0\n"
    assert (await (await boxes.connect(sandbox.descriptor())).exec("echo again")).stdout == b"again\n"


async def test_a_live_owner_keeps_a_sandbox_without_ttl(deployment: Server) -> None:
    config = deployment.config(unattended_seconds=60)
    provider = OpenSandboxProvider(config)
    sandbox = await provider.create(OPEN)
    before = expires(await Deployment(config).info(sandbox.id))
    sandbox.keep_alive(6)
    async with asyncio.timeout(30):
        while expires(await Deployment(config).info(sandbox.id)) == before:
            await asyncio.sleep(0.1)
    await provider.aclose()


async def test_tools_that_are_missing_are_told(boxes: OpenSandboxProvider) -> None:
    sandbox = await boxes.create(OPEN)
    for tool, said in (("mkfifo", "it has no mkfifo"), ("base64", "base64: command not found")):
        await sandbox.exec(["mv", f"/usr/bin/{tool}", "/usr/bin/hidden"])
        with pytest.raises(EpisodeFailure, match=f"could not run a command: .*{said}") as caught:
            await sandbox.exec("true")
        assert caught.value.kind == "sandbox_lost"
        docker("exec", f"sandbox-{sandbox.id}", "mv", "/usr/bin/hidden", f"/usr/bin/{tool}")
