"""Control groups: limits over all processes of a sandbox together.

They need root and a writable cgroup file system, version 1 or 2. Where there is none, limits hold for each process
alone (see `limits`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gym.sandbox import processes
from gym.sandbox.interface import Resources
from gym.sandbox.owner import Owner

MOUNT = Path("/sys/fs/cgroup")
CPU_PERIOD_MICROSECONDS = 100_000
CONTROLLERS = ("cpu", "memory", "pids")
PATIENCE_SECONDS = 2.0
_MIB = 1024 * 1024


def create(name: str, resources: Resources, mount: Path = MOUNT) -> dict[str, Path]:
    """Make the control groups that `resources` need.

    Args:
        name: Name of the sandbox; that of its groups also says which process owns them.
        resources: The limits; `disk_mib` has no control group.
        mount: Where the cgroup file system is mounted.

    Returns:
        The limits that hold (`cpu`, `memory`, `pids`) with the folder of their group; without those that this machine
        does not offer.
    """
    if os.geteuid() != 0:
        return {}
    unified = (mount / "cgroup.controllers").exists()
    settings = _unified(resources) if unified else _separate(resources)
    made: dict[str, Path] = {}
    own = f"{name}.{_told(Owner.current())}"
    for controller, files in settings.items():
        folder = mount / own if unified else mount / controller / own
        if _apply(folder, controller if unified else "", files):
            made[controller] = folder
    if len(made) < len(settings):
        _remove_unused(name, made, mount)
    return made


def remove(name: str, mount: Path = MOUNT) -> None:
    """Remove the control groups of a sandbox, with whatever still runs in them.

    Raises:
        OSError: a group still has processes.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    for folder in _existing(name, mount):
        while True:
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                for pid in (folder / "cgroup.procs").read_text().split():
                    processes.kill(int(pid))
                # The kernel needs a moment after the last process.
                time.sleep(0.005)


def sweep(observer: Owner, mount: Path = MOUNT) -> None:
    """Remove the groups of owners that have ended, wherever the files of their sandboxes were, or if those are gone."""
    for folder in _existing("gym-*", mount):
        name, _, owner = folder.name.partition(".")
        if (found := _owner(owner, observer)) is not None and found.gone(observer):
            with suppress(OSError):  # somebody else removes it too, or it is left to the next sweep
                remove(name, mount)


def out_of_memory(folders: Sequence[str]) -> int:
    """How many processes the kernel has killed for want of memory in these control groups."""
    killed = 0
    for folder in folders:
        for file in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                counts = dict(line.split() for line in Path(folder, file).read_text().splitlines())
                killed += int(counts.get("oom_kill", 0))
    return killed


def _told(owner: Owner) -> str:
    """A process as the end of a group's name. Groups do not outlive the boot, so that needs no word."""
    return f"{owner.pid}.{owner.start_time}.{''.join(filter(str.isdigit, owner.pid_namespace))}"


def _owner(told: str, observer: Owner) -> Owner | None:
    """The process that the end of a name tells; None where it is none of ours."""
    pid, _, rest = told.partition(".")
    start_time, _, namespace = rest.partition(".")
    if not (pid.isdigit() and start_time.isdigit() and namespace.isdigit()):
        return None
    seen = observer.pid_namespace if _told(observer).endswith(f".{namespace}") else namespace
    return Owner(pid=int(pid), start_time=start_time, pid_namespace=seen, boot=observer.boot)


def _existing(name: str, mount: Path) -> list[Path]:
    """The groups of a sandbox; `name` may be a pattern."""
    if os.geteuid() != 0:
        return []
    places = (mount, *(mount / controller for controller in CONTROLLERS))
    return [folder for place in places for folder in place.glob(f"{name}.*") if folder.is_dir()]


def _remove_unused(name: str, made: dict[str, Path], mount: Path) -> None:
    for folder in _existing(name, mount):
        if folder not in made.values():
            folder.rmdir()


def _separate(resources: Resources) -> dict[str, dict[str, str]]:
    """Files and values for cgroup version 1, by controller."""
    settings: dict[str, dict[str, str]] = {}
    if resources.memory_mib is not None:
        limit = str(resources.memory_mib * _MIB)
        # The second file exists only where swap is accounted for.
        settings["memory"] = {"memory.limit_in_bytes": limit, "?memory.memsw.limit_in_bytes": limit}
    if resources.pids is not None:
        settings["pids"] = {"pids.max": str(resources.pids)}
    if resources.cpu is not None:
        quota = str(int(resources.cpu * CPU_PERIOD_MICROSECONDS))
        settings["cpu"] = {"cpu.cfs_period_us": str(CPU_PERIOD_MICROSECONDS), "cpu.cfs_quota_us": quota}
    return settings


def _unified(resources: Resources) -> dict[str, dict[str, str]]:
    """Files and values for cgroup version 2, by controller."""
    settings: dict[str, dict[str, str]] = {}
    if resources.memory_mib is not None:
        settings["memory"] = {"memory.max": str(resources.memory_mib * _MIB), "?memory.swap.max": "0"}
    if resources.pids is not None:
        settings["pids"] = {"pids.max": str(resources.pids)}
    if resources.cpu is not None:
        quota = int(resources.cpu * CPU_PERIOD_MICROSECONDS)
        settings["cpu"] = {"cpu.max": f"{quota} {CPU_PERIOD_MICROSECONDS}"}
    return settings


def _apply(folder: Path, controller: str, files: dict[str, str]) -> bool:
    """Make the group and write its limits; files marked with `?` may be missing."""
    try:
        if not folder.parent.is_dir():
            return False
        if controller and controller not in (folder.parent / "cgroup.subtree_control").read_text().split():
            (folder.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        folder.mkdir(exist_ok=True)
        for file, value in files.items():
            _write(folder / file.lstrip("?"), value, optional=file.startswith("?"))
    except OSError:
        return False
    return True


def _write(path: Path, value: str, *, optional: bool) -> None:
    try:
        path.write_text(value)
    except OSError:
        if not optional:
            raise
