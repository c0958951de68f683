"""What a run tells when its sandboxes cannot be removed at its end: the report as ever, and that they are left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym.launch.closing import close_all
from gym.sandbox.interface import SandboxProvider, SandboxSpec
from tests.cli.commands import gym
from tests.sandbox.conftest import plain

DEAD = """
from pathlib import Path

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox.providers.local import LocalProvider


class DeadProvider(LocalProvider):
    name = "dead"

    async def aclose(self):
        await super().aclose()
        with Path("closed").open("a") as file:
            file.write("x")
        raise EpisodeFailure("cleanup_failed", "sandbox gym-1: its daemon\\ndoes not answer")


class UnreadyProvider(DeadProvider):
    async def prepare(self, images, on_progress=None):
        raise UserError("its daemon has no room for images")
"""
SET = ("sandbox._target_=dead.DeadProvider", "sandbox.isolation=none", "sandbox.allow_unisolated=true")
LEFT = (
    "sandboxes of `sandbox` may be left behind (`gym env sweep` with the same configuration removes them): "
    "sandbox gym-1: its daemon does not answer"
)


async def test_each_is_closed_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    class Broken(SandboxProvider):
        async def aclose(self) -> None:
            raise RuntimeError("no such state")

    Broken.__abstractmethods__ = frozenset()
    broken: Any = Broken
    fine = plain(tmp_path)
    sandbox = await fine.create(SandboxSpec())
    providers: Mapping[str, Any] = {"first": broken(), "fine": fine, "last": broken()}
    told = await close_all(providers)
    assert [(event.kind, event.name) for event in told] == [("left", "first"), ("left", "last")]
    assert told[0].text.endswith("RuntimeError: no such state")
    assert not await sandbox.alive()


def test_a_run_reports_as_ever_and_tells_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "dead.py").write_text(DEAD)
    words = ("eval", "run", "+experiment=onboarding", "limit=6", "output=out", *SET)
    run = gym(*words, cwd=tmp_path, code=1)
    assert run.stderr.splitlines()[-1] == LEFT
    assert "6 of 6 attempts" in run.stdout
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["coverage"]["attempts"]["valid"] == 6
    assert (tmp_path / "closed").read_text() == "x"


def test_a_run_that_cannot_start_tells_why_and_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "dead.py").write_text(DEAD)
    words = ("sandbox._target_=dead.UnreadyProvider", *SET[1:])
    run = gym("eval", "run", "+experiment=onboarding", "output=out", *words, cwd=tmp_path, code=2)
    assert run.stderr.splitlines()[-2:] == [LEFT, "its daemon has no room for images"]
