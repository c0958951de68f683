# ruff: noqa: D103 (the name of a test says what it is about)
"""What every provider's sandboxes do with commands. The files are in `files`."""

from __future__ import annotations

import asyncio
import shlex

import pytest

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Sandbox, SandboxProvider, SandboxSpec, StreamName
from gym.testing.sandbox_conformance.checks import check

# Holds a lock for as long as it lives; says so when it has it.
HOLD = "(flock 9; echo locked; exec sleep 1000) 9>lock"


async def free(sandbox: Sandbox) -> bool:
    """Whether no process holds the lock."""
    return (await sandbox.exec("flock -n lock true")).exit_code == 0


@pytest.mark.parametrize(
    ("command", "code", "stdout", "stderr"),
    [
        ("echo out; echo err >&2", 0, b"out\n", b"err\n"),
        ("exit 3", 3, b"", b""),
        (["sh", "-c", "exit 4"], 4, b"", b""),
        (["printf", "%s|", "a b", "$HOME", "'", ""], 0, b"a b|$HOME|'||", b""),
        (["echo", "-n", "a\nb"], 0, b"a\nb", b""),
        ("printf '\\377\\000\\376'", 0, b"\xff\x00\xfe", b""),
        ("true", 0, b"", b""),
    ],
)
@check
async def test_exit_code_and_output(
    sandbox: Sandbox, command: str | list[str], code: int, stdout: bytes, stderr: bytes
) -> None:
    result = await sandbox.exec(command)
    assert (result.exit_code, result.stdout, result.stderr) == (code, stdout, stderr)
    assert (result.signal, result.timed_out, result.stdout_truncated, result.stderr_truncated) == (None, False, 0, 0)
    assert result.duration_seconds > 0


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["no-such-program"], 127),
        ("no-such-program", 127),
        (["/"], 126),
        ("a\0b", 126),
        (["echo", "\ud800"], 126),
        (["echo", "x" * 200_000], 126),
    ],
    ids=["argv", "shell", "folder", "nul", "surrogate", "too long"],
)
@check
async def test_a_command_that_cannot_start_is_a_result(sandbox: Sandbox, command: str | list[str], code: int) -> None:
    result = await sandbox.exec(command)
    assert (result.exit_code, result.signal) == (code, None)
    assert result.stderr_text.strip()


@check
async def test_texts_replace_what_is_not_utf8(sandbox: Sandbox) -> None:
    result = await sandbox.exec("printf 'a\\377'; printf 'b\\377' >&2")
    assert (result.stdout_text, result.stderr_text) == ("a\ufffd", "b\ufffd")


@pytest.mark.parametrize("number", [9, 15])
@check
async def test_a_signal_is_told(sandbox: Sandbox, number: int) -> None:
    result = await sandbox.exec(f"kill -{number} $$")
    assert (result.exit_code, result.signal, result.timed_out) == (128 + number, number, False)


@check
async def test_stdin(sandbox: Sandbox) -> None:
    content = bytes(range(256)) * 8192
    assert (await sandbox.exec(["cat"], stdin=content, max_output_bytes=2**22)).stdout == content
    assert (await sandbox.exec(["cat"])).stdout == b""
    assert (await sandbox.exec("exec <&-; echo unread", stdin=content)).stdout == b"unread\n"


