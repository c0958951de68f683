"""A run's directory: never shared, never deleted, one writer."""

import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.rollouts.rundir import LOCK, create_run_directory, fresh_output, write_json

PROJECT = Path(__file__).parents[2]
NOW = datetime(2031, 2, 3, 4, 5, 6)


def test_runs_of_one_second_get_directories_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: fresh_output("onboarding", tmp_path, NOW), range(8)))
    names = {path.relative_to(tmp_path).as_posix() for path in made}
    stamp = "onboarding/2031-02-03_04-05-06"
    assert names == {stamp, *(f"{stamp}-{number}" for number in range(2, 9))}


def test_a_place_that_is_no_directory_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file  cannot use the directory: File exists; choose another output"):
        create_run_directory(tmp_path / "file", overwrite=False)
    with pytest.raises(UserError, match="cannot use the directory: Not a directory"):
        fresh_output("x", tmp_path / "file", NOW)


def test_a_directory_is_made_and_continued_later(tmp_path):
    output = tmp_path / "a" / "b"
    with create_run_directory(output, overwrite=False) as directory:
        assert not directory.continued
        (directory.path / "rollouts.jsonl").write_text("{}\n")
    with create_run_directory(output, overwrite=False) as directory:
        assert directory.continued
        assert directory.moved_aside is None
    assert (output / "rollouts.jsonl").read_text() == "{}\n"


HOLD = """
import sys
from pathlib import Path
from gym.rollouts.rundir import create_run_directory
directory = create_run_directory(Path(sys.argv[1]), overwrite=False)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_refused_with_the_first_ones_process_id_until_that_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for overwrite in (False, True):
            with pytest.raises(UserError, match=f"process {holder.pid} on .* is writing to this run directory"):
                create_run_directory(tmp_path, overwrite=overwrite)
        holder.kill()
        holder.wait()
        create_run_directory(tmp_path, overwrite=False).close()


def test_closing_lets_go_and_may_be_repeated(tmp_path):
    directory = create_run_directory(tmp_path, overwrite=False)
    with pytest.raises(UserError, match="is writing to this run directory"):
        create_run_directory(tmp_path, overwrite=False)
    directory.close()
    directory.close()
    create_run_directory(tmp_path, overwrite=False).close()


def test_overwriting_moves_what_a_run_left_and_nothing_else(tmp_path):
    create_run_directory(tmp_path, overwrite=False).close()
    for round_ in ("first", "second"):
        (tmp_path / "rollouts.jsonl").write_text(round_)
        (tmp_path / "evidence" / "r1").mkdir(parents=True)
        (tmp_path / "thesis.tex").write_text("mine")
        with create_run_directory(tmp_path, overwrite=True) as directory:
            assert not directory.continued
            assert directory.moved_aside is not None
            assert (directory.moved_aside / "rollouts.jsonl").read_text() == round_
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([LOCK, "previous-1", "previous-2", "thesis.tex"])
    with create_run_directory(tmp_path, overwrite=True) as directory:
        assert directory.moved_aside is None


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_that_no_run_made_are_neither_moved_nor_written_over(tmp_path, overwrite):
    (tmp_path / "config.yaml").write_text("mine")
    (tmp_path / "rollouts").mkdir()
    with pytest.raises(UserError, match=r"the directory is no run's.*: config\.yaml, rollouts; choose another output"):
        create_run_directory(tmp_path, overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "rollouts"]


def test_json_is_replaced_whole_and_readable_for_others(tmp_path):
    path = tmp_path / "metrics.json"
    write_json(path, {"b": 1})
    write_json(path, {"a": "é"})
    assert path.read_text(encoding="utf-8") == '{\n  "a": "é"\n}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_json_that_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "metrics.json"
    write_json(path, {"a": 1})
    for wrong in (object(), float("nan")):
        with pytest.raises((TypeError, ValueError)):
            write_json(path, {"a": wrong})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(UserError, match="cannot write the file: No such file or directory"):
        write_json(tmp_path / "none" / "metrics.json", {})
    with pytest.raises(UserError, match="cannot write the file"):
        write_json(tmp_path, {})
    assert [item.name for item in tmp_path.iterdir()] == ["metrics.json"]
    assert not list(tmp_path.parent.glob(".*.tmp"))
