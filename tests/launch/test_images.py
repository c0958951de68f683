"""The images of a run: from settings and tasks, pulled before anything starts, from a real registry."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym.composition.compose import compose
from gym.errors import UserError
from gym.launch import images
from gym.launch.supervised import Event
from gym.planning.plan import Plan, plan
from gym.planning.resolve import resolve
from tests.cli.commands import COMMAND, environment, gym
from tests.planning.test_plan import COUNTER
from tests.sandbox.conftest import IMAGE, docker
from tests.sandbox.docker_tools import ask
from tests.sandbox.registry import Registry

SERVER = """
from pydantic import Field

from gym.sandbox.spec_config import SandboxConfig
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, TaskData


class Task(TaskData):
    image: str


class Config(ResourcesServerConfig):
    sandbox_provider: str = Field("sandbox", description="Block.")
    sandbox_config: SandboxConfig = Field(default=SandboxConfig(), description="Sandbox.")


class Imaged(ResourcesServer[Config, Task]):
    config_type = Config
    task_type = Task

    @classmethod
    def task_images(cls, task, config):
        return [task.image]

    async def verify(self, session, request):
        raise NotImplementedError
"""
BENCH = """
config_paths: [conf/sandbox/docker.yaml]
benchmark:
  resources_servers:
    imaged:
      _target_: resources_servers.imaged.app.Imaged
      sandbox_config:
        image: IMAGE
      datasets:
      - {name: mine, type: benchmark, taskset: mine, jsonl_fpath: rows.jsonl}
"""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    docker(tmp_path)
    with Registry().running() as made:
        yield made
    ours = [tag for image in ask(lambda api: api.images()) for tag in image["RepoTags"] or [] if made.address in tag]
    ask(lambda api: [api.remove_image(tag) for tag in ours])


def planned(project: Any, image: str) -> Plan:
    files = {"resources_servers/imaged/app.py": SERVER, "bench.yaml": BENCH.replace("IMAGE", image)}
    project({**COUNTER, **files})
    return plan(resolve(compose([], ["run.yaml"])))


def row(number: int, image: str) -> dict[str, Any]:
    task = {"responses_create_params": {"input": "hi"}, "image": image}
    return {"task_id": {"taskset": "mine", "task_id": f"t{number}"}, "task_input": task}


async def test_images_of_settings_and_tasks_are_had_before_the_run(project, registry: Registry) -> None:
    named, of_tasks = registry.add("gym-test/named", "1"), registry.add("gym-test/of-tasks", "1", size=5_000_000)
    made = planned(project, named)
    told: list[Event] = []
    digests = await images.prepare(made, told.append, [row(1, of_tasks), row(2, of_tasks), row(3, named)])
    assert set(digests) == {named, of_tasks}
    assert all("@sha256:" in digest for digest in digests.values())
    notes = [event.text for event in told if event.kind == "note"]
    assert sorted(notes)[:2] == [f"pulling the image {name}" for name in sorted(digests)]
    assert all(text.startswith("the image ") for text in sorted(notes)[2:])
    assert (told[-1].kind, told[-1].text) == ("progress", "")
    await made.providers["sandbox"].aclose()


async def test_what_cannot_be_had_is_told_where_it_is_named(project, registry: Registry) -> None:
    made = planned(project, f"{registry.address}/gym-test/missing:1")
    with pytest.raises(UserError) as caught:
        await images.prepare(made, lambda _: None, [row(1, "127.0.0.1:1/gym-test/x")])
    of_setting, of_task = caught.value.problems
    assert of_setting.where.startswith("bench.yaml:")
    assert of_setting.key == "benchmark.resources_servers.imaged.sandbox_config.image"
    assert "its registry does not have it" in of_setting.what
    assert (of_task.key, of_task.where) == ("image", "")
    assert "connection refused" in of_task.what


def test_prefetch_pulls_them(project, registry: Registry) -> None:
    name = registry.add("gym-test/prefetched", "1")
    planned(project, name)
    run = gym("env", "prefetch", "--config", "run.yaml", cwd=Path.cwd())
    assert f"pulling the image {name}" in run.stderr
    (line,) = [line for line in run.stdout.splitlines() if f" {name} " in line]
    assert line.split()[2:4] == ["ok", ask(lambda api: api.inspect_image(name))["RepoDigests"][0]]
    missing = gym("env", "prefetch", "--config", "run.yaml", "sandbox.pull=never",
                  "benchmark.resources_servers.imaged.sandbox_config.image=x", cwd=Path.cwd(), code=1)  # fmt: skip
    assert "pull is `never`" in missing.stdout


def test_a_run_says_which_image_it_had_and_does_not_start_without_it(tmp_path: Path) -> None:
    docker(tmp_path)
    words = ("eval", "run", "+experiment=onboarding", "sandbox=docker", "limit=1")
    gym(*words, "output=out", cwd=tmp_path)
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()]
    (segment,) = json.loads((tmp_path / "out" / "provenance.json").read_text())["segments"]
    assert row["image_digest"].startswith("sha256:")
    assert segment["images"] == {IMAGE: row["image_digest"]}
    process = subprocess.Popen(
        [*COMMAND, "env", "start", *words[2:]], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline()
        gym(*words, "--no-serve", "output=served", cwd=tmp_path)
        gym("env", "stop", cwd=tmp_path)
    (served,) = json.loads((tmp_path / "served" / "provenance.json").read_text())["segments"]
    assert served["images"] == segment["images"]
    refused = gym(*words, "output=other", "sandbox.default_image=127.0.0.1:1/x", cwd=tmp_path, code=2)
    assert "the image `127.0.0.1:1/x` is not here, and its registry cannot be reached" in refused.stderr
    assert not (tmp_path / "other" / "rollouts.jsonl").read_text()
