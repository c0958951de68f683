"""`gym eval run FOLDER` and `gym dataset`: task folders without any YAML."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import gym, here
from tests.conftest import needs
from tests.harbor.folders import FIXTURES, folder

MODEL = ("--model-provider", "embedded")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A working directory with the dataset `tasks` of two fixtures."""
    for name in ("image", "rewards"):
        shutil.copytree(FIXTURES / name, tmp_path / "tasks" / name)
    return tmp_path


def _image_needed() -> None:
    there = shutil.which("docker") is not None
    there = there and subprocess.run(["docker", "image", "inspect", "gym-base"], capture_output=True).returncode == 0
    needs("Docker with the image gym-base", present=there, reason="python tests/tools/base_image.py")


def test_a_folder_becomes_a_run_configuration_that_runs_with_config_too(tasks) -> None:
    _image_needed()
    first = gym("eval", "run", "tasks", "--agent", "oracle", "--output", "out", "--json", cwd=tasks)
    told = json.loads(first.stdout)
    assert (told["exit_code"], told["results"]) == (0, "out")
    config = tasks / "results/harbor/tasks/run_config_oracle.yaml"
    again = gym("eval", "run", "--config", str(config), "--output", "out", "--json", cwd=tasks)
    assert json.loads(again.stdout)["exit_code"] == 0
    assert "everything was finished before" in again.stderr
    rows = [json.loads(line) for line in (tasks / "out/rollouts.jsonl").read_text().splitlines()]
    assert sorted((row["task_id"], row["reward"]) for row in rows) == [("image", 1.0), ("rewards", 1.0)]

    # A changed folder is refused where its old rows are, by the rows and by the folder's name.
    (tasks / "tasks/image/instruction.md").write_text("Do something else.\n")
    stale = gym("eval", "run", "--config", str(config), "--output", "out", cwd=tasks, code=2)
    assert "the task `image` has changed since its row was made" in stale.stderr
    changed = gym("eval", "run", "tasks", "--agent", "oracle", "--output", "out", cwd=tasks, code=2)
    assert "task image changed since its rollouts were made" in changed.stderr


def test_a_new_dataset_is_sound(tmp_path) -> None:
    _image_needed()
    here("dataset", "init", "new", cwd=tmp_path)
    proof = json.loads(gym("dataset", "validate", "new", "--json", cwd=tmp_path).stdout)
    assert [(item["task"], item["sound"]) for item in proof] == [("first-task", True)]
    assert "new exists already" in here("dataset", "init", "new", cwd=tmp_path, code=2).stderr
    inside = here("dataset", "init", "new/dataset.toml/more", cwd=tmp_path, code=2).stderr
    assert "new/dataset.toml/more cannot be written: Not a directory" in inside


def test_a_dataset_is_proven_by_its_solutions_and_by_doing_nothing(tasks) -> None:
    _image_needed()
    for name in ("allowlist", "broken-verifier"):
        shutil.copytree(FIXTURES / name, tasks / "tasks" / name)
    shutil.rmtree(tasks / "tasks/image/solution")
    run = gym("dataset", "validate", "tasks", cwd=tasks, code=1)
    table = [line.split(None, 3) for line in run.stdout.splitlines()[1:]]
    assert table == [
        ["allowlist", "-", "-", "cannot run here"],
        ["broken-verifier", "-", "-", "oracle: reward_missing; nop: reward_missing"],
        ["image", "-", "-", "has no solution"],
        ["rewards", "1", "0", "sound"],
    ]
    assert "tasks/allowlist/task.toml:8  environment.network_mode  docker cannot limit" in run.stderr
    assert "3 of 4 tasks are not proven" in run.stderr


def test_the_written_file_and_what_is_done_with_edited_ones(tasks) -> None:
    plan = ("eval", "plan", "tasks", "--agent", "pi", *MODEL, "--model", "some-model", "limit=1")
    assert "would run 1 task of the split benchmark" in here(*plan, cwd=tasks).stdout
    config = tasks / "results/harbor/tasks/run_config_pi.yaml"
    text = config.read_text()
    assert "- conf/model-provider/embedded.yaml\n- conf/sandbox/docker.yaml\n- responses_api_agents/pi_agent/" in text
    assert "policy_model_name: some-model\n" in text
    here(*plan, cwd=tasks)
    assert config.read_text() == text
    config.write_text(text.replace("some-model", "other-model"))
    refused = here(*plan, cwd=tasks, code=2).stderr
    assert "run_config_pi.yaml  was edited, and would be written over; run it with `gym eval run --config" in refused
    edited = here("eval", "plan", "--config", str(config), "--json", cwd=tasks)
    assert json.loads(edited.stdout)["model_name"] == "other-model"
    (tasks / "rows.jsonl").write_text('{"responses_create_params": {"input": "x"}, "folder": "tasks"}\n')
    other = here("eval", "plan", "--config", str(config), "--input", "rows.jsonl", cwd=tasks, code=2).stderr
    assert "rows.jsonl:1  no row of a Harbor task: folder: Field required" in other


