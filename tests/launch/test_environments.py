"""Virtual environments for implementations: built once, shared by content, and servers that run in them."""

from __future__ import annotations

import importlib
import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.launch import environments
from gym.launch.hosting import Apart, Place, hosted
from gym.launch.in_process import Instance
from gym.servers.base import ServerConfig
from tests.launch.wheels import make_wheel
from tests.servers.parts import no_sandboxes

APP = """
import sys
from typing import Any

from gym.servers.base import Call, Server, ServerConfig, route
from tests.servers.parts import Said


class Thing(Server[ServerConfig]):
    @route("/tell")
    async def tell(self, body: Said, call: Call) -> Any:
        import gym_test_thing, pydantic
        return [gym_test_thing.VERSION, sys.prefix, pydantic.VERSION]
"""
REQUIREMENTS = "--no-index\n--find-links wheels\ngym-test-thing=={}\npydantic\n"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Makes an implementation with the wheel that it needs; gives its requirements file."""

    def make(name: str, version: str = "1.0", requirements: str = REQUIREMENTS) -> Path:
        folder = tmp_path / "project" / "gym_test_servers" / name
        make_wheel(folder / "wheels", "gym_test_thing", version)
        (folder / "app.py").write_text(APP)
        (folder / "requirements.txt").write_text(requirements.format(version))
        return folder / "requirements.txt"

    return make


def test_the_name_says_what_is_in_it(write, tmp_path: Path) -> None:
    one, same, other = write("one"), write("one"), write("other", "2.0")
    keys = [environments.Wanted.by(file).key for file in (one, same, other)]
    assert keys[0] == keys[1] != keys[2]
    plain = [tmp_path / name / "requirements.txt" for name in ("a", "b")]
    for file in plain:
        file.parent.mkdir()
        file.write_text(f"# {file}\nno-such-distribution-of-ours\n")
    assert len({environments.Wanted.by(file).key for file in plain}) == 1
    plain[0].write_text("no-such-distribution-of-ours\n-c bounds.txt\n")
    names = set()
    for bounds in ("x==1", "x==2"):
        (plain[0].parent / "bounds.txt").write_text(bounds)
        names.add(environments.Wanted.by(plain[0]).key)
    assert len(names) == 2


async def test_a_server_runs_where_its_requirements_are_and_the_rest_is_taken_from_here(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("thing", "1.5")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    thing = importlib.import_module("gym_test_servers.thing.app").Thing
    told: list[str] = []
    place = Place(tell=lambda event: told.append(event.text), logs=tmp_path / "logs")
    item = Apart(Instance("thing", "resources_servers", thing, ServerConfig()), {}, file)
    async with hosted([], [item], sandboxes=no_sandboxes, place=place) as running:
        client = running.launched.client
        asked = client.post_json(f"{running.url('thing')}/tell", {"text": ""}, cookies={}, headers=client.auth)
        version, prefix, pydantic_version = (await asked)[0]
    import pydantic

    assert (version, pydantic_version) == ("1.5", pydantic.VERSION)
    assert Path(prefix).parent == environments.cache()
    assert told[0] == f"thing: building a virtual environment for {file}, once"
    said = json.loads((Path(prefix) / environments.COMPLETE).read_text())
    assert said["packages_from"]


def test_builders_of_one_environment_wait_for_each_other(write) -> None:
    file = write("thing")
    told: list[str] = []
    threads = [threading.Thread(target=environments.prepare, args=(file, told.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(text.startswith("building") for text in told) == 1
    assert environments.installed(file) is not None


def test_what_a_killed_builder_left_is_built_again(write) -> None:
    file = write("thing")
    half = environments.cache() / environments.Wanted.by(file).key
    (half / "bin").mkdir(parents=True)
    (half / "bin" / "python").write_text("no program")
    assert environments.installed(file) is None
    done = subprocess.run([environments.prepare(file), "-c", "import gym_test_thing, gym.launch.nursery"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("requirements", ["--no-index\nno-such-distribution-of-ours\n", "--no-index\npydantic>=99\n"])
def test_what_cannot_be_installed_is_told_in_the_installers_words(write, requirements: str) -> None:
    file = write("thing", requirements=requirements)
    told: list[str] = []
    with pytest.raises(UserError) as caught:
        environments.prepare(file, told.append)
    (problem,) = caught.value.problems
    assert problem.where == str(file)
    assert "No matching distribution found for" in problem.what or "no version" in problem.what
    assert "do not go with the packages that are here" in told[1]
    assert environments.installed(file) is None


def test_a_missing_include_is_told(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r nowhere.txt\n")
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        environments.prepare(tmp_path / "requirements.txt")


def test_the_package_itself_and_all_that_it_needs_are_known() -> None:
    here = [item.partition("==")[0].lower() for item in environments.needed_here(environments.own_requirements())]
    assert len(here) == len(set(here))
    assert {"pydantic", "pydantic_core", "starlette", "omegaconf", "aiohttp"} <= set(here)
