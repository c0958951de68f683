"""`gym eval prepare`: prepare scripts of a benchmark's datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import gym, here

RECIPE = """
config_paths:
  - resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml
benchmark:
  _inherit_from: example_session_state_mgmt_resources_server
  resources_servers:
    example_session_state_mgmt:
      allowed_agents: [nobody]
      datasets:
        - {name: few, type: benchmark, taskset: t, jsonl_fpath: benchmarks/tiny/data/few.jsonl,
           prepare_script: benchmarks/tiny/prepare.py, prepare_script_args: {count: 2, name: few}}
        - {name: many, type: train, taskset: t, jsonl_fpath: benchmarks/tiny/data/many.jsonl,
           prepare_script: benchmarks/tiny/prepare.py, prepare_script_args: {count: 5, name: many}}
"""
SCRIPT = """
from pathlib import Path

def prepare(count, name):
    print("working")
    path = Path("benchmarks/tiny/data") / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}\\n" * count)
    return path
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recipe = tmp_path / "benchmarks" / "tiny"
    recipe.mkdir(parents=True)
    (recipe / "benchmark.yaml").write_text(RECIPE)
    (recipe / "large.yaml").write_text(RECIPE.replace("count: 2", "count: 4"))
    (recipe / "prepare.py").write_text(SCRIPT)
    return tmp_path


def test_the_datasets_of_the_split_are_prepared_without_looking_at_pairings_or_the_model(folder) -> None:
    run = gym("eval", "prepare", "--benchmark", "tiny", "--model-provider", "openai", "--json", cwd=folder)
    assert [(item["name"], item["rows"]) for item in json.loads(run.stdout)] == [("few", 2)]
    assert not (folder / "benchmarks/tiny/data/many.jsonl").exists()


def test_a_profile_and_all_splits(folder) -> None:
    run = gym("eval", "prepare", "--benchmark", "tiny/large", "--all", cwd=folder)
    assert [line.split()[:2] for line in run.stdout.splitlines()[1:]] == [["few", "4"], ["many", "5"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--benchmark", "tiny", "--split", "validation"], "no dataset of the split `validation`; declared are: "),
        (["--benchmark", "tny"], "no benchmark `tny`; closest: `tiny`"),
        ([], "no server declares a dataset"),
        (
            ["--benchmark", "tiny", "++benchmark.resources_servers.example_session_state_mgmt.nonsense=1"],
            "unknown key `benchmark.resources_servers.example_session_state_mgmt.nonsense`",
        ),
    ],
)
def test_what_cannot_be_prepared_is_told(arguments, message, folder) -> None:
    assert message in here("eval", "prepare", *arguments, cwd=folder, code=2).stderr


def test_a_script_that_fails_is_named(folder) -> None:
    (folder / "benchmarks/tiny/prepare.py").write_text(
        "def prepare(count, name):\n    raise SystemExit('no network')\n"
    )
    run = gym("eval", "prepare", "--benchmark", "tiny", cwd=folder, code=2)
    assert "no network\n" in run.stderr
    assert "the prepare script of `few` failed (exit 1)" in run.stderr


def test_rows_that_other_arguments_made_are_not_run(folder) -> None:
    plan = ("eval", "plan", "--benchmark", "tiny", "--model-provider", "embedded", "--allow-unsupported-pairing")
    here("eval", "prepare", "--benchmark", "tiny/large", cwd=folder)
    refused = here(*plan, cwd=folder, code=2).stderr
    assert "benchmarks/tiny/benchmark.yaml:11" in refused
    assert "few.jsonl was prepared with another `count`; run `gym eval prepare`" in refused
    here("eval", "prepare", "--benchmark", "tiny", cwd=folder)
    assert "would run 2 tasks" in here(*plan, cwd=folder).stdout


def test_a_file_that_rows_were_made_from_counts_by_its_content(tmp_path) -> None:
    source = tmp_path / "q.jsonl"
    source.write_text('{"question": "Is it?", "choices": ["yes", "no"], "answer": 1}\n')
    words = ("--benchmark", "mcqa", "--model-provider", "embedded", "--agent", "simple")
    here("eval", "prepare", *words, "mcqa_file=q.jsonl", cwd=tmp_path)
    assert "would run 1 task" in here("eval", "plan", *words, f"mcqa_file={source}", cwd=tmp_path).stdout
    source.write_text('{"question": "Was it?", "choices": ["yes", "no"], "answer": 1}\n')
    refused = here("eval", "plan", *words, "mcqa_file=q.jsonl", cwd=tmp_path, code=2).stderr
    assert "was prepared with another `file`" in refused