def test_datasets_of_one_name_have_folders_of_their_own(tasks) -> None:
    plan = ("eval", "plan", "tasks", "--agent", "oracle")
    here(*plan, cwd=tasks)
    shutil.copytree(tasks / "tasks", tasks / "other/tasks")
    here("eval", "plan", "other/tasks", "--agent", "oracle", cwd=tasks)
    here(*plan, cwd=tasks)
    rows = {path.parent.name: path.read_text() for path in (tasks / "results/harbor").glob("*/tasks.jsonl")}
    assert len(rows) == 2
    assert '"folder": "tasks/image"' in rows.pop("tasks")
    assert '"folder": "other/tasks/image"' in "".join(rows.values())


GYM_TABLE = "[gym]\ntype = 'train'\nallowed_agents = ['codex_agent']\n[gym.defaults]\nnum_repeats = 3\n"


def test_a_dataset_says_who_may_run_it_and_as_what(tasks) -> None:
    (tasks / "tasks/dataset.toml").write_text(GYM_TABLE)
    plan = ("eval", "plan", "tasks", *MODEL)
    refused = here(*plan, "--agent", "pi", cwd=tasks, code=2).stderr
    assert "tasks/dataset.toml:3  gym.allowed_agents  the dataset does not declare pi_agent in its allowed" in refused
    waived = here(*plan, "--agent", "pi", "--allow-unsupported-pairing", cwd=tasks).stdout
    assert "note: waived by --allow-unsupported-pairing: the dataset does not declare pi_agent" in waived
    for agent in ("codex", "oracle"):
        planned = json.loads(here(*plan, "--agent", agent, "--json", cwd=tasks).stdout)
        assert (planned["split"], planned["tasks"], planned["datasets"][0]["attempts"]) == ("train", 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tasks"], "a task folder needs an agent; add --agent NAME"),
        (["tasks", "--agent", "py"], "no agent `py`; did you mean `pi`?"),
        (["tasks", "--agent", "oracle", "--sandbox", "dokcer"], "no sandbox `dokcer`; did you mean `docker`?"),
        (["tasks", "--agent", "oracle", "sandbox=local"], "has none; use sandbox=docker"),
        (["tasks", "--agent", "oracle", "agent=nop"], "--agent oracle and agent=nop differ"),
        (["tasks", "--agent", "oracle", "--benchmark", "x"], "--benchmark has no place beside the task folder `tasks`"),
        (["tasks", "tasks/image", "--agent", "oracle"], "one folder, please; `tasks/image` is another"),
        (["tasks/image/task.toml"], "`tasks/image/task.toml` is a file, no task folder; did you mean --config FILE?"),
        (["./nowhere", "--agent", "oracle"], "no such folder: nowhere"),
        (["bad", "--agent", "oracle"], "bad/task.toml:2  agent.timeout  unknown key `timeout`; did you mean"),
    ],
)
def test_what_is_wrong_with_the_command(arguments, message, tasks) -> None:
    folder(tasks / "bad", "[agent]\ntimeout = 1\n")
    assert message in here("eval", "plan", *arguments, cwd=tasks, code=2).stderr


def test_folders_are_checked_and_digested_without_running_anything(tasks) -> None:
    told = json.loads(here("dataset", "validate", "tasks", "--static", "--json", cwd=tasks).stdout)
    assert told == [{"task": name, "steps": 1, "solution": True} for name in ("image", "rewards")]
    digest = here("dataset", "digest", "tasks", cwd=tasks).stdout
    (tasks / "tasks/dataset.toml").write_text(digest)
    here("dataset", "validate", "tasks", "--static", cwd=tasks)
    (tasks / "tasks/image/tests/test.sh").write_text("true\n")
    assert "the task `gym-tests/image` has changed" in here("dataset", "validate", "tasks", cwd=tasks, code=2).stderr
    assert "which folder?; `gym dataset digest FOLDER`" in here("dataset", "digest", cwd=tasks, code=2).stderr
