"""The shell scripts, run by the shells of this machine. No server is needed."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gym.sandbox.providers.opensandbox.script import (
    INLINE_BYTES,
    Limits,
    Line,
    Record,
    Records,
    Script,
    end_script,
    run_script,
)
from gym.sandbox.providers.opensandbox.shell import PROCESSES

ALL = Limits.of(2**20, everything=True)


def shells() -> list[list[str]]:
    found = [[path] for name in ("dash", "bash") if (path := shutil.which(name))]
    return found + ([[path, "sh"]] if (path := shutil.which("busybox")) else [])


@pytest.fixture(params=shells(), ids=lambda words: Path(words[0]).name)
def shell(request: pytest.FixtureRequest) -> list[str]:
    """A shell, as the daemon would start it."""
    return list(request.param)


class Run:
    """What a script has printed, as if each line had lost its end."""

    def __init__(self, shell: list[str], script: Script) -> None:
        for path, content in script.files.items():
            Path(path).write_bytes(content)
        done = subprocess.run(
            [*shell, "-c", script.command],
            env={"PATH": os.environ["PATH"], "HOME": "/", **script.env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        for path in script.files:
            Path(path).unlink()
        out, err = Records(), Records()
        self.out = list(out.feed(done.stdout.decode().replace("\n", "")))
        self.err = list(err.feed(done.stderr.decode().replace("\n", "")))
        self.other = out.other, err.other

    @property
    def stdout(self) -> bytes:
        return b"".join(record.content for record in self.out if record.kind == "")

    @property
    def stderr(self) -> bytes:
        return b"".join(record.content for record in self.err if record.kind == "")

    @property
    def code(self) -> bytes:
        (code,) = [record.content for record in self.out if record.kind == "="]
        return code


def mark() -> str:
    return f"box:{secrets.token_hex(8)}"


def run(shell: list[str], line: Line, limits: Limits = ALL) -> Run:
    return Run(shell, run_script(mark(), line, limits))


# What a process can be given: no NUL, and half surrogates only for bytes that are no UTF-8.
texts = st.binary(max_size=40).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))
names = st.text("abz_AZ.-09 =", min_size=1).map(lambda name: name.replace("=", "") or "x")


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(texts, max_size=4), content=st.binary(max_size=200), value=texts, name=names)
def test_whatever_goes_in_comes_out(shell: list[str], words: list[str], content: bytes, value: str, name: str) -> None:
    script = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, [os.environ[sys.argv[1]],"
    script += " *sys.argv[2:]])) + b'\\0' + sys.stdin.buffer.read())"
    line = Line(["python3", "-c", script, f"GYM_TEST_{name}", *words], "/", {f"GYM_TEST_{name}": value}, content)
    done = run(shell, line)
    assert done.stdout == b"\0".join(map(os.fsencode, [value, *words])) + b"\0" + content
    assert (done.code, done.other) == (b"0", ("", ""))


@pytest.mark.parametrize("size", [0, 1, 49_152, 49_153, 3_000_000])
@pytest.mark.parametrize("max_bytes", [0, 1, 7, 1000, 100_000, 2**22])
def test_beginning_and_end_of_long_output(shell: list[str], size: int, max_bytes: int) -> None:
    content = os.urandom(size)
    limits = Limits.of(max_bytes, everything=False)
    done = run(shell, Line(["cat"], "/", stdin=content), limits)
    left = [int(record.content) for record in done.out if record.kind == "#"]
    if size < limits.head:
        assert (done.stdout, left) == (content, [])
    else:
        end = content[limits.head :][-limits.tail :]
        assert (done.stdout, left) == (content[: limits.head] + end, [size - limits.head])
    assert (done.stderr, done.code) == (b"", b"0")


def test_commands_that_fail(shell: list[str]) -> None:
    for words, cwd, code in (
        (["sh", "-c", "exit 3"], "/", b"3"),
        (["sh", "-c", "kill -9 $$"], "/", b"137"),
        (["no-such-program"], "/", b"127"),
        (["/"], "/", b"126"),
        (["pwd"], "/missing", b"126"),
        (["echo", "x" * 200_000], "/", b"126"),
    ):
        done = run(shell, Line(words, cwd))
        assert done.code == code, words
        assert bool(done.stderr) == (code in (b"126", b"127"))


def test_long_scripts_and_inputs_travel_as_files(shell: list[str]) -> None:
    content = os.urandom(INLINE_BYTES)
    words = ["sh", "-c", "cat; echo $#", "sh", *["word" * 10] * 5000]
    script = run_script(mark(), Line(words, "/", stdin=content), ALL)
    assert len(script.files) == 2
    assert Run(shell, script).stdout == content + b"5000\n"


def test_what_stays_in_the_background_does_not_die_of_its_output(shell: list[str], tmp_path: Path) -> None:
    late = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo late; echo late >&2; echo late && >{tmp_path}/done"
    assert run(shell, Line(["sh", "-c", f"({late}) & echo now"], "/")).stdout == b"now\n"
    (tmp_path / "go").touch()
    subprocess.run(["sh", "-c", f"until [ -e {tmp_path}/done ]; do sleep 0.05; done"], check=True, timeout=60)


def test_nothing_is_left_of_a_command(shell: list[str]) -> None:
    named = mark()
    Run(shell, run_script(named, Line(["true"], "/"), ALL))
    assert not list(Path("/tmp").glob(f".gym-{named.partition(':')[2]}*"))


def test_all_processes_of_a_command_are_ended(shell: list[str]) -> None:
    named = mark()
    script = "setsid sh -c 'setsid sleep 1000 & sleep 1000' & env -i sleep 1000 & sleep 1000 & echo begun; sleep 1000"
    line = run_script(named, Line(["sh", "-c", script], "/"), ALL)
    with subprocess.Popen(
        [*shell, "-c", line.command], env={**os.environ, **line.env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        ended = Run(shell, end_script(named))
        assert [record.kind for record in ended.out] == ["="]
        assert b"<=137>" in running.stdout.read()
    assert not left(named)


def left(named: str) -> list[str]:
    files = [path for path in Path("/proc").glob("[0-9]*/environ") if os.access(path, os.R_OK)]
    words = ["grep", "-lsF", f"GYM_SANDBOX={named}", *map(str, files)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()


def test_a_command_that_was_ended_before_it_began_never_begins(shell: list[str], tmp_path: Path) -> None:
    named = mark()
    assert [record.kind for record in Run(shell, end_script(named)).out] == ["="]
    late = Run(shell, run_script(named, Line(["touch", str(tmp_path / "begun")], "/"), ALL))
    assert [record.kind for record in late.out] == ["!"]
    assert not (tmp_path / "begun").exists()
    Path(f"/tmp/.gym-{named.partition(':')[2]}").rmdir()


def test_names_of_variables_are_not_taken_by_the_script(shell: list[str]) -> None:
    given = dict.fromkeys(["d", "in", "head", "tail", "cwd", "pid", "rc", "own", "n", "UID", "a.b", "PATH"], "mine")
    given["PATH"] = "/usr/bin:/bin:/mine"
    done = run(shell, Line(["env"], "/", given))
    shown = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
    assert shown.items() >= given.items()
    assert not [name for name in shown if name.startswith(("g_", "GYM_SCRIPT"))]


def test_processes_are_listed(shell: list[str]) -> None:
    listed = run(shell, Line(["sh", "-c", PROCESSES], "/")).stdout.decode().split()
    start = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    assert f"{os.getpid()}:{start}" in listed


@given(st.lists(st.binary(max_size=60), max_size=5), st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_records_survive_any_splitting(contents: list[bytes], cuts: list[int], lines: bool) -> None:
    text = "noise<" + "".join(f"<{base64.b64encode(content).decode()}>\n" for content in contents) + "<#12>\n<=137+>\n"
    text = text if lines else text.replace("\n", "")
    records, start = Records(), 0
    found: list[Record] = []
    for cut in [*sorted(cuts), len(text)]:
        found += records.feed(text[start:cut])
        start = max(start, cut)
    assert [(record.kind, record.content) for record in found] == [
        *(("", content) for content in contents),
        ("#", b"12"),
        ("=", b"137+"),
    ]
    assert records.other.startswith("noise")
