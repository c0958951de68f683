"""The supervisor, on every provider: how launches end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import shlex

import pytest

from gym.failures import EpisodeFailure
from gym.sandbox.interface import Sandbox, SandboxProvider
from gym.sandbox.receipt import Receipt
from gym.sandbox.supervisor import Launch, launch
from gym.testing.sandbox_conformance.commands import HOLD, free

DEAF = f"trap '' TERM; {HOLD}"


async def ended(sandbox: Sandbox, command: str, deadline_seconds: float = 60, grace_seconds: float = 1) -> Receipt:
    started = await launch(
        sandbox, ["sh", "-c", command], deadline_seconds=deadline_seconds, grace_seconds=grace_seconds
    )
    return await started.wait()


async def locked(sandbox: Sandbox, command: str, grace_seconds: float = 1) -> Launch:
    """A launch whose command has said `locked`."""
    said = asyncio.Event()

    def take(chunk: bytes) -> None:
        if b"locked" in chunk:
            said.set()

    argv = ["sh", "-c", command]
    started = await launch(sandbox, argv, on_stdout=take, deadline_seconds=60, grace_seconds=grace_seconds)
    await asyncio.wait_for(said.wait(), 30)
    return started


async def test_input_output_environment_and_code(sandbox: Sandbox) -> None:
    chunks: list[bytes] = []
    await sandbox.exec("mkdir 'a b'")
    started = await launch(
        sandbox,
        ["sh", "-c", 'cat; echo "$0 $1 $A"; pwd; echo err >&2; exit 3', "a  b", "$HOME'\n"],
        env={"A": "x y"},
        cwd="a b",
        stdin=b"prompt \xff\n",
        on_stdout=chunks.append,
        deadline_seconds=60,
    )
    receipt = await started.wait()
    assert (receipt.return_code, receipt.signal, receipt.timed_out, receipt.stopped) == (3, None, False, False)
    assert receipt.cleanup_confirmed
    assert receipt.started_at is not None
    assert receipt.ended_at is not None
    assert 0 <= receipt.ended_at - receipt.started_at < 60
    logs = await started.logs()
    assert logs.stdout == b"prompt \xff\na  b $HOME'\n x y\n" + f"{sandbox.workdir}/a b\n".encode()
    assert b"".join(chunks) == logs.stdout
    assert (logs.stderr, logs.stdout_truncated) == (b"err\n", 0)
    assert await started.stop() == receipt


@pytest.mark.parametrize(
    ("command", "code", "signal"),
    [("true", 0, None), ("exit 124", 124, None), ("kill -SEGV $$", 139, 11), ("kill -TERM $$", 143, 15)],
)
async def test_codes(sandbox: Sandbox, command: str, code: int, signal: int | None) -> None:
    receipt = await ended(sandbox, command)
    assert (receipt.return_code, receipt.signal, receipt.cleanup_confirmed) == (code, signal, True)
    assert (receipt.timed_out, receipt.stopped) == (False, False)


async def test_what_cannot_start(sandbox: Sandbox) -> None:
    missing = await launch(sandbox, ["no-such-program"], deadline_seconds=60)
    assert (await missing.wait()).return_code == 127
    assert b"no-such-program" in (await missing.logs()).stderr
    nowhere = await launch(sandbox, ["true"], cwd="missing", deadline_seconds=60)
    assert (await nowhere.wait()).return_code == 126
    with pytest.raises(ValueError, match="NUL"):
        await launch(sandbox, ["a\0b"], deadline_seconds=60)


async def test_background_children_end_with_the_program(sandbox: Sandbox) -> None:
    receipt = await ended(sandbox, f"setsid sh -c {shlex.quote(HOLD)} & until [ -e lock ]; do :; done")
    assert (receipt.return_code, receipt.cleanup_confirmed) == (0, True)
    assert await free(sandbox)


async def test_a_child_that_wipes_its_environment_is_found_as_an_orphan(sandbox: Sandbox) -> None:
    command = f"env -i PATH=$PATH setsid sh -c {shlex.quote(HOLD)} & until [ -e lock ]; do :; done"
    receipt = await ended(sandbox, command)
    assert (receipt.return_code, receipt.cleanup_confirmed) == (0, True)
    assert await free(sandbox)


ODD = """
import ctypes, fcntl, time
ctypes.CDLL(None).prctl(15, b"a) S 1\\nb", 0, 0, 0)
held = open("lock", "w")
fcntl.flock(held, fcntl.LOCK_EX)
time.sleep(1000)
"""


async def test_a_child_with_an_odd_name_is_found_as_an_orphan(sandbox: Sandbox) -> None:
    """Its name looks like more of the line that tells what belongs to what."""
    hold = f"env -i PATH=$PATH setsid python3 -c {shlex.quote(ODD)}"
    receipt = await ended(sandbox, f"{hold} & until [ -e lock ] && ! flock -n lock true; do :; done")
    assert (receipt.return_code, receipt.cleanup_confirmed) == (0, True)
    assert await free(sandbox)


@pytest.mark.parametrize("in_time", [True, False])
async def test_services_are_kept_where_that_is_asked_for(sandbox: Sandbox, in_time: bool) -> None:
    """What has left the program's session and its family goes on; what still belongs to it ends with it."""
    service = "(setsid sh -c 'exec 9>served && flock 9 && exec sleep 1000 9>&9' >/dev/null 2>&1 &)"
    command = f"{service}; until [ -e served ] && ! flock -n served true; do :; done"
    if not in_time:
        command += f"; setsid sh -c {shlex.quote(HOLD)} & until [ -e lock ]; do :; done; {HOLD}"
    started = await launch(
        sandbox,
        ["sh", "-c", command],
        deadline_seconds=60 if in_time else 2,
        grace_seconds=1,
        keeps_services=True,
    )
    receipt = await started.wait()
    assert (receipt.timed_out, receipt.cleanup_confirmed) == (not in_time, True)
    kept = (await sandbox.exec("flock -n served true")).exit_code != 0
    assert kept == sandbox.keeps_background
    assert in_time or await free(sandbox)


