"""The local provider itself: choice of isolation, limits, records, and what crashes leave behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Resources, SandboxProvider, SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig, default_root, groups, processes, sweep
from gym.sandbox.providers.local.record import Owner, Record

PROJECT = Path(__file__).resolve().parents[2]


def run_python(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)


async def test_no_isolation_has_to_be_allowed(tmp_path: Path) -> None:
    provider = LocalProvider(LocalProviderConfig(isolation="none", root=tmp_path))
    assert not provider.isolated
    assert provider.describe() == "plain temporary directory, NO isolation"
    with pytest.raises(UserError) as caught:
        await provider.create(SandboxSpec(image="i", network="gym_only", workdir="w"))
    assert [problem.key for problem in caught.value.problems] == ["sandbox.isolation", "network", "image", "workdir"]
    assert "allow_unisolated: true" in str(caught.value)


CHOICE = """
import asyncio, sys
from gym.errors import UserError
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

provider = LocalProvider(LocalProviderConfig(isolation=sys.argv[1] if len(sys.argv) > 1 else "{0}"))
try:
    print(provider.describe())
    asyncio.run(provider.create(SandboxSpec()))
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [
        ("bubblewrap", ["sandbox.isolation  the program `bwrap` is not installed; install bubblewrap, or set"]),
        (
            "auto",
            ["plain temporary directory, NO isolation", "sandbox.isolation  sandboxes would not be isolated: the"],
        ),
    ],
)
def test_without_bubblewrap(isolation: str, expected: list[str]) -> None:
    done = run_python(CHOICE.format(isolation), PATH="/nonexistent")
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected), done.stderr
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))


