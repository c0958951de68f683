"""Runtime bundles: installed once, whole or not at all."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gym.errors import UserError
from gym.harness import bundles
from gym.harness.recipes import Npm, Pip, Recipe
from responses_api_agents.pi_agent.app import PiAgent, PiAgentConfig
from tests.conftest import needs
from tests.harness.installing import TOOL, installs

__all__ = ["installs"]
PROJECT = Path(__file__).resolve().parents[2]


def test_it_is_installed_once(installs: Path) -> None:
    told: list[str] = []
    bundle = bundles.prepare(TOOL, lambda _recipe, what: told.append(what))
    assert bundles.prepare(TOOL) == bundle == bundles.installed(TOOL)
    assert installs.read_text() == "installed\n"
    assert told[0] == "installing with npm"
    assert bundle.path.parent == bundles.cache()
    assert bundle.packages == {"@scope/tool": "1.2.3"}
    assert bundle.command() == [f"{bundle.path}/bin/tool", "serve"]
    assert bundle.command("/gym/x") == ["/gym/x/bin/tool", "serve"]
    assert not (bundle.path / "node_modules/@scope/tool/notes.md").exists()
    assert json.loads((bundle.path / bundles.MANIFEST).read_text())["version"] == "1.2.3"


def test_it_runs_wherever_it_is_put(installs: Path, tmp_path: Path) -> None:
    bundle = bundles.prepare(TOOL)
    copy = shutil.copytree(bundle.path, tmp_path / "elsewhere", symlinks=True)
    done = subprocess.run(bundle.command(str(copy)), capture_output=True, text=True, check=True)
    assert done.stdout == "tool 1.2.3\n"


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("INSTALL_FAILS", "1", "npm error 404 no such package"),
        ("INSTALL_OTHER", "0.0.1", "npm installed @scope/tool 0.0.1 instead of the pinned 1.2.3"),
        ("SAYS", "tool 0.9", "the program says `tool 0.9` when it is asked for its version, not 1.2.3"),
        ("PATH", "/nowhere", "the program `npm` is not installed"),
    ],
)
def test_what_goes_wrong_leaves_nothing(
    installs: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError) as failed:
        bundles.prepare(TOOL)
    assert told in str(failed.value)
    assert "gym env prefetch" in failed.value.problems[0].fix
    assert [path.name for path in bundles.cache().iterdir()] == [f".{TOOL.key}.lock"]


@pytest.mark.parametrize("manifest", ['{"x', "[]", '{"size_bytes": 1}', None])
def test_one_that_is_damaged_is_installed_again(installs: Path, manifest: str | None) -> None:
    path = bundles.prepare(TOOL).path / bundles.MANIFEST
    path.unlink() if manifest is None else path.write_text(manifest)
    assert bundles.installed(TOOL) is None
    assert bundles.prepare(TOOL) == bundles.installed(TOOL)
    assert installs.read_text() == "installed\n" * 2


def test_a_long_installation_says_that_it_goes_on(installs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "PROGRESS_SECONDS", 0.001)
    told: list[str] = []
    bundles.prepare(TOOL, lambda _recipe, what: told.append(what))
    assert "installing with npm, 0 s so far" in told


def test_what_a_killed_builder_left_is_removed(installs: Path) -> None:
    left = bundles.cache() / f".{TOOL.key}.abc.tmp"
    left.mkdir(parents=True)
    bundles.prepare(TOOL)
    assert not left.exists()


async def test_builders_wait_for_each_other(installs: Path) -> None:
    code = (
        "from gym.harness import bundles; from tests.harness.installing import TOOL; print(bundles.prepare(TOOL).path)"
    )
    pipe = asyncio.subprocess.PIPE
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=PROJECT, stdout=pipe) for _ in "123"
    ]
    paths = {(await process.communicate())[0] for process in started}
    assert len(paths) == 1
    assert installs.read_text() == "installed\n"


def test_the_key_is_the_content_of_the_recipe() -> None:
    assert replace(TOOL).key == TOOL.key
    others = [
        replace(TOOL, version="1.2.4"),
        replace(TOOL, parts=(Npm(("@scope/tool@1.2.4",)),)),
        replace(TOOL, links=()),
    ]
    assert len({TOOL.key, *(recipe.key for recipe in others)}) == 4


def test_prefetch_installs_each_runtime_once_and_tells_all_problems(
    installs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"type": "responses_api_models", "name": "m"}
    instances = [
        SimpleNamespace(
            name=name,
            type="responses_api_agents",
            server_class=PiAgent,
            config=PiAgentConfig.model_validate({"model_server": model}),
        )
        for name in ("a", "b")
    ]
    instances.append(SimpleNamespace(name="c", type="responses_api_models", server_class=object, config=None))
    recipes = bundles.recipes_of(instances)
    assert [(recipe.name, names) for recipe, names in recipes.items()] == [("pi", ["a", "b"])]
    monkeypatch.setenv("INSTALL_FAILS", "1")
    with pytest.raises(UserError, match="the runtime pi"):
        bundles.prefetch(instances)
    (mount,) = bundles.mounts(instances)
    assert (mount.source.parent, mount.target) == (bundles.cache(), f"/gym/{mount.source.name}")


def test_a_python_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYM_CACHE", str(tmp_path))
    asking = ("-c", "import importlib.metadata as m; print(m.version('iniconfig'))")
    recipe = Recipe("demo", "2.0.0", (Pip(("iniconfig==2.0.0",)),), command=("bin/python",), version_arguments=asking)
    try:
        bundle = bundles.prepare(recipe)
    except UserError as error:
        needs("the Python index", present=False, reason=str(error))
        raise
    assert bundle.packages == {"iniconfig": "2.0.0"}
    code = "import os, ssl, sqlite3, ctypes; print(os.environ.get('LD_LIBRARY_PATH'), os.environ.get('GYM_OUTER'))"
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/outer"}
    done = subprocess.run([*bundle.command(), "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("/outer None\n", "")