@pytest.mark.parametrize(("command", "code"), [(HOLD, 143), (DEAF, 137)], ids=["ends at TERM", "deaf"])
async def test_the_deadline_ends_the_whole_tree(sandbox: Sandbox, command: str, code: int) -> None:
    receipt = await ended(sandbox, f"setsid sh -c {shlex.quote(command)} & sh -c {shlex.quote(command)}; exit 0", 1)
    assert (receipt.timed_out, receipt.stopped, receipt.cleanup_confirmed) == (True, False, True)
    assert receipt.return_code in (code, 143)
    assert await free(sandbox)


async def test_term_comes_before_kill(sandbox: Sandbox) -> None:
    command = "trap 'echo tidy >tidied; exit 5' TERM; echo locked; while :; do sleep 0.1; done"
    started = await locked(sandbox, command, grace_seconds=20)
    receipt = await started.stop()
    assert (receipt.return_code, receipt.stopped, receipt.cleanup_confirmed) == (5, True, True)
    assert await sandbox.read_file("tidied", 10) == b"tidy\n"


async def test_stop_ends_what_does_not_listen(sandbox: Sandbox) -> None:
    started = await locked(sandbox, DEAF)
    receipts = await asyncio.gather(started.stop(), started.wait())
    assert receipts[0] == receipts[1]
    assert (receipts[0].return_code, receipts[0].stopped, receipts[0].timed_out) == (137, True, False)
    assert receipts[0].cleanup_confirmed
    assert await free(sandbox)


async def test_stop_right_after_the_launch(sandbox: Sandbox) -> None:
    started = await launch(sandbox, ["flock", "lock", "sleep", "1000"], deadline_seconds=60, grace_seconds=1)
    receipt = await started.stop()
    assert receipt.cleanup_confirmed
    assert await free(sandbox)


