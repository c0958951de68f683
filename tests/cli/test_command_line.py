"""What every command has in common: help, version, wrong words, light imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gym as package
from gym.cli.main import VERBS
from tests.cli.commands import COMMAND, environment, gym

HEAVY = (
    "hydra",
    "omegaconf",
    "yaml",
    "pydantic",
    "fastapi",
    "uvicorn",
    "httpx",
    "aiohttp",
    "docker",
    "rich",
    "asyncio",
)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_of_a_verb_has_an_example_of_it_and_names_its_flags(verb, tmp_path) -> None:
    text = gym(*verb.name.split(), "--help", cwd=tmp_path).stdout
    assert re.search(rf"^  gym {verb.name}", text.partition("example")[2], re.MULTILINE)
    for flag in (*verb.flags, "--json"):
        assert f"  {getattr(flag, 'name', flag)}" in text
    assert ("Hydra" in text) == (verb.takes == "overrides")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_verb(arguments, tmp_path) -> None:
    text = gym(*arguments, cwd=tmp_path).stdout
    assert all(f"  {verb.name}" in text for verb in VERBS)
    assert "example:\n  gym " in text


def test_help_of_a_group_lists_its_verbs(tmp_path) -> None:
    text = gym("env", "--help", cwd=tmp_path).stdout
    assert "env resolve" in text
    assert "eval run" not in text


def test_version(tmp_path) -> None:
    assert gym("--version", cwd=tmp_path).stdout.startswith(f"gym {package.__version__} (Python 3.")
    told = json.loads(gym("--version", "--json", cwd=tmp_path).stdout)
    assert told["version"] == package.__version__
    assert Path(told["path"]) == Path(package.__file__).parent


WRONG = [
    ("evla run", "unknown command `evla`; did you mean `eval`?"),
    ("--versoin", "unknown flag `--versoin`; did you mean `--version`?"),
    ("frobnicate", "unknown command `frobnicate`; one of env, eval, dataset, list, doctor"),
    ("env", "`gym env` needs a verb; one of resolve, start, stop, status, prefetch"),
    ("env resolv", "unknown command `gym env resolv`; did you mean `resolve`?"),
    ("list pairing", "unknown command `gym list pairing`; did you mean `pairings`?"),
    ("eval run --limt 3", "unknown flag `--limt`; did you mean `--limit`?"),
    ("eval run --no-server", "unknown flag `--no-server`; did you mean `--no-serve`?"),
    ("eval run --zzz", "unknown flag `--zzz`; `gym eval run --help` lists the flags"),
    ("eval run -m agent=a,b", "unknown flag `-m`; sweeps are `python -m gym.run -m ...`"),
    ("eval run --resume", "unknown flag `--resume`; the same --output continues by itself"),
    ("eval run --limit", "--limit: expected one argument; see `gym eval run --help`"),
    ("eval run --limit 1 --limit 2", "--limit: given twice; see `gym eval run --help`"),
    ("eval run --limi 1", "unknown flag `--limi`; did you mean `--limit`?"),
    ("eval run --output=", "--output: expected a value, got an empty text; see `gym eval run --help`"),
    ("eval prepare --allow-unsupported-pairing", "unknown flag `--allow-unsupported-pairing`"),
    ("eval run onboarding", "`onboarding` is neither a flag nor an override; write key=value"),
    ("doctor now", "`gym doctor` takes no `now`"),
    ("list agents a b", "one name, please; got a, b"),
    ("list agents --fields", "--fields needs a name; `gym list agents NAME --fields`"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_word_is_told_in_one_line(line, message, tmp_path) -> None:
    run = gym(*line.split(), cwd=tmp_path, code=2)
    assert message in run.stderr
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""


def test_several_wrong_flags_are_told_together_and_as_json_where_that_is_asked_for(tmp_path) -> None:
    run = gym("eval", "run", "--limt=3", "--outptu", "x", "--json", cwd=tmp_path, code=2)
    assert [problem["given"] for problem in json.loads(run.stdout)["problems"]] == ["--limt", "--outptu"]
    assert run.stderr == ""


def test_help_imports_nothing_heavy(tmp_path) -> None:
    code = f"import sys, gym.cli.main as m; m.main(['--help']); print([n for n in {HEAVY} if n in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_early_is_no_error(tmp_path) -> None:
    command = " ".join([*COMMAND, "eval", "run", "--help", "| true"])
    run = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
