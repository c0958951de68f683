"""Limits of a sandbox."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gym.sandbox.interface import Resources, SandboxProvider, SandboxSpec
from gym.sandbox.providers.local import groups
from tests.conftest import needs
from tests.sandbox.conftest import plain
from tests.sandbox.running import run_python


@pytest.mark.parametrize(
    ("resources", "command"),
    [
        (Resources(memory_mib=64), ["python3", "-c", "x = b'x' * 300_000_000; print('held')"]),
        (Resources(disk_mib=1), "head -c 3000000 /dev/zero >file && echo held"),
    ],
)
async def test_limits(local: SandboxProvider, resources: Resources, command: str | list[str]) -> None:
    sandbox = await local.create(SandboxSpec(resources=resources))
    result = await sandbox.exec(command)
    assert result.exit_code != 0
    assert b"held" not in result.stdout
    await sandbox.stop()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{sandbox.id}*"))


async def test_process_limit(isolated: SandboxProvider) -> None:
    sandbox = await isolated.create(SandboxSpec(resources=Resources(pids=24)))
    result = await sandbox.exec("for i in $(seq 60); do sleep 1000 & done; echo all")
    assert "all" not in result.stdout_text
    assert (await sandbox.exec("echo free again")).stdout == b"free again\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
def test_control_groups_of_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "cgroup.subtree_control").write_text("memory pids cpu")
    made = groups.create("gym-x", Resources(cpu=1.5, memory_mib=2, pids=7), tmp_path)
    (folder,) = tmp_path.glob("gym-x.*")
    assert made == dict.fromkeys(("memory", "pids", "cpu"), folder)
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {"memory.max": "2097152", "memory.swap.max": "0", "pids.max": "7", "cpu.max": "150000 100000"}


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

async def main():
    config = LocalProviderConfig(isolation="none", allow_unisolated=True, root=Path(os.environ["PLACE"]))
    print((await LocalProvider(config).create(SandboxSpec())).id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
async def test_groups_of_the_dead_are_swept_whatever_became_of_their_files(tmp_path: Path) -> None:
    needs("pids control groups", present=bool(groups.create("gym-probe", Resources(pids=7))), reason="not writable")
    groups.remove("gym-probe")
    dead = run_python(KILLED, PLACE=str(tmp_path / "lost")).stdout.strip()
    shutil.rmtree(tmp_path / "lost")
    living = plain(tmp_path / "mine")
    sandbox = await living.create(SandboxSpec())
    mounted = Path("/sys/fs/cgroup")
    await plain(tmp_path / "other").sweep()
    assert not list(mounted.glob(f"**/{dead}.*"))
    kept = [*mounted.glob(f"{sandbox.id}.*"), *mounted.glob(f"pids/{sandbox.id}.*")]
    assert kept
    await living.aclose()
    assert not any(path.exists() for path in kept)


def test_no_control_groups_where_there_are_none(tmp_path: Path) -> None:
    assert groups.create("gym-x", Resources(memory_mib=2), tmp_path) == {}
    assert list(tmp_path.iterdir()) == []
