"""What crashes leave behind, and its removal."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gym.sandbox import processes
from gym.sandbox.interface import Resources, SandboxProvider, SandboxSpec
from gym.sandbox.owner import Owner
from gym.sandbox.providers.local import sweep
from gym.sandbox.providers.local.record import Record
from tests.sandbox.running import run_python

DEEP = ["python3", "-c", "import os\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')"]


@pytest.mark.parametrize("command", ["mkdir -p a/b; touch a/b/c; chmod 0 a/b a", DEEP, "ln -s / root"])
async def test_hostile_trees_are_removed(local: SandboxProvider, tmp_path: Path, command: str | list[str]) -> None:
    sandbox = await local.create(SandboxSpec())
    result = await sandbox.exec(command)
    assert result.exit_code == 0, result.stderr_text
    await sandbox.stop()
    assert list((tmp_path / "sandboxes").iterdir()) == []


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


async def test_a_crash_leaves_nothing_after_the_next_start(local: SandboxProvider, tmp_path: Path) -> None:
    root = tmp_path / "sandboxes"
    isolation = "bubblewrap" if local.isolated else "none"
    assert run_python(CRASH.format(isolation, str(root))).returncode == -signal.SIGKILL
    (left,) = root.iterdir()
    if local.isolated:
        await gone(left.name)  # without any help
    else:
        async with asyncio.timeout(10):
            while not processes.marked((f"{left.name}:",)):  # while it starts a program, a process shows no mark
                await asyncio.sleep(0.01)
    sandbox = await local.create(SandboxSpec())
    assert [path.name for path in root.iterdir()] == [sandbox.id]
    await gone(left.name)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gym.sandbox.interface import Resources, SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

def create(root, fatal):
    left = [fatal]
    def watch(event, arguments):
        if event in ("os.mkdir", "os.rename", "open", "os.chmod") and str(arguments[0]).startswith((root, GROUPS)):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
    provider = LocalProvider(LocalProviderConfig(isolation={0!r}, allow_unisolated=True, root=root))
    provider.describe()
    sys.addaudithook(watch)
    asyncio.run(provider.create(SandboxSpec(resources=Resources(pids=50))))
    os._exit(0)

GROUPS = "/sys/fs/cgroup"
for fatal in range(2, 100):  # the first makes the folder of all sandboxes
    child = os.fork()
    if not child:
        create(os.path.join({1!r}, str(fatal)), fatal)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        break
print(fatal)
"""


async def test_whenever_a_creation_is_killed_the_owner_is_known(local: SandboxProvider, tmp_path: Path) -> None:
    isolation = "bubblewrap" if local.isolated else "none"
    done = run_python(KILLED.format(isolation, str(tmp_path)))
    assert int(done.stdout) > 6, done.stderr
    owned = 0
    for root in sorted(tmp_path.iterdir()):
        visible = [path for path in root.iterdir() if path.name.startswith("gym-")]
        owned += len([Record.load(path) for path in visible])
        assert sweep(root) >= len(visible)
        for path in root.iterdir():  # one that was being made, and holds at the most a part of its record
            assert {item.name for item in path.iterdir()} <= {".sandbox.json"}
            os.utime(path, (0, 0))
        sweep(root)
        assert list(root.iterdir()) == []
    assert owned > 1


async def gone(sandbox_id: str) -> None:
    async with asyncio.timeout(10):
        while processes.marked((f"{sandbox_id}:",)):
            await asyncio.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
async def test_a_sweep_that_was_cut_short_is_finished(isolated: SandboxProvider, tmp_path: Path) -> None:
    sandbox = await isolated.create(SandboxSpec(resources=Resources(pids=50)))
    made = list(Path("/sys/fs/cgroup").glob(f"pids/{sandbox.id}"))
    root = tmp_path / "sandboxes"
    record = Record.load(root / sandbox.id)
    record.model_copy(update={"owner": record.owner.model_copy(update={"start_time": "1"})}).save(root / sandbox.id)
    (root / sandbox.id).rename(root / f".{sandbox.id}.swept")
    assert sweep(root) == 1
    assert list(root.iterdir()) == []
    assert not any(folder.exists() for folder in made)


def test_sweep_takes_only_what_has_no_owner(tmp_path: Path) -> None:
    current = Owner.current()
    ended = current.model_copy(update={"pid": 2**22 + 1})
    cases = {
        "live": ("gym-000000000001", current, False),
        "in another container": ("gym-000000000002", ended.model_copy(update={"pid_namespace": "x"}), False),
        "somebody's folder": ("gym-data", ended, False),
        "its number is used again": ("gym-000000000003", current.model_copy(update={"start_time": "1"}), True),
        "ended": ("gym-000000000004", ended, True),
        "ended, half swept": (".gym-000000000005.swept", ended, True),
        "before a reboot": ("gym-000000000006", current.model_copy(update={"boot": "x", "pid_namespace": "x"}), True),
    }
    common = {"labels": {}, "created_at": 0, "expires_at": None, "isolation": "none", "workdir": "/w", "env": {}}
    for name, owner, _ in cases.values():
        (tmp_path / name).mkdir()
        more = {"id": name, "owner": owner, "network": "none", "control_groups": [], "limits": ""}
        Record.model_validate(common | more).save(tmp_path / name)
    being_made, never_finished, old_data = (
        tmp_path / name for name in ("gym-00000000000a", "gym-00000000000b", "data")
    )
    for folder in (being_made, never_finished, old_data):
        folder.mkdir()
    for folder in (never_finished, old_data):
        os.utime(folder, (0, 0))
    (tmp_path / "gym-00000000000c").touch()
    assert sweep(tmp_path) == sum(gone for _, _, gone in cases.values()) + 1
    kept = {name for name, _, gone in cases.values() if not gone} | {being_made.name, "data", "gym-00000000000c"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert sweep(tmp_path / "missing") == 0
