"""The append-only files: torn tails, repeats, conflicts, full disks, killed writers."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.errors import UserError
from gym.rollouts.journal import Journal, encode, load, load_failures

PROJECT = Path(__file__).parents[2]
KNOWN = {("demo", "t1"), ("demo", "t2")}


def row(task, attempt, try_, reward, **more):
    return {
        "rollout_id": f"{task}-{attempt}-{try_}",
        "taskset": "demo",
        "task_id": task,
        "attempt": attempt,
        "try": try_,
        "task_digest": "d",
        "reward": reward,
        "status": "ok",
        **more,
    }


def failure(task, attempt, try_, kind="sandbox_start", **more):
    identity = {key: value for key, value in row(task, attempt, try_, 0.0).items() if key not in ("reward", "status")}
    return {**identity, "stage": "seed", "kind": kind, "message": "no", "terminal": False, **more}


def write(path, rows, tail=b""):
    path.write_bytes(b"".join(encode(item) for item in rows) + tail)
    return path


def rewards(loaded):
    return {(task, attempt): row.reward for (_, task, attempt), row in loaded.rows.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rollouts.jsonl"


KILLED_RUN = [
    row("t1", 0, 0, 0.0),
    row("t1", 0, 1, 1.0),
    row("t1", 1, 0, 1.0),
    row("t2", 0, 0, 0.0),
    row("t2", 0, 0, 0.0),
    row("t9", 0, 0, 1.0),
]
TORN = b'{"task_id":"t2","attempt":1,"try":0,"rew'


def test_what_a_killed_run_left_loads_with_three_notes(path):
    write(path, KILLED_RUN, TORN)
    offset = path.stat().st_size - len(TORN)
    loaded = load(path, KNOWN)
    assert rewards(loaded) == {("t1", 0): 1.0, ("t1", 1): 1.0, ("t2", 0): 0.0}
    assert loaded.torn_at == offset
    assert loaded.notes == [
        f"1 torn last line dropped (at byte {offset})",
        "1 identical repeat dropped (line 5)",
        "1 row of an unknown task kept aside (t9)",
    ]
    assert [(aside.task_id, aside.line) for aside in loaded.aside] == [("t9", 6)]


def test_opening_cuts_the_torn_tail_so_that_the_next_row_has_its_own_line(path):
    write(path, KILLED_RUN, TORN)
    with Journal(path) as journal:
        journal.append(row("t2", 1, 0, 0.5))
    loaded = load(path, KNOWN)
    assert loaded.torn_at is None
    assert rewards(loaded)["t2", 1] == 0.5
    assert path.read_bytes().count(b"\n") == len(KILLED_RUN) + 1


TAILS = [
    ("a cut row", TORN, True, False),
    ("zeros after a power cut", b"\0" * 100, True, False),
    ("a long cut row", b'{"response":"' + b"x" * 200_000, True, False),
    ("blanks", b"  ", False, False),
    ("a whole row without its newline", encode(row("t2", 1, 0, 0.5, response="x" * 70_000))[:-1], False, True),
    ("nothing", b"", False, False),
]


@pytest.mark.parametrize(("tail", "is_torn", "counts"), [case[1:] for case in TAILS], ids=[case[0] for case in TAILS])
@pytest.mark.parametrize("before", [[], KILLED_RUN])
def test_every_tail_is_read_and_mended_alike(path, before, tail, is_torn, counts):
    loaded = load(write(path, before, tail))
    assert loaded.torn_at == (len(path.read_bytes()) - len(tail) if is_torn else None)
    assert (("t2", 1) in rewards(loaded)) == counts
    with Journal(path) as journal:
        journal.append(row("t3", 0, 0, 1.0))
    assert rewards(load(path)) == {**rewards(loaded), ("t3", 0): 1.0}
    assert path.read_bytes().count(b"\n") == len(before) + counts + 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_highest_try_wins_whatever_the_order(path, order):
    write(path, [row("t1", 0, try_, float(try_)) for try_ in order])
    assert rewards(load(path)) == {("t1", 0): 2.0}


def test_known_tasks_may_be_a_predicate_and_none_takes_all(path):
    write(path, KILLED_RUN)
    assert ("t9", 0) in rewards(load(path))
    assert rewards(load(path, lambda taskset, task_id: task_id == "t9")) == {("t9", 0): 1.0}


def test_two_rewards_of_one_try_are_an_error_that_names_both_lines(path):
    write(path, [row("t1", 0, 0, 0.0), row("t2", 0, 0, 1.0), row("t1", 0, 0, 1.0), row("t1", 0, 1, 1.0)])
    with pytest.raises(
        UserError, match=r"rollouts\.jsonl:3  task t1, attempt 0, try 0 has two rewards: .* line 1 .* line 3"
    ):
        load(path)


def test_a_repeat_that_is_not_identical_is_not_called_so(path):
    write(path, [row("t1", 0, 0, 1.0), row("t1", 0, 0, 1.0, rollout_id="other")])
    loaded = load(path)
    assert loaded.notes == ["1 equally rewarded repeat dropped (line 2)"]
    assert loaded.rows["demo", "t1", 0].rollout_id == "t1-0-0"


MALFORMED = [
    (b"{oops}\n", "rollouts.jsonl:2  malformed row: not a JSON object"),
    (b"[1]\n", "rollouts.jsonl:2  malformed row: not a JSON object"),
    (b"\xff\xfe\n", "rollouts.jsonl:2  malformed row: not a JSON object"),
    (encode(row("t1", 1, 0, None)), "rollouts.jsonl:2  reward  malformed row"),
    (encode(row("t1", 1, 0, "1")), "rollouts.jsonl:2  reward  malformed row"),
    (encode(row("t1", 1, 0, 1.0)).replace(b"1.0", b"NaN"), "rollouts.jsonl:2  reward  malformed row"),
    (encode(row("t1", -1, 0, 1.0)), "rollouts.jsonl:2  attempt  malformed row"),
    (encode(row("t1", 1, True, 1.0)), "rollouts.jsonl:2  try  malformed row"),
    (encode(row("t1", 1, 0, 1.0, status="failed")), "rollouts.jsonl:2  status  malformed row"),
]


@pytest.mark.parametrize(("line", "message"), MALFORMED)
def test_a_malformed_line_is_an_error_with_file_and_line(path, line, message):
    path.write_bytes(encode(row("t1", 0, 0, 1.0)) + line + encode(row("t2", 0, 0, 1.0)))
    with pytest.raises(UserError) as error:
        load(path)
    assert message in str(error.value)


def test_malformed_lines_are_reported_together_but_not_without_end(path):
    path.write_bytes(b"{oops}\n" * 1000)
    with pytest.raises(UserError) as error:
        load(path)
    assert len(error.value.problems) == 20


def test_a_missing_file_is_empty_and_an_unreadable_one_an_error(tmp_path):
    assert load(tmp_path / "none.jsonl").rows == {}
    with pytest.raises(UserError, match="cannot read the file: Is a directory"):
        load(tmp_path)
    with pytest.raises(UserError, match="cannot write the file: Is a directory"):
        Journal(tmp_path)


def test_usage_keeps_numbers_only_and_extra_fields_are_ignored(path):
    usage = {"input_tokens": 3, "cost": 0.5, "model": "m", "cached": True, "details": {"x": 1}}
    write(path, [row("t1", 0, 0, 1, usage=usage, line=77, response={"x": "y"}), row("t2", 0, 0, 1, usage=None)])
    loaded = load(path)
    assert loaded.rows["demo", "t1", 0].usage == {"input_tokens": 3, "cost": 0.5}
    assert loaded.rows["demo", "t1", 0].line == 1
    assert loaded.rows["demo", "t2", 0].usage == {}


STRANGE = [
    ("line separators stay", {"text": "a\u2028b\x85c\nd"}, {"text": "a\u2028b\x85c\nd"}),
    ("no escapes", {"text": "é漢😀"}, {"text": "é漢😀"}),
    ("half a surrogate pair", {"text": "a\ud83db"}, {"text": "a\ufffdb"}),
    ("two halves", {"text": "\ud83d\ude00\ud83d"}, {"text": "😀\ufffd"}),
    ("no number", {"logprobs": [float("-inf"), (1.0, float("nan"))]}, {"logprobs": [None, [1.0, None]]}),
]


@pytest.mark.parametrize(("body", "back"), [pair[1:] for pair in STRANGE], ids=[pair[0] for pair in STRANGE])
def test_every_body_is_written_as_one_line_of_strict_json(path, body, back):
    with Journal(path) as journal:
        journal.append(row("t1", 0, 0, 1.0, response=body))
    (line,) = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert json.loads(line, parse_constant=pytest.fail)["response"] == back
    assert "\\u" not in line


def test_a_reward_that_is_no_number_is_refused_before_it_is_written(path):
    with Journal(path) as journal, pytest.raises(ValueError, match="reward nan of t1-0-0"):
        journal.append(row("t1", 0, 0, float("nan")))
    assert path.read_bytes() == b""


def test_rows_are_with_the_operating_system_before_close_and_closing_twice_is_harmless(path):
    journal = Journal(path)
    journal.append(row("t1", 0, 0, 1.0))
    assert rewards(load(path)) == {("t1", 0): 1.0}
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        journal.append(row("t1", 1, 0, 1.0))


FULL_DISK = """
import resource, sys
from pathlib import Path
from gym.errors import UserError
from gym.rollouts.journal import Journal
journal = Journal(Path(sys.argv[1]))
small = dict(rollout_id="r", taskset="demo", task_id="t1", attempt=0, task_digest="d", reward=1.0, status="ok")
journal.append(small | {"try": 0})
size = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, size + 1000))
try:
    journal.append(small | {"try": 1, "response": "x" * 5000})
