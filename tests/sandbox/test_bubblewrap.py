"""What a bubblewrap sandbox can see and do of this machine: as little as possible."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Network, Sandbox, SandboxProvider, SandboxSpec
from gym.sandbox.providers.local import system
from gym.sandbox.providers.local.bubblewrap import probe

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def sandbox(isolated: SandboxProvider) -> Sandbox:
    return await isolated.create(SandboxSpec())


def test_it_says_so(isolated: SandboxProvider) -> None:
    assert isolated.isolated
    assert isolated.describe().startswith("bubblewrap ")
    assert isolated.capabilities.root


@pytest.mark.parametrize(
    "path",
    [
        *(str(Path.home()), str(PROJECT), str(Path(sys.prefix)), sys.base_prefix, "/root"),
        *("/etc/shadow", "/etc/ssl/private", "/etc/machine-id", "/sys", "/boot", "/mnt", "/var/lib", "/proc/kcore"),
    ],
)
async def test_absent(sandbox: Sandbox, path: str) -> None:
    if Path(path).is_relative_to("/usr"):
        pytest.skip("on this machine it is a part of the system")
    assert (await sandbox.exec(["test", "!", "-e", path])).exit_code == 0


async def test_temporary_files_of_the_machine_are_absent(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    assert (await sandbox.exec(["ls", str(tmp_path)])).exit_code == 2
    assert (await sandbox.exec("ls -A /tmp /var/tmp /run")).stdout == b"/run:\n\n/tmp:\n\n/var/tmp:\n"


async def test_nothing_of_the_machine_can_be_written(sandbox: Sandbox) -> None:
    await sandbox.upload(b"", "marker")
    folders = "/usr /usr/local/bin /bin /etc /lib /proc " + (system.PYTHON if system.python() else "")
    tried = await sandbox.exec(f"for d in {folders}; do touch $d/x 2>/dev/null && echo $d; done; echo tried")
    assert tried.stdout == b"tried\n"
    # As root, an ordinary /proc would let it replace the program that handles core dumps on the whole machine.
    found = await sandbox.exec("find /proc/sys /proc/irq /proc/bus /proc/sysrq-trigger -writable 2>/dev/null | head -3")
    assert found.stdout == b""


@pytest.mark.parametrize(
    "command",
    [
        *("mv /usr /elsewhere", "rmdir /etc", "rm -r /bin", "mount -t tmpfs none /work", "umount /usr", "chroot /"),
        *("unshare --user true", "unshare --mount true", "nsenter -t 1 -m true", "mknod null c 1 3"),
        *("hostname other", "sysctl -w kernel.hostname=other", "chown 1:1 /work"),
    ],
)
async def test_no_power(sandbox: Sandbox, command: str) -> None:
    found = probe()
    if command == "unshare --user true" and not isinstance(found, str) and "--disable-userns" not in found.namespaces:
        pytest.skip("this bubblewrap cannot forbid user namespaces")
    program = command.split()[0]
    if (await sandbox.exec(["which", program])).exit_code:
        pytest.skip(f"no program {program}")
    result = await sandbox.exec(f"{command}; code=$?; [ $code = 0 ] && echo done; exit $code")
    assert b"done" not in result.stdout
    assert (await sandbox.exec("id -un; hostname")).stdout == b"root\nsandbox\n"


async def test_privileges_are_gone(sandbox: Sandbox) -> None:
    status = dict(line.split(":\t") for line in (await sandbox.exec("cat /proc/self/status")).stdout_text.splitlines())
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


async def test_neither_environment_nor_command_lines_of_the_machine_show(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_HOST", "secret-value")
    seen = await sandbox.exec("cat /proc/*/environ /proc/*/cmdline", env={"SESSION": "own"})
    assert b"secret-value" not in seen.stdout
    assert os.fsencode(tmp_path) not in seen.stdout
    assert b"SESSION=own" in seen.stdout
    processes = await sandbox.exec("ls /proc | grep -c '^[0-9]'")
    assert int(processes.stdout) < 8


async def test_values_of_variables_are_on_no_command_line_of_the_machine(sandbox: Sandbox) -> None:
    begun = asyncio.Event()
    running = asyncio.ensure_future(
        sandbox.exec("echo; sleep 1000", env={"KEY": "hidden-value"}, on_output=lambda *_: begun.set())
    )
    await begun.wait()
    lines = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    running.cancel()
    assert b"bwrap" in lines
    assert b"hidden-value" not in lines


async def test_no_foreign_open_files(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["ls", "/proc/self/fd"])).stdout.split() == [b"0", b"1", b"2", b"3"]


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(("network", "reaches"), [("none", False), ("open", True)])
async def test_network(isolated: SandboxProvider, listener: int, network: Network, reaches: bool) -> None:
    sandbox = await isolated.create(SandboxSpec(network=network))
    script = f"import socket; socket.create_connection(('127.0.0.1', {listener}), 5)"
    result = await sandbox.exec(["python3", "-c", script])
    assert (result.exit_code == 0) == reaches, result.stderr_text
    if not reaches:
        assert "refused" in result.stderr_text
        interfaces = (await sandbox.exec("tail -n +3 /proc/net/dev; tail -n +2 /proc/net/route")).stdout_text
        assert [line.split(":")[0].strip() for line in interfaces.splitlines()] == ["lo"]


async def test_the_root_can_be_written_and_stays(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p /logs/agent /opt/tool; echo 1 >/logs/agent/out; echo 2 >/opt/tool/file")
    assert (await sandbox.exec("cat /logs/agent/out /opt/tool/file")).stdout == b"1\n2\n"
    assert await sandbox.read_file("/logs/agent/out", 10) == b"1\n"
    await sandbox.upload(b"echo test", "/tests/run.sh", mode=0o755)
    assert (await sandbox.exec("sh /tests/run.sh")).stdout == b"test\n"


@pytest.mark.parametrize("path", ["/usr/bin/x", "/etc/passwd", "/bin/sh", "/proc/1/environ", "via/sh", "/"])
async def test_the_system_is_no_place_for_files(sandbox: Sandbox, path: str) -> None:
    await sandbox.exec("ln -s /bin via")
    with pytest.raises(OSError):
        await sandbox.upload(b"x", path)
    with pytest.raises(OSError):
        await sandbox.read_file(path, 10_000_000)


async def test_planted_links_do_not_steer_mounts(isolated: SandboxProvider, sandbox: Sandbox, tmp_path: Path) -> None:
    """Whatever the code does to its own root, the next command starts, and touches nothing of the machine."""
    script = f"cd /; for d in *; do mv $d old-$d; ln -s /oldroot{tmp_path} $d; done; ls /usr/bin/env"
    assert (await sandbox.exec(script, cwd="/")).exit_code == 0
    before = sorted(tmp_path.rglob("*"))
    assert (await sandbox.exec("echo fine", cwd="/")).stdout == b"fine\n"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("workdir", ["/usr/src/app", "/etc", "/proc/x", "/bin/x"])
async def test_work_directories_in_the_system_are_refused(isolated: SandboxProvider, workdir: str) -> None:
    with pytest.raises(UserError, match="read-only part of the system"):
        await isolated.create(SandboxSpec(workdir=workdir))


@pytest.mark.parametrize("workdir", ["/tmp", "/tmp/deep/er", "/home/gym/x", "/app"])
async def test_work_directories(isolated: SandboxProvider, workdir: str) -> None:
    sandbox = await isolated.create(SandboxSpec(workdir=workdir))
    assert (await sandbox.exec("touch x; pwd")).stdout_text == f"{workdir}\n"


async def test_tools_of_tasks_work(sandbox: Sandbox) -> None:
    result = await sandbox.exec(
        "set -e; mkdir d; seq 3 >d/f; tar -czf a.tgz --owner=1000 --group=1000 d; rm -r d; tar -xzf a.tgz;"
        " sha256sum d/f; flock l true; mv -T d e; tee <e/f copy; git init -q . && git add -A; whoami; ls -l e/f;"
        " python3 -c 'import ssl, sqlite3, json; print(json.dumps(1))'"
    )
    assert result.exit_code == 0, result.stderr_text


async def test_the_running_python_is_there_without_packages(sandbox: Sandbox) -> None:
    if system.python() is None:
        pytest.skip("this Python is a part of the system")
    script = "import ssl, sqlite3, sys; print(sys.version); import pydantic"
    result = await sandbox.exec(["python3", "-c", script], env={"PATH": f"{system.PYTHON}/bin"})
    assert result.stdout_text == sys.version + "\n", result.stderr_text
    assert "No module named 'pydantic'" in result.stderr_text
    assert "/" + sys.base_prefix.split("/")[1] not in (await sandbox.exec("ls -d /*")).stdout_text.split()


def test_what_is_hidden_inside_the_system(tmp_path: Path) -> None:
    paths = ["/usr/share/doc", "/usr/share", "/usr", "/usr/bin", "/usr/no-such-folder", "/", str(tmp_path), "/usr/lib"]
    assert system.hidden([Path(path) for path in paths]) == ["/usr/share/doc"]


async def test_a_broken_sandbox_is_lost_not_a_failed_command(sandbox: Sandbox, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "sandboxes" / sandbox.id / "files")
    with pytest.raises(EpisodeFailure, match="could not start a command: bwrap: ") as caught:
        await sandbox.exec("true")
    assert caught.value.kind == "sandbox_lost"
    shutil.rmtree(tmp_path / "sandboxes" / sandbox.id)
    with pytest.raises(EpisodeFailure, match="is gone"):
        await sandbox.exec("true")
