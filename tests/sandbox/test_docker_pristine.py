"""What an agent does to the programs of its container does not reach our own commands, and can be undone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.sandbox.interface import Sandbox, SandboxProvider, SandboxSpec
from gym.sandbox.programs import FIND, SYSTEM_PATH, path_of
from tests.sandbox.conftest import docker

SPY = """
mkdir -p /usr/local/bin
for name in sh tar cat head stat mkdir mv; do
    printf '#!/bin/bash\\ntouch /seen\\nexec /usr/bin/%s "$@"\\n' "$name" >/usr/local/bin/$name
    chmod +x /usr/local/bin/$name
done
"""
BREAK = """
rm -r /bin && mkdir /bin
rm /usr/bin/tar
ln -sf /usr/bin/true /usr/bin/cat
echo /x.so >/etc/ld.so.preload
rm /usr/bin/dash
echo 'exit 7' >/usr/bin/dash
"""


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """Containers."""
    made = docker(tmp_path)
    yield made
    await made.aclose()


@pytest.fixture
async def sandbox(provider: SandboxProvider) -> Sandbox:
    """One that commands of root run in."""
    return await provider.create(SandboxSpec(image="gym-base", workdir="/app"))


async def test_programs_in_front_of_the_system_are_not_ours(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.exec(SPY)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    await sandbox.upload(tmp_path / "folder", "/app/folder")
    await sandbox.upload(b"y", "/app/file")
    await sandbox.download("/app", tmp_path / "back")
    assert await sandbox.read_file("/app/file", 10) == b"y"
    assert (await sandbox.exec("sleep 60", timeout_seconds=0.5)).timed_out
    assert (await sandbox.exec(["/usr/bin/test", "-e", "/seen"])).exit_code == 1
    assert (await sandbox.exec("sh -c true; /usr/bin/test -e /seen")).exit_code == 0


async def test_the_files_of_the_image_come_back(sandbox: Sandbox, provider: SandboxProvider) -> None:
    await sandbox.exec(BREAK)
    changed = await sandbox.changed_files() or {}
    wanted = {"/bin": "changed", "/usr/bin/tar": "removed", "/usr/bin/cat": "changed", "/etc/ld.so.preload": "added"}
    assert changed.items() >= {**wanted, "/usr/bin/dash": "changed"}.items()
    borrowed = await provider.connect(sandbox.descriptor())
    with pytest.raises(UserError, match="borrowed"):
        await borrowed.restore(["/bin"])
    paths = [*wanted, "/usr/bin/dash", "/etc"]
    assert await sandbox.restore(paths) == sorted({*paths} - {"/etc"})
    assert (await sandbox.exec("tar --version >/dev/null && echo x | cat && cat /etc/ld.so.preload")).stdout == b"x\n"
    await sandbox.exec("echo '#!/bin/sh' >/usr/bin/tar; ln -sf bash /usr/bin/sh")
    assert await sandbox.restore(["/usr/bin/tar", "/usr/bin/sh"], machine_only=True) == ["/usr/bin/tar"]


# A command, and whether it takes something away that has to be put back.
RIGHTS = {
    "chmod 711 /usr/bin/find": True,
    "chmod a-x /usr/bin/tar": True,
    "chmod u+s /usr/bin/head": True,
    "chown 1 /usr/bin/tail": True,
    "chmod go+w /usr/bin/sort; touch /usr/bin/sort": False,
    "chmod u-s /usr/bin/su": False,
}


async def test_a_program_with_fewer_rights_is_left_alone(sandbox: Sandbox) -> None:
    await sandbox.exec("; ".join(RIGHTS))
    changed = {path for path, how in (await sandbox.changed_files() or {}).items() if how == "changed"}
    back = sorted(line.split()[2].rstrip(";") for line, is_back in RIGHTS.items() if is_back)
    left = [line.split()[2].rstrip(";") for line, is_back in RIGHTS.items() if not is_back]
    assert changed >= {*back, *left}
    assert await sandbox.restore([*back, *left]) == back
    assert (await sandbox.exec("test -u /usr/bin/su")).exit_code == 1


async def test_neither_its_end_nor_a_missing_folder_is_in_the_hands_of_those_inside(sandbox: Sandbox) -> None:
    await sandbox.exec("kill -TERM 1; kill -INT 1; kill -KILL 1; cd /; rm -r /app")
    assert (await sandbox.exec("true")).exit_code == 126
    assert (await sandbox.exec("true", cwd="/")).exit_code == 0
    await sandbox.upload(b"x", "/app/file")
    assert (await sandbox.exec("cat file")).stdout == b"x"


async def test_an_image_may_have_its_programs_elsewhere(sandbox: Sandbox) -> None:
    """They are found once, before anybody works there."""
    moved = "mkdir /store; mv /usr/bin/tar /store/; mv /usr/bin/stat /store/"
    said = await sandbox.exec(f"{moved}; PATH=/store:$PATH; {FIND}")
    assert path_of(said.stdout_text) == f"{SYSTEM_PATH}:/store"
