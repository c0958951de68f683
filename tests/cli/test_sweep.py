"""`gym env sweep` and `gym env status` say whose sandboxes there are."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from gym.cli import state
from gym.sandbox.interface import Common, SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.sandbox.providers.local.record import Record
from tests.cli.commands import gym

PLAIN = {"isolation": "none", "allow_unisolated": True}


@pytest.fixture
async def provider(tmp_path: Path) -> LocalProvider:
    """Sandboxes where the command looks for them when its temporary directory is this one."""
    made = LocalProvider(
        LocalProviderConfig.model_validate({**PLAIN, "root": tmp_path / f"gym-sandboxes-{os.getuid()}"})
    )
    made.common = Common({"run": "results/x"})
    return made


async def test_sweep_shows_what_it_removes_and_what_is_in_use(tmp_path: Path, provider: LocalProvider) -> None:
    mine, left = [await provider.create(SandboxSpec(labels={"rollout": f"r{number}"})) for number in (1, 2)]
    folder = tmp_path / f"gym-sandboxes-{os.getuid()}" / left.id
    record = Record.load(folder)
    record.model_copy(update={"owner": record.owner.model_copy(update={"start_time": "1"})}).save(folder)
    run = gym("env", "sweep", cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    rows = {words[1]: words[2:5] + words[-1:] for line in run.stdout.splitlines() if (words := line.split())[1:]}
    assert rows[mine.id] == ["results/x", "r1", str(os.getpid()), "use"]
    assert rows[left.id] == ["results/x", "r2", str(os.getpid()), "removed"]
    assert not folder.exists()
    await provider.aclose()


async def test_a_configuration_says_where_to_sweep(tmp_path: Path) -> None:
    elsewhere = LocalProvider(LocalProviderConfig.model_validate({**PLAIN, "root": tmp_path / "elsewhere"}))
    sandbox = await elsewhere.create(SandboxSpec())
    folder = tmp_path / "elsewhere" / sandbox.id
    record = Record.load(folder)
    record.model_copy(update={"owner": record.owner.model_copy(update={"start_time": "1"})}).save(folder)
    env = {"TMPDIR": str(tmp_path)}
    assert sandbox.id not in gym("env", "sweep", cwd=tmp_path, env=env).stdout
    where = f"sandbox.root={tmp_path / 'elsewhere'}"
    (swept,) = json.loads(gym("env", "sweep", "--sandbox", "local", where, "--json", cwd=tmp_path, env=env).stdout)
    assert (swept["provider"], swept["removed"], [one["id"] for one in swept["found"]]) == ("local", 1, [sandbox.id])
    assert not folder.exists()
    await elsewhere.aclose()


def test_a_deployment_that_cannot_be_swept_is_told(tmp_path: Path) -> None:
    words = ("env", "sweep", "sandbox=docker", "sandbox.host=unix:///nowhere.sock")
    assert "unix:///nowhere.sock" in gym(*words, cwd=tmp_path, code=1).stdout
    unset = gym("env", "sweep", "sandbox=opensandbox", cwd=tmp_path, code=2, env={"OPENSANDBOX_API_KEY": "x"})
    assert "OPENSANDBOX_DOMAIN" in unset.stderr
    assert "sandbx" in gym("env", "sweep", "sandbx.root=/x", cwd=tmp_path, code=2).stderr


async def test_status_shows_the_sandboxes_of_the_servers(tmp_path: Path, provider: LocalProvider) -> None:
    sandbox = await provider.create(SandboxSpec(labels={"rollout": "r1"}))
    ticks = state.started_ticks(os.getpid())
    assert ticks is not None
    servers = state.Servers(os.getpid(), ticks, "now", "http://127.0.0.1:9", "token", {}, {}, "digest")
    (tmp_path / state.FILE).parent.mkdir()
    (tmp_path / state.FILE).write_text(json.dumps(asdict(servers)))
    env = {"TMPDIR": str(tmp_path)}
    (found,) = json.loads(gym("env", "status", "--json", cwd=tmp_path, env=env).stdout)["sandboxes"]
    assert (found["id"], found["labels"]) == (sandbox.id, {"run": "results/x", "rollout": "r1"})
    assert sandbox.id in gym("env", "status", cwd=tmp_path, env=env).stdout
    await provider.aclose()
