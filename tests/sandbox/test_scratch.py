"""Folders that outlive their process only until the next one needs such a folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gym.sandbox.scratch import scratch, sweep_scratch

KILLED = """
import os, pathlib, signal
from gym.sandbox.scratch import scratch
made = scratch("copy")
(pathlib.Path(made.name) / "file").write_text("x")
print(made.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def killed() -> Path:
    """The folder of a process that was killed."""
    done = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False)
    return Path(done.stdout.strip())


def test_those_of_ended_processes_are_removed(temporary: Path) -> None:
    left = killed()
    assert (left / "file").exists()
    other = left.parent / "other"
    other.mkdir()
    with scratch("copy") as name:
        assert Path(name).parent == left.parent
        assert not left.exists()
        next_one = killed()
        assert Path(name).is_dir()
        assert set(left.parent.iterdir()) == {Path(name), next_one, other}
        sweep_scratch()
        assert set(left.parent.iterdir()) == {Path(name), other}
    assert left.parent.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == [left.parent]


def test_a_folder_that_others_may_enter_is_not_used(temporary: Path) -> None:
    home = killed().parent
    home.chmod(0o755)
    with scratch("copy") as name:
        assert Path(name).parent == temporary
        assert Path(name).stat().st_mode & 0o777 == 0o700