async def test_a_second_launch_has_a_directory_of_its_own(sandbox: Sandbox) -> None:
    first = await launch(sandbox, ["echo", "one"], deadline_seconds=60)
    await first.wait()
    second = await launch(sandbox, ["sh", "-c", 'ls "$0"; echo two', first.directory], deadline_seconds=60)
    await second.wait()
    assert first.directory != second.directory
    assert (await first.logs()).stdout == b"one\n"
    assert (await second.logs()).stdout.endswith(b"two\n")
    mode = await sandbox.exec(["stat", "-c", "%a", first.directory])
    assert mode.stdout == b"700\n"


async def test_logs_are_bounded(sandbox: Sandbox) -> None:
    started = await launch(sandbox, ["seq", "1", "100000"], deadline_seconds=60)
    await started.wait()
    logs = await started.logs(1000)
    assert logs.stdout.startswith(b"1\n2\n")
    assert logs.stdout.endswith(b"\n100000\n")
    assert logs.stdout_truncated == 588_895 - 1000


async def test_signals_are_not_ignored_by_what_is_launched(sandbox: Sandbox) -> None:
    started = await launch(sandbox, ["grep", "SigIgn", "/proc/self/status"], deadline_seconds=60)
    await started.wait()
    ignored = int((await started.logs()).stdout.split()[1], 16)
    assert ignored & (1 << (2 - 1) | 1 << (1 - 1) | 1 << (3 - 1)) == 0


async def test_a_failing_callback_is_told_and_the_program_can_still_be_stopped(sandbox: Sandbox) -> None:
    def refuse(chunk: bytes) -> None:
        raise LookupError(chunk)

    started = await launch(sandbox, ["sh", "-c", HOLD], on_stdout=refuse, deadline_seconds=60, grace_seconds=1)
    with pytest.raises(LookupError):
        await started.wait()
    assert (await started.stop()).cleanup_confirmed
    assert await free(sandbox)


async def test_a_cancelled_waiter_leaves_the_program_alone(sandbox: Sandbox) -> None:
    started = await launch(sandbox, ["sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 7"], deadline_seconds=60)
    waiting = asyncio.ensure_future(started.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await sandbox.exec("touch go")
    assert (await started.wait()).return_code == 7


async def test_a_killed_supervisor_is_no_receipt_but_a_certain_end(provider: SandboxProvider, sandbox: Sandbox) -> None:
    if not provider.isolated:
        pytest.skip("would kill processes of this machine")
    killing = ended(sandbox, f"setsid sh -c {shlex.quote(HOLD)} & until [ -e lock ]; do :; done; kill -9 -1")
    if provider.name == "opensandbox":  # its daemon in the sandbox dies with them
        with pytest.raises(EpisodeFailure) as caught:
            await killing
        assert caught.value.kind == "sandbox_lost"
        return
    receipt = await killing
    assert (receipt.return_code, receipt.started_at, receipt.cleanup_confirmed) == (None, None, True)
    assert await free(sandbox)


async def test_a_forged_receipt_is_no_receipt(sandbox: Sandbox) -> None:
    command = 'for d in ${TMPDIR:-/tmp}/gym-launch-*; do echo "[1, {" >$d/receipt.json; mkdir $d/receipt.part; done'
    receipt = await ended(sandbox, command)
    assert receipt.return_code in (None, 0)
    assert receipt.cleanup_confirmed


async def test_a_lost_sandbox_ends_the_wait_at_once(sandbox: Sandbox) -> None:
    started = await locked(sandbox, HOLD)
    waiting = asyncio.ensure_future(started.wait())
    await asyncio.sleep(0)
    await sandbox.stop()
    for use in (waiting, started.stop(), started.logs()):
        with pytest.raises(EpisodeFailure) as caught:
            await use
        assert caught.value.kind == "sandbox_lost"


async def test_as_another_user(provider: SandboxProvider, sandbox: Sandbox) -> None:
    if not provider.capabilities.users:
        pytest.skip("one user only")
    started = await launch(
        sandbox, ["sh", "-c", "id -u; setsid sleep 1000 & sleep 1000"], user=4321, deadline_seconds=1
    )
    receipt = await started.wait()
    assert (receipt.timed_out, receipt.cleanup_confirmed) == (True, True)
    assert (await started.logs()).stdout == b"4321\n"