def test_a_bubblewrap_that_does_not_work_is_explained(tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    done = run_python(CHOICE.format("bubblewrap"), PATH=str(tmp_path))
    assert "`bwrap` does not work here: bwrap: No permissions to create new namespace; install" in done.stdout


def test_settings() -> None:
    with pytest.raises(ValidationError, match="isolaton"):
        LocalProviderConfig.model_validate({"isolaton": "auto"})
    for name, field in LocalProviderConfig.model_fields.items():
        assert field.description, name
    shipped = OmegaConf.to_container(OmegaConf.load(PROJECT / "conf" / "sandbox" / "local.yaml"))
    assert shipped == {"sandbox": {"_target_": f"{LocalProvider.__module__.rpartition('.')[0]}.LocalProvider"}}
    assert LocalProvider.config_type is LocalProviderConfig


async def test_the_record(tmp_path: Path) -> None:
    config = LocalProviderConfig(
        isolation="none", allow_unisolated=True, root=tmp_path, default_metadata={"team": "a", "rollout": "default"}
    )
    provider = LocalProvider(config)
    sandbox = await provider.create(SandboxSpec(labels={"rollout": "7-0"}, ttl_seconds=60))
    path = tmp_path / sandbox.id / "sandbox.json"
    record = json.loads(path.read_text())
    assert record["labels"] == {"team": "a", "rollout": "7-0"}
    assert record["owner"]["pid"] == os.getpid()
    assert 0 < record["expires_at"] - time.time() <= 60
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    await provider.aclose()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("descriptor", [{}, {"directory": "/"}, {"directory": "/etc/x", "sandbox_id": "x"}])
async def test_connect_takes_only_sandboxes_of_its_root(provider: SandboxProvider, descriptor: dict[str, str]) -> None:
    with pytest.raises(EpisodeFailure, match="no sandbox") as caught:
        await provider.connect(dict(descriptor))
    assert caught.value.kind == "sandbox_lost"


async def test_connect_needs_the_same_isolation(isolated: SandboxProvider, tmp_path: Path) -> None:
    sandbox = await isolated.create(SandboxSpec())
    other = LocalProvider(LocalProviderConfig(isolation="none", root=tmp_path / "sandboxes"))
    with pytest.raises(EpisodeFailure, match="isolation bubblewrap, not ours"):
        await other.connect(sandbox.descriptor())


async def test_a_borrower_in_another_process(provider: SandboxProvider, tmp_path: Path) -> None:
    sandbox = await provider.create(SandboxSpec(env={"A": "1"}))
    isolation = "bubblewrap" if provider.isolated else "none"
    script = f"""
import asyncio, json, os
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

async def main():
    provider = LocalProvider(LocalProviderConfig(isolation={isolation!r}, root={str(tmp_path / "sandboxes")!r}))
    sandbox = await provider.connect(json.loads({json.dumps(sandbox.descriptor())!r}))
    asyncio.ensure_future(sandbox.exec("flock lock sh -c 'echo >locked; exec sleep 1000'"))
    await sandbox.exec("until [ -e locked ]; do sleep 0.01; done; echo $A >seen")
    os._exit(7)

asyncio.run(main())
"""
    done = run_python(script)
    assert done.returncode == 7, done.stderr
    assert await sandbox.read_file("seen", 10) == b"1\n"
    await sandbox.stop()
    assert processes.marked((f"{sandbox.id}:",)) == []


DEEP = ["python3", "-c", "import os\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')"]


@pytest.mark.parametrize("command", ["mkdir -p a/b; touch a/b/c; chmod 0 a/b a", DEEP, "ln -s / root"])
async def test_hostile_trees_are_removed(provider: SandboxProvider, tmp_path: Path, command: str | list[str]) -> None:
    sandbox = await provider.create(SandboxSpec())
    result = await sandbox.exec(command)
    assert result.exit_code == 0, result.stderr_text
    await sandbox.stop()
    assert list((tmp_path / "sandboxes").iterdir()) == []


@pytest.mark.parametrize(
    ("resources", "command"),
    [
        (Resources(memory_mib=64), ["python3", "-c", "x = b'x' * 300_000_000; print('held')"]),
        (Resources(disk_mib=1), "head -c 3000000 /dev/zero >file && echo held"),
    ],
)
async def test_limits(provider: SandboxProvider, resources: Resources, command: str | list[str]) -> None:
    sandbox = await provider.create(SandboxSpec(resources=resources))
    result = await sandbox.exec(command)
    assert result.exit_code != 0
    assert b"held" not in result.stdout
    await sandbox.stop()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{sandbox.id}"))


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
    assert made == dict.fromkeys(("memory", "pids", "cpu"), tmp_path / "gym-x")
    written = {path.name: path.read_text() for path in (tmp_path / "gym-x").iterdir()}
    assert written == {"memory.max": "2097152", "memory.swap.max": "0", "pids.max": "7", "cpu.max": "150000 100000"}


def test_no_control_groups_where_there_are_none(tmp_path: Path) -> None:
    assert groups.create("gym-x", Resources(memory_mib=2), tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


async def test_the_default_root_must_be_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    provider = LocalProvider(LocalProviderConfig(isolation="none", allow_unisolated=True))
    (tmp_path / "elsewhere").mkdir()
    default_root().symlink_to("elsewhere")
    with pytest.raises(UserError, match="not a folder of this user alone"):
        await provider.create(SandboxSpec())
    default_root().unlink()
    await provider.create(SandboxSpec())
    await provider.aclose()
    assert default_root().stat().st_mode & 0o777 == 0o700


CRASH = """
import asyncio, os
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

async def main():
    provider = LocalProvider(LocalProviderConfig(isolation={0!r}, allow_unisolated=True, root={1!r}))
    sandbox = await provider.create(SandboxSpec())
    running = asyncio.ensure_future(sandbox.exec("setsid sleep 1000 & echo; sleep 1000", on_output=lambda *_: die()))
    await running

def die():
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_a_crash_leaves_nothing_after_the_next_start(provider: SandboxProvider, tmp_path: Path) -> None:
    root = tmp_path / "sandboxes"
    isolation = "bubblewrap" if provider.isolated else "none"
    assert run_python(CRASH.format(isolation, str(root))).returncode == -signal.SIGKILL
    (left,) = root.iterdir()
    if provider.isolated:
        await gone(left.name)  # without any help
    else:
        assert processes.marked((f"{left.name}:",))
    sandbox = await provider.create(SandboxSpec())
    assert [path.name for path in root.iterdir()] == [sandbox.id]
    await gone(left.name)


async def gone(sandbox_id: str) -> None:
    async with asyncio.timeout(10):
        while processes.marked((f"{sandbox_id}:",)):
            await asyncio.sleep(0.01)


def test_sweep_takes_only_what_has_no_owner(tmp_path: Path) -> None:
    current = Owner.current()
    cases = {
        "live": (current, 0),
        "other-container": (current.model_copy(update={"pid": 1, "start_time": "1", "pid_namespace": "x"}), 0),
        "number-used-again": (current.model_copy(update={"start_time": "1"}), 1),
        "ended": (current.model_copy(update={"pid": 2**22 + 1}), 1),
        "before-reboot": (current.model_copy(update={"boot": "x", "pid_namespace": "x"}), 1),
    }
    common = {"labels": {}, "created_at": 0, "expires_at": None, "isolation": "none", "workdir": "/w", "env": {}}
    for name, (owner, _) in cases.items():
        (tmp_path / name).mkdir()
        more = {"id": name, "owner": owner, "network": "none", "control_groups": [], "limits": ""}
        Record.model_validate(common | more).save(tmp_path / name)
    (tmp_path / "being-made").mkdir()
    (tmp_path / "never-finished").mkdir()
    os.utime(tmp_path / "never-finished", (0, 0))
    (tmp_path / "a file").touch()
    assert sweep(tmp_path) == sum(gone for _, gone in cases.values()) + 1
    kept = {name for name, (_, gone) in cases.items() if not gone} | {"being-made", "a file"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert sweep(tmp_path / "missing") == 0


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("gym.sandbox.interface", ["pydantic", "asyncio", "omegaconf"]),
        ("gym.sandbox.providers.local", ["fastapi", "httpx", "uvicorn", "docker", "rich", "hydra", "omegaconf"]),
    ],
)
def test_imports_are_light(module: str, absent: list[str]) -> None:
    done = run_python(f"import sys, {module}; print([name for name in {absent} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr
