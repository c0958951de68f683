"""Our scripts with other shells and tools: bash as `sh`, busybox alone, and an image that lacks what is optional."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym.sandbox.interface import Sandbox, SandboxSpec
from gym.sandbox.providers.docker import DockerProvider
from gym.sandbox.supervisor import launch
from tests.conftest import needs
from tests.sandbox.docker_tools import ask

BUSYBOX = f"gym-test-busybox:{os.getpid()}"
HOLD = "echo held; sleep 1000; :"
OPTIONAL = ("python3", "setsid", "grep", "env")


@pytest.fixture(scope="module")
def busybox() -> Iterator[str]:
    """An image with nothing but busybox."""
    program = shutil.which("busybox")
    needs("busybox", present=program is not None, reason="install busybox-static")
    assert program is not None
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(program, "bin/busybox")
        for name in ("tmp", "proc", "root", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(folder)
        for applet in applets:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if applet != "busybox":
                archive.addfile(link)
    ask(lambda api: api.import_image_from_data(packed.getvalue(), *BUSYBOX.split(":")))
    yield BUSYBOX
    ask(lambda api: api.remove_image(BUSYBOX))


@pytest.fixture(params=["bash", "busybox", "poor"])
async def sandbox(request: pytest.FixtureRequest, containers: DockerProvider) -> Sandbox:
    image = request.getfixturevalue("busybox") if request.param == "busybox" else None
    made = await containers.create(SandboxSpec(image=image))
    if request.param == "bash":
        await made.exec("ln -sf bash /bin/sh")
    if request.param == "poor":
        await made.exec("rm -f " + " ".join(f"$(command -v {name})" for name in OPTIONAL))
    return made


async def free(sandbox: Sandbox) -> bool:
    """Whether no process sleeps any more."""
    found = await sandbox.exec("for p in /proc/[0-9]*; do cat $p/cmdline 2>/dev/null; echo; done")
    return b"sleep\x001000" not in found.stdout


async def test_commands(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["sh", "-c", 'cat; echo "$0"; exit 3', "\udcff\n"], stdin=b"in\n")
    assert (result.exit_code, result.stdout) == (3, b"in\n\xff\n\n")
    assert (await sandbox.exec(["no-such-program"])).exit_code == 127
    assert (await sandbox.exec("true", cwd="missing")).exit_code == 126
    assert (await sandbox.exec("kill -9 $$")).signal == 9


async def test_a_timeout_kills_the_tree(sandbox: Sandbox) -> None:
    result = await sandbox.exec(f"sh -c {shlex.quote(HOLD)} & echo begun; sleep 1000", timeout_seconds=1)
    assert (result.timed_out, sorted(result.stdout.split())) == (True, [b"begun", b"held"])
    assert await free(sandbox)


async def test_files(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_text("in")
    (tmp_path / "tree" / "link").symlink_to("sub/file")
    await sandbox.upload(tmp_path / "tree", "a/tree")
    await sandbox.upload(b"#!/bin/sh\necho tool", "a/tool", mode=0o755)
    assert (await sandbox.exec("a/tool; cat a/tree/link")).stdout == b"tool\nin"
    assert await sandbox.download("a", tmp_path / "back") == []
    assert (tmp_path / "back" / "tree" / "link").read_text() == "in"
    assert await sandbox.read_file("a/tool", 100) == b"#!/bin/sh\necho tool"
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("missing", 1)
    with pytest.raises(OSError, match="longer than 3 bytes"):
        await sandbox.read_file("a/tool", 3)


async def test_a_launch(sandbox: Sandbox) -> None:
    chunks: list[bytes] = []
    started = await launch(
        sandbox,
        ["sh", "-c", "cat; for n in 1 2 3; do echo $n; sleep 0.1; done; exit 7"],
        stdin=b"in\n",
        on_stdout=chunks.append,
        deadline_seconds=60,
    )
    receipt = await started.wait()
    assert (receipt.return_code, receipt.cleanup_confirmed) == (7, True)
    assert b"".join(chunks) == b"in\n1\n2\n3\n"


async def test_a_launch_ends_at_its_deadline(sandbox: Sandbox) -> None:
    deaf = f"trap '' TERM; {HOLD}"
    command = f"sh -c {shlex.quote(deaf)} & echo begun; sleep 1000"
    started = await launch(sandbox, ["sh", "-c", command], deadline_seconds=1, grace_seconds=1)
    receipt = await started.wait()
    assert (receipt.timed_out, receipt.cleanup_confirmed) == (True, True)
    assert await free(sandbox)


async def test_a_launch_is_stopped(sandbox: Sandbox) -> None:
    started = await launch(sandbox, ["sh", "-c", HOLD], deadline_seconds=60, grace_seconds=1)
    receipt = await started.stop()
    assert receipt.cleanup_confirmed
    assert await free(sandbox)