except UserError as error:
    print(error)
journal.append(small | {"try": 2})
journal.close()
"""


def test_a_full_disk_is_a_clear_error_and_costs_no_row(path):
    """A limit on file size stands for the full disk: it cuts a write short and fails the next one, too."""
    command = [sys.executable, "-c", FULL_DISK, str(path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{path}  cannot write the file: File too large; make room")
    loaded = load(path)
    assert loaded.torn_at is None
    assert [item.try_ for item in loaded.rows.values()] == [2]
    assert path.read_bytes().count(b"\n") == 2


ENDLESS = """
import itertools, sys
from pathlib import Path
from gym.rollouts.journal import Journal
journal = Journal(Path(sys.argv[1]))
base = dict(rollout_id="r", taskset="demo", task_id="t1", task_digest="d", reward=1.0, status="ok", response="x" * 9000)
for attempt in itertools.count():
    journal.append(base | {"attempt": attempt, "try": 0})
    print(attempt, flush=True)
"""


def test_a_killed_writer_loses_no_row_that_it_had_written(path):
    command = [sys.executable, "-c", ENDLESS, str(path)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(50):
        written = int(process.stdout.readline())
    process.kill()
    with process.stdout:
        process.wait()
    Journal(path).close()
    loaded = load(path)
    assert loaded.torn_at is None
    assert set(loaded.rows) >= {("demo", "t1", attempt) for attempt in range(written + 1)}


def test_loading_keeps_no_bodies(path):
    with Journal(path) as journal:
        for attempt in range(40):
            journal.append(row("t1", attempt, 0, 1.0, response={"text": "x" * 1_000_000}))
    tracemalloc.start()
    loaded = load(path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(loaded.rows) == 40
    assert kept < 500_000
    assert peak < 12_000_000


def test_failures_of_an_attempt_the_highest_try_counts_then_the_later_line(tmp_path):
    path = tmp_path / "failures.jsonl"
    lines = [
        failure("t1", 0, 1, "provider_error"),
        failure("t1", 0, 0),
        failure("t2", 0, 0),
        failure("t2", 0, 0, "sandbox_lost", terminal=True, stage=None),
        failure("t9", 0, 0),
    ]
    write(path, lines, b'{"torn')
    loaded = load_failures(path, KNOWN)
    assert {key[1]: (item.kind, item.try_, item.terminal) for key, item in loaded.rows.items()} == {
        "t1": ("provider_error", 1, False),
        "t2": ("sandbox_lost", 0, True),
    }
    assert loaded.notes == [f"1 torn last line dropped (at byte {loaded.torn_at})"]


texts = st.text(max_size=5)
lines = st.lists(
    st.builds(row, texts, st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 0.3, 1.0]), response=texts),
    unique_by=lambda item: (item["task_id"], item["attempt"], item["try"]),
    max_size=8,
)


@given(lines, st.data())
def test_a_file_cut_at_any_byte_has_all_rows_but_the_torn_one(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("cut") / "rollouts.jsonl"
    with Journal(path) as journal:
        for item in rows:
            journal.append(item)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    os.truncate(path, cut)
    ends = [
        len(b"".join(map(encode, rows[: n + 1]))) - 1 for n in range(len(rows))
    ]  # a row is whole before its newline
    kept = [item for item, end in zip(rows, ends, strict=True) if end <= cut]

    loaded = load(path)
    assert {key: (got.try_, got.reward) for key, got in loaded.rows.items()} == best(kept)
    with Journal(path) as journal:
        journal.append(row("the next", 0, 0, 1.0))
    again = load(path)
    assert again.torn_at is None
    assert {key: (got.try_, got.reward) for key, got in again.rows.items()} == best([*kept, row("the next", 0, 0, 1.0)])


def best(rows):
    found: dict[Any, Any] = {}
    for item in rows:
        key = (item["taskset"], item["task_id"], item["attempt"])
        if key not in found or found[key][0] < item["try"]:
            found[key] = (item["try"], item["reward"])
    return found
