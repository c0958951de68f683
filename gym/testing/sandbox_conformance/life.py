# ruff: noqa: D103 (the name of a test says what it is about)
"""How every provider's sandboxes live, are lent and taken back, and end; their limits and mounts."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Common, Mount, Resources, Sandbox, SandboxProvider, SandboxSpec
from gym.testing.sandbox_conformance.checks import check, has_own, own
from gym.testing.sandbox_conformance.commands import HOLD, free


@check
async def test_alive(provider: SandboxProvider, sandbox: Sandbox) -> None:
    borrowed = await provider.connect(sandbox.descriptor())
    assert await sandbox.alive()
    assert await borrowed.alive()
    await sandbox.stop()
    assert not await sandbox.alive()
    assert not await borrowed.alive()


@check
async def test_a_background_process_outlives_its_command_where_the_provider_says_so(
    provider: SandboxProvider, sandbox: Sandbox
) -> None:
    assert sandbox.keeps_background == provider.capabilities.background
    await sandbox.exec("echo 0 >beat; (while :; do echo 1 >>beat; sleep 0.05; done) >/dev/null 2>&1 &")
    before = int((await sandbox.exec("wc -l <beat")).stdout)
    after = int((await sandbox.exec("sleep 0.5; wc -l <beat")).stdout)
    assert (after > before) == sandbox.keeps_background


@check
async def test_a_renewed_sandbox_lives_longer(provider: SandboxProvider, sandbox: Sandbox) -> None:
    own(sandbox, "renew")
    sandbox = await provider.create(SandboxSpec(ttl_seconds=1.5))
    await sandbox.renew(600)
    assert (await sandbox.exec("sleep 2; echo lives")).stdout == b"lives\n"
    await sandbox.renew(0.3)
    with pytest.raises(EpisodeFailure, match=r"outlived its ttl of 0\.3 s"):
        await sandbox.exec("sleep 1000")


@check
async def test_only_the_owner_renews(provider: SandboxProvider, sandbox: Sandbox) -> None:
    own(sandbox, "renew")
    borrowed = await provider.connect(sandbox.descriptor())
    with pytest.raises(UserError, match="is borrowed: only its owner can renew it"):
        await borrowed.renew(100)


@check
async def test_only_the_owner_fences(provider: SandboxProvider, sandbox: Sandbox) -> None:
    own(sandbox, "fence")
    borrowed = await provider.connect(sandbox.descriptor())
    with pytest.raises(UserError, match="is borrowed: only its owner can fence it"):
        await borrowed.fence()


@check
async def test_a_fence_takes_the_sandbox_back(provider: SandboxProvider, sandbox: Sandbox) -> None:
    own(sandbox, "fence")
    descriptor = sandbox.descriptor()
    borrowed = await provider.connect(descriptor)
    locked = asyncio.Event()
    running = asyncio.ensure_future(borrowed.exec(HOLD, on_output=lambda *_: locked.set()))
    await locked.wait()
    await sandbox.fence()
    assert await free(sandbox)
    for use in (borrowed.exec("true"), borrowed.upload(b"x", "late"), provider.connect(descriptor)):
        with pytest.raises(EpisodeFailure) as caught:
            await use
        assert caught.value.kind == "sandbox_lost"
    await asyncio.gather(running, return_exceptions=True)
    assert (await sandbox.exec("ls")).stdout == b"lock\n"
    again = await provider.connect(sandbox.descriptor())
    assert (await again.exec("ls")).stdout == b"lock\n"


@check
async def test_a_fence_may_leave_things_running(provider: SandboxProvider, sandbox: Sandbox) -> None:
    own(sandbox, "fence")
    descriptor = sandbox.descriptor()
    borrowed = await provider.connect(descriptor)
    await borrowed.exec(f"setsid sh -c {shlex.quote(HOLD)} >/dev/null 2>&1 </dev/null & until [ -e lock ]; do :; done")
    await sandbox.fence(keep_running=True)
    assert await free(sandbox) is not provider.capabilities.background
    for use in (borrowed.exec("true"), provider.connect(descriptor)):
        with pytest.raises(EpisodeFailure) as caught:
            await use
        assert caught.value.kind == "sandbox_lost"


@check
async def test_mounts(provider: SandboxProvider, tmp_path: Path) -> None:
    (tmp_path / "bundle" / "bin").mkdir(parents=True)
    (tmp_path / "bundle" / "bin" / "tool").write_text("#!/bin/sh\necho mounted")
    (tmp_path / "bundle" / "bin" / "tool").chmod(0o755)
    mounts = (Mount(tmp_path / "bundle", "/gym/bundles/one"), Mount(tmp_path / "bundle" / "bin", "/gym-tools"))
    if not provider.capabilities.mounts:
        with pytest.raises(UserError, match="cannot be mounted at `/gym/bundles/one`"):
            await provider.create(SandboxSpec(mounts=mounts))
        return
    sandbox = await provider.create(SandboxSpec(mounts=mounts))
    for command in ("/gym/bundles/one/bin/tool", "/gym-tools/tool"):
        assert (await sandbox.exec(command)).stdout == b"mounted\n"
    tried = await sandbox.exec("touch /gym/bundles/one/x /gym-tools/x; mv /gym-tools /elsewhere; rm -r /gym-tools")
    assert tried.exit_code != 0
    assert sorted(path.name for path in (tmp_path / "bundle").rglob("*")) == ["bin", "tool"]
    with pytest.raises(OSError):
        await sandbox.upload(b"x", "/gym-tools/tool")
    borrowed = await provider.connect(sandbox.descriptor())
    assert (await borrowed.exec("/gym-tools/tool")).stdout == b"mounted\n"


@check
async def test_what_all_sandboxes_have(provider: SandboxProvider, tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "tool").write_text("here")
    mounts = (Mount(tmp_path / "runtime", "/gym/one"), Mount(tmp_path / "missing", "/gym/two"))
    provider.common = Common({"run": "of-now"}, mounts)
    sandbox = await provider.create(SandboxSpec(labels={"rollout": "7", "run": "mine"}))
    if has_own(provider, "found"):
        (found,) = [one for one in await provider.found() if one.id == sandbox.id]
        assert (found.labels["run"], found.labels["rollout"]) == ("of-now", "7")
        assert (found.pid, found.left) == (os.getpid(), False)
        assert abs(found.created_at - time.time()) < 60
    shown = await sandbox.exec("cat /gym/one/tool; ls /gym")
    assert (shown.stdout == b"hereone\n") == provider.capabilities.mounts
    if provider.capabilities.mounts:  # which could be in the way
        other = await provider.create(SandboxSpec(workdir="/gym/work"))
        assert (await other.exec("ls; pwd")).exit_code == 0
        await other.stop()
    await sandbox.stop()
    assert sandbox.id not in {one.id for one in await provider.found()}


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("", "relative", "absolute path"),
        ("", "/a/../b", "absolute path"),
        ("", "/", "absolute path"),
        ("missing", "/gym", "source must be a folder"),
        ("file", "/gym", "source must be a folder"),
    ],
)
@check
async def test_refused_mounts(provider: SandboxProvider, tmp_path: Path, source: str, target: str, reason: str) -> None:
    (tmp_path / "file").touch()
    if not provider.capabilities.mounts:
        reason = "no mounts"
    with pytest.raises(UserError, match=reason):
        await provider.create(SandboxSpec(mounts=(Mount(tmp_path / source, target),)))


async def limited(provider: SandboxProvider, limit: Resources) -> Sandbox:
    """A sandbox with a limit; a provider that cannot keep one must refuse it."""
    try:
        return await provider.create(SandboxSpec(resources=limit))
    except UserError as error:
        pytest.skip(f"it refuses this limit: {error}")


HOG = ["python3", "-c", "x = bytearray(400_000_000); print('held')"]


@check
async def test_out_of_memory_is_told(provider: SandboxProvider) -> None:
    sandbox = await limited(provider, Resources(memory_mib=64))
    result = await sandbox.exec(HOG)
    assert result.exit_code != 0
    assert b"held" not in result.stdout
    # Where the limit holds for each process alone, it is that process that fails.
    assert result.oom == (result.signal == 9)
    calm = await sandbox.exec("kill -9 $$")
    assert (calm.signal, calm.oom) == (9, False)


@pytest.mark.parametrize("limit", [Resources(disk_mib=1)])
@check
async def test_file_size_limit(provider: SandboxProvider, limit: Resources) -> None:
    sandbox = await limited(provider, limit)
    result = await sandbox.exec("head -c 3000000 /dev/zero >file && echo held")
    assert result.exit_code != 0
    assert b"held" not in result.stdout


@check
async def test_images(provider: SandboxProvider, sandbox: Sandbox) -> None:
    digests = await provider.prepare([None])
    if digests:
        assert list(digests.values()) == [sandbox.image_digest]
        assert "sha256:" in str(sandbox.image_digest)
    else:
        assert sandbox.image_digest is None
    if not provider.capabilities.images:
        assert not digests
        with pytest.raises(UserError, match="cannot start from the image `some:image`"):
            await provider.prepare(["some:image", None])


@check
async def test_many_at_once(provider: SandboxProvider) -> None:
    sandboxes = await asyncio.gather(*(provider.create(SandboxSpec(env={"N": str(n)})) for n in range(6)))
    assert len({sandbox.id for sandbox in sandboxes}) == 6
    results = await asyncio.gather(*(sandbox.exec("echo $N") for sandbox in sandboxes))
    assert [int(result.stdout) for result in results] == list(range(6))
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))


@check
async def test_a_cancelled_creation_leaves_nothing(provider: SandboxProvider) -> None:
    for turns in (1, 3, 20, 200):
        creating = asyncio.ensure_future(provider.create(SandboxSpec()))
        for _ in range(turns):
            await asyncio.sleep(0)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
    await provider.aclose()
    assert await provider.sweep() == 0
