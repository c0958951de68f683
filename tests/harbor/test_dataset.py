"""Datasets: folders of task folders, dataset.toml, and the rows that they become."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from gym.errors import UserError
from gym.harbor import rows
from gym.harbor.dataset import load_dataset, scan
from gym.harbor.digest import task_digest
from gym.harbor.prepare import prepare
from gym.harbor.rows import HarborTaskData, task_of
from tests.harbor.folders import folder

NAMED = '[task]\nname = "o/{}"\n\n[agent]\ntimeout_sec = 10\n\n[environment]\ncpus = 1\nmemory_mb = 100\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the dataset `set` of the tasks `a` and `b`."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        folder(tmp_path / "set" / name, NAMED.format(name))
    return tmp_path


def _table(text: str) -> None:
    Path("set/dataset.toml").write_text(dedent(text))


def test_a_dataset_is_a_folder_of_task_folders_and_a_task_folder_is_a_dataset_of_one(here) -> None:
    (here / "set" / "docs").mkdir()
    dataset = load_dataset(Path("set"))
    assert (dataset.taskset, [task.name for task in dataset.tasks]) == ("set", ["o/a", "o/b"])
    alone = load_dataset(Path("set/a"))
    assert (alone.taskset, [task.task_id for task in alone.tasks]) == ("a", ["a"])


def test_no_task_folder_is_left_out_silently(here) -> None:
    (here / "set" / "c" / "tests").mkdir(parents=True)
    folder(here / "set" / "d", "[agent]\ntimeout = 1\n", {"instruction.md": None})
    with pytest.raises(UserError) as caught:
        load_dataset(Path("set"))
    assert [problem.where for problem in caught.value.problems] == [
        *("set/c", "set/d/task.toml:2", "set/d/instruction.md"),
    ]
    assert [entry.task_id for entry in scan(Path("set")).entries if entry.task is not None] == ["a", "b"]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_where_there_is_no_task(name, here) -> None:
    (here / "empty").mkdir()
    with pytest.raises(UserError, match=r"no task in .*; did you mean `set`\?"):
        load_dataset(here)
    with pytest.raises(UserError, match=f"no (such folder: {name}|task in {name})"):
        load_dataset(Path(name))


def test_the_listed_digests_hold(here) -> None:
    digests = {name: task_digest(here / "set" / name) for name in "ab"}
    listed = "".join(f'[[tasks]]\nname = "o/{name}"\ndigest = "{digest}"\n' for name, digest in digests.items())
    _table(f'[dataset]\nname = "o/set"\n{listed}')
    assert load_dataset(Path("set")).digest.startswith("sha256:")
    (here / "set/b/instruction.md").write_text("Do something else.\n")
    with pytest.raises(UserError) as caught:
        load_dataset(Path("set"))
    (problem,) = caught.value.problems
    assert (problem.where, problem.key) == ("set/dataset.toml:8", "tasks.1.digest")
    assert "the task `o/b` has changed: its folder has the digest sha256:" in problem.what


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[gim]\nx = 1", "set/dataset.toml:1  gim  unknown key `gim`; did you mean `gym`?"),
        ("[gym]\nallowed_agent = ['pi']", "set/dataset.toml:2  gym.allowed_agent  unknown key `allowed_agent`; did"),
        ("[gym]\ntype = 'test'", "set/dataset.toml:2  gym.type  wants one of train, validation, benchmark, example"),
        (
            "[gym.defaults]\ntimeout_multiplier = 0",
            "set/dataset.toml:2  gym.defaults.timeout_multiplier  wants a number",
        ),
        ("[gym.tasks.c.agent]\nuser = 'x'", "set/dataset.toml:1  gym.tasks.c  there is no task `c`"),
        ("[gym.tasks.a]\n[gym.tasks.'o/a']", "set/dataset.toml:2  gym.tasks.o/a  is the same task as `a`"),
        ("[gym.tasks.a.task]\nname = 'x/y'", "set/dataset.toml:1  gym.tasks.a.task  unknown key `task`"),
        ("[gym.tasks.a.agent]\nuser = true", "set/dataset.toml:2  agent.user  wants text that is not empty or an"),
        ('[gym.tasks."o/b".environment]\ncpu = 2', "set/dataset.toml:2  environment.cpu  unknown key `cpu`; did you"),
        ("schema_version = '2.0'", "set/dataset.toml:1  schema_version  schema 2.0 is not 1.0"),
        ("[dataset]\nname = 'a/b/c'", "set/dataset.toml:2  dataset.name  `a/b/c` is no name"),
        ("[[files]]\npath = 'm.py'", "set/dataset.toml:2  files.0.path  there is no file `m.py`"),
        ("[[tasks]]\nname = 'o/a'\ndigest = 'x'", "set/dataset.toml:3  tasks.0.digest  wants text that matches"),
        (
            f"[[tasks]]\nname = 'o/z'\ndigest = 'sha256:{'0' * 64}'",
            "set/dataset.toml:2  tasks.0.name  there is no folder",
        ),
        (f"[[tasks]]\nname = 'o/a'\ndigest = 'sha256:{'0' * 64}'", "set/dataset.toml:1  tasks  the folder `b` is not"),
    ],
)
def test_what_is_wrong_with_a_dataset_toml(table, message, here) -> None:
    _table(table)
    with pytest.raises(UserError) as caught:
        load_dataset(Path("set"))
    assert message in str(caught.value)


OVERRIDES = """
    [gym]
    license = "MIT"

    [gym.defaults]
    timeout_multiplier = 2
    verifier_timeout_multiplier = 3.0
    resource_multiplier = 1.5
    num_repeats = 4

    [gym.tasks.a.agent]
    timeout_sec = 50

    [gym.tasks."o/b".environment]
    memory = "1G"
    """


def test_a_dataset_scales_its_tasks_and_sets_keys_of_single_ones(here) -> None:
    _table(OVERRIDES)
    a, b = load_dataset(Path("set")).tasks
    assert [task.steps[0].agent.timeout_seconds for task in (a, b)] == [100, 20]
    assert [task.steps[0].verifier.timeout_seconds for task in (a, b)] == [3600, 3600]
    assert [task.environment.config.memory_mb for task in (a, b)] == [150, 1536]
    assert [task.environment.config.build_timeout_sec for task in (a, b)] == [1200, 1200]
    assert [task.environment.config.cpus for task in (a, b)] == [1.5, 1.5]
    assert load_dataset(Path("set/a")).tasks[0].table == a.table
    assert a.problem(("agent", "timeout_sec"), "x").where == "set/dataset.toml:12"
    assert a.problem(("environment", "cpus"), "x").where == "set/a/task.toml:8"
    assert b.problem(("environment", "memory_mb"), "x").where == "set/dataset.toml:15"


def test_a_row_gives_back_the_same_task_until_its_folder_changes(here) -> None:
    _table(OVERRIDES)
    dataset = load_dataset(Path("set"))
    first, second = (row["task_input"]["task_data"] for row in rows.rows(dataset, "set"))
    assert first["folder"] == "set/a"
    task = task_of(HarborTaskData.model_validate_json(json.dumps(second)))
    assert task.table == dataset.tasks[1].table
    (here / "set/b/tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt # always\n")
    with pytest.raises(UserError, match="set/b  the task `b` has changed since its row was made"):
        task_of(HarborTaskData.model_validate(second))
    assert task_of(HarborTaskData.model_validate(first))


def test_rows_are_prepared_again_as_they_are(here) -> None:
    path = prepare("set", "results/tasks.jsonl", "set")
    made = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["task_id"] for row in made] == [{"taskset": "set", "task_id": name} for name in "ab"]
    assert made[0]["task_input"]["responses_create_params"]["input"] == [{"role": "user", "content": "Do it.\n"}]
    before = path.stat().st_mtime_ns
    prepare("set", "results/tasks.jsonl", "set")
    assert path.stat().st_mtime_ns == before