@check
async def test_env(provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_HOST", "secret")
    sandbox = await provider.create(SandboxSpec(env={"A": "spec", "B": "spec"}))
    result = await sandbox.exec('echo "$A $B $C ${OF_THE_HOST-unset}"', env={"B": "exec é", "C": "$x\n'"})
    assert result.stdout_text == "spec exec é $x\n' unset\n"
    assert (await sandbox.exec('echo "$B"')).stdout == b"spec\n"
    for env in ({"": "x"}, {"A=B": "x"}, {"A": "\0"}):
        with pytest.raises(ValueError, match="no environment can hold"):
            await sandbox.exec("true", env=env)


@check
async def test_home_and_temporary_directory_can_be_written_and_stay(sandbox: Sandbox) -> None:
    await sandbox.exec('echo 1 >~/kept; echo 2 >"${TMPDIR:-/tmp}/kept"')
    assert (await sandbox.exec('cat ~/kept "${TMPDIR:-/tmp}/kept"')).stdout == b"1\n2\n"


@check
async def test_cwd(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SandboxSpec(workdir="/some/where"))
    assert sandbox.workdir.endswith("/some/where")
    assert (await sandbox.exec("pwd; mkdir 'a b'")).stdout_text == sandbox.workdir + "\n"
    for cwd in ("a b", f"{sandbox.workdir}/a b"):
        assert (await sandbox.exec(["pwd"], cwd=cwd)).stdout_text == f"{sandbox.workdir}/a b\n"
    assert (await sandbox.exec("pwd", cwd="missing")).exit_code == 126


@check
async def test_user(provider: SandboxProvider, sandbox: Sandbox) -> None:
    if provider.capabilities.root:
        for user in ("root", 0):
            assert (await sandbox.exec("id -u", user=user)).stdout == b"0\n"
        assert (await sandbox.exec("id -un")).stdout == b"root\n"
    if not provider.capabilities.users:
        with pytest.raises(UserError, match="no user `4321`"):
            await sandbox.exec("true", user=4321)
    else:
        assert (await sandbox.exec("id -u", user=4321)).stdout == b"4321\n"


@check
async def test_timeout_kills_the_tree(sandbox: Sandbox) -> None:
    result = await sandbox.exec(f"setsid sh -c {shlex.quote(HOLD)} & echo begun; sleep 1000", timeout_seconds=1)
    assert (result.exit_code, result.signal, result.timed_out) == (137, 9, True)
    assert sorted(result.stdout.split()) == [b"begun", b"locked"]
    assert await free(sandbox)


@check
async def test_a_background_child_does_not_hang(provider: SandboxProvider, sandbox: Sandbox) -> None:
    result = await sandbox.exec(f"setsid sh -c {shlex.quote(HOLD)} & until [ -e lock ]; do :; done; echo done")
    assert (result.exit_code, result.timed_out) == (0, False)
    assert b"done\n" in result.stdout
    if not provider.capabilities.background:
        assert await free(sandbox)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@check
async def test_much_output_is_bounded(sandbox: Sandbox, stream: StreamName) -> None:
    chunks = []
    script = "echo begin; head -c 10000000 /dev/zero | tr '\\0' x; echo end"
    result = await sandbox.exec(
        f"({script}) {'>&2' if stream == 'stderr' else ''}",
        max_output_bytes=1000,
        on_output=lambda name, chunk: chunks.append((name, len(chunk))),
    )
    text = getattr(result, stream).decode()
    left_out = 10_000_010 - 1000
    assert text.startswith("begin\nxxx")
    assert text.endswith("xxxend\n")
    assert f"\n[... {left_out} bytes left out ...]\n" in text
    assert len(text) < 1100
    assert getattr(result, f"{stream}_truncated") == left_out
    assert sum(length for _, length in chunks) == 10_000_010
    assert {name for name, _ in chunks} == {stream}


@check
async def test_output_arrives_in_order_and_live(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo go")
    seen: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
    first = asyncio.Event()

    def watch(name: StreamName, chunk: bytes) -> None:
        seen[name] += chunk
        if seen["stdout"].startswith(b"1\n"):
            first.set()

    running = asyncio.ensure_future(sandbox.exec("echo 1; cat go; echo e >&2; seq 2 2000", on_output=watch))
    await first.wait()
    await sandbox.exec("echo went >go")
    result = await running
    assert seen == {"stdout": result.stdout, "stderr": result.stderr}
    assert result.stdout.split() == [b"1", b"went", *(str(n).encode() for n in range(2, 2001))]


@check
async def test_a_failing_callback_ends_the_command(sandbox: Sandbox) -> None:
    def refuse(name: StreamName, chunk: bytes) -> None:
        raise LookupError(f"{name}: {chunk!r}")

    with pytest.raises(LookupError, match="locked"):
        await sandbox.exec(HOLD, on_output=refuse)
    assert await free(sandbox)


@check
async def test_commands_run_at_the_same_time(sandbox: Sandbox) -> None:
    await sandbox.exec("for n in 1 2 3 4; do mkfifo to$n back$n; done")
    # Each pair can end only if both of it run.
    pairs = [(f"echo {n} >to{n}; cat back{n}", f"cat to{n}; echo b{n} >back{n}") for n in range(1, 5)]
    results = await asyncio.gather(*(sandbox.exec(command) for pair in pairs for command in pair))
    assert [result.stdout_text.strip() for result in results] == ["b1", "1", "b2", "2", "b3", "3", "b4", "4"]


@check
async def test_cancellation_kills_and_passes(sandbox: Sandbox) -> None:
    locked = asyncio.Event()
    running = asyncio.ensure_future(
        sandbox.exec(f"setsid sh -c {shlex.quote(HOLD)} & sleep 1000", on_output=lambda *_: locked.set())
    )
    await locked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await free(sandbox)


@check
async def test_cancellation_at_any_early_moment(sandbox: Sandbox) -> None:
    for turns in range(12):
        running = asyncio.ensure_future(sandbox.exec("flock lock sleep 1000"))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await free(sandbox)


@check
async def test_stop_ends_running_commands(sandbox: Sandbox) -> None:
    begun = asyncio.Event()
    running = asyncio.ensure_future(sandbox.exec("echo begun; sleep 1000", on_output=lambda *_: begun.set()))
    await begun.wait()
    await sandbox.stop()
    with pytest.raises(EpisodeFailure, match="is stopped, while a command ran") as caught:
        await running
    assert caught.value.kind == "sandbox_lost"


@check
async def test_stop_twice_and_use_after_stop(sandbox: Sandbox) -> None:
    await asyncio.gather(sandbox.stop(), sandbox.stop())
    await sandbox.stop()
    uses = [sandbox.exec("true"), sandbox.upload(b"", "x"), sandbox.read_file("x", 1)]
    for use in uses:
        with pytest.raises(EpisodeFailure, match="is stopped") as caught:
            await use
        assert caught.value.kind == "sandbox_lost"


@check
async def test_sandboxes_do_not_share_files(provider: SandboxProvider, sandbox: Sandbox) -> None:
    other = await provider.create(SandboxSpec())
    assert other.id != sandbox.id
    await sandbox.exec('touch mine "${TMPDIR:-/tmp}/mine" ~/mine')
    assert (await other.exec('ls . ~ "${TMPDIR:-/tmp}"')).stdout_text.count("mine") == 0
    await other.stop()
    assert (await sandbox.exec("cat mine")).exit_code == 0


@check
async def test_ttl(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SandboxSpec(ttl_seconds=0.3))
    with pytest.raises(EpisodeFailure, match=r"outlived its ttl of .* while a command ran"):
        await sandbox.exec("sleep 1000")
    with pytest.raises(EpisodeFailure, match="outlived its ttl of") as caught:
        await sandbox.exec("true")
    assert caught.value.kind == "sandbox_lost"
    await sandbox.stop()


@check
async def test_a_borrower_works_and_leaves_the_rest_to_the_owner(provider: SandboxProvider, sandbox: Sandbox) -> None:
    await sandbox.upload(b"shared", "file")
    borrowed = await provider.connect(sandbox.descriptor())
    assert (borrowed.id, borrowed.workdir) == (sandbox.id, sandbox.workdir)
    assert (await borrowed.exec("cat file; echo more >>file")).stdout == b"shared"
    await borrowed.stop()
    with pytest.raises(EpisodeFailure, match="is stopped"):
        await borrowed.exec("true")
    assert (await sandbox.exec("cat file")).stdout == b"sharedmore\n"
    again = await provider.connect(sandbox.descriptor())
    await sandbox.stop()
    with pytest.raises(EpisodeFailure, match="owner has stopped it") as caught:
        await again.exec("true")
    assert caught.value.kind == "sandbox_lost"
    with pytest.raises(EpisodeFailure, match="no sandbox"):
        await provider.connect(sandbox.descriptor())


@check
async def test_aclose_stops_everything(provider: SandboxProvider) -> None:
    made = [await provider.create(SandboxSpec()) for _ in range(3)]
    await made[0].stop()
    await provider.aclose()
    await provider.aclose()
    for sandbox in made:
        with pytest.raises(EpisodeFailure, match="is stopped"):
            await sandbox.exec("true")


@check
async def test_refused_specs(provider: SandboxProvider) -> None:
    offered = provider.capabilities
    for network in ("open", "gym_only", "none"):
        if network not in offered.networks:
            with pytest.raises(UserError, match=f"network `{network}`"):
                await provider.create(SandboxSpec(network=network))
    if not offered.images:
        with pytest.raises(UserError, match="image `some:image`"):
            await provider.create(SandboxSpec(image="some:image"))
    for workdir in ("relative", "/a/../b", "/"):
        with pytest.raises(UserError, match="work directory"):
            await provider.create(SandboxSpec(workdir=workdir))
