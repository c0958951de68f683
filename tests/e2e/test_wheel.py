"""The wheel carries all of it: built, installed into an environment of its own, and used from folders elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import needs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.e2e

OWN_FILES = {
    "resources_servers/my_env/app.py": """
        from gym.servers.contract import VerifyRequest, VerifyResponse
        from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData


        class Echo(TaskData):
            word: str


        class MyEnv(ResourcesServer[ResourcesServerConfig, Echo]):
            task_type = Echo

            async def verify(self, session: Session[Echo], request: VerifyRequest) -> VerifyResponse:
                return VerifyResponse(reward=float(session.task.word in request.response.output_text))
        """,
    "experiments/mine/run.yaml": """
        benchmark:
          resources_servers:
            my_env:
              _target_: resources_servers.my_env.app.MyEnv
              datasets:
                - {name: mine, type: benchmark, taskset: mine, jsonl_fpath: experiments/mine/rows.jsonl}
        policy_script: experiments/mine/policy.jsonl
        """,
    "experiments/mine/rows.jsonl": """
        {"task_id": "good", "word": "tree", "responses_create_params": {"input": "Say tree."}}
        {"task_id": "bad", "word": "bush", "responses_create_params": {"input": "Say bush."}}
        """,
    "experiments/mine/policy.jsonl": """
        {"task": "good", "match": "tree", "turns": [[{"say": "tree"}]]}
        {"task": "bad", "match": "bush", "turns": [[{"say": "tree"}]]}
        """,
}


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "POLICY_"))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def succeed(command: list[str | Path], folder: Path) -> str:
    done = run(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel; its dependencies are those of this environment."""
    for part in ("hatchling", "pip"):
        needs(part, present=find_spec(part) is not None, reason="pip install -c constraints.txt -e '.[test]'")
    base = tmp_path_factory.mktemp("wheel")
    succeed([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", base / "dist"], ROOT)
    (wheel,) = (base / "dist").glob("*.whl")
    succeed([sys.executable, "-m", "venv", "--without-pip", base / "venv"], base)
    python = base / "venv" / "bin" / "python"
    install = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    succeed([sys.executable, "-m", "pip", "--python", python, *install, wheel], base)
    # Only folders: the editable install of this environment, a path file too, does not come along.
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site,) = (base / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(folders) + "\n")
    return python.parent


def project(files: Mapping[str, str], folder: Path) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    return folder


def test_the_package_is_that_of_the_wheel(programs: Path, tmp_path: Path) -> None:
    place = succeed([programs / "python", "-c", "import gym; print(gym.__file__)"], tmp_path)
    assert Path(place).is_relative_to(programs.parent)
    assert "usage: gym" in succeed([programs / "gym", "--help"], tmp_path)


def test_onboarding_runs_in_an_empty_folder(programs: Path, tmp_path: Path) -> None:
    table = succeed([programs / "python", "-m", "gym.run", "+experiment=onboarding"], tmp_path)
    assert "coverage       12 of 12 tasks, 12 of 12 attempts" in table
    (results,) = tmp_path.glob("results/onboarding/*")
    assert (results / "rollouts.jsonl").read_text().count("\n") == 12


def test_a_project_of_ones_own_lies_over_it(programs: Path, tmp_path: Path) -> None:
    folder = project(OWN_FILES, tmp_path)
    table = succeed([programs / "gym", "eval", "run", "+experiment=mine"], folder)
    assert "mean reward    0.5000" in table
    again = succeed([programs / "python", "-m", "gym.run", "+experiment=onboarding", "limit=1"], folder)
    assert "1 of 1 tasks" in again


def test_every_file_of_the_project_is_in_the_wheel(programs: Path) -> None:
    (site,) = (programs.parent / "lib").glob("python*/site-packages")
    tracked = subprocess.run(
        ["git", "ls-files", "gym", "conf", "experiments", "benchmarks", "resources_servers", "responses_api_agents"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    needs("git and its repository", present=bool(tracked.stdout), reason="run the tests in a clone")
    there = [name for name in tracked.stdout.splitlines() if (ROOT / name).exists()]
    names = [name if name.startswith("gym/") else f"gym/_project/{name}" for name in there]
    assert [name for name in names if not (site / name).exists()] == []
