"""Everything that ships an adapter through the conformance suite: a new one fails here until it says what it needs.

Harnesses are the real programs, in sandboxes of their own, against a scripted model. Where the same base class answers
over HTTP too, one harness and one resources server do it for all; `test_conformance` does both with every base class.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gym.environment_servers.harbor.app import HarborConfig, HarborEnvironment
from gym.harbor.digest import task_digest
from gym.harbor.turns import TASK_DATA, TASK_STEP
from gym.harness.agent import HarnessAgent
from gym.harness.placing import mount
from gym.launch.in_process import Instance, launch
from gym.planning.reference import implementations
from gym.sandbox.interface import Common, SandboxProvider
from gym.servers.base import Server
from gym.testing.session_conformance import (
    check_agent_session_contract,
    check_environment_contract,
    check_resources_session_contract,
)
from gym.testing.subject import Subject, in_process, over_http
from responses_api_agents.nop_agent.app import NopAgent
from tests.contract.world import AGENT, MODEL, RESOURCES
from tests.harbor.folders import FIXTURES
from tests.harness.bench import needs_runtime
from tests.harness.fake_model import FakeModel
from tests.resources_servers.swebench_instance import IMAGE, instance
from tests.sandbox.conftest import bubblewrap, docker

ROOT = Path(__file__).resolve().parents[2]
OVER_HTTP = ("pi_agent", "mcqa")
WORDS = {"input": "do it"}
PLAIN = FIXTURES / "plain"
GRANTS: dict[str, dict[str, Any]] = {
    "mcp": {"kind": "mcp", "name": "tools", "connection": {"url": "http://127.0.0.1:9/mcp"}},
    "direct_http": {"kind": "direct_http", "name": "tools", "base_url": "http://127.0.0.1:9"},
}
SCORER = "def get_score_answer_fn(name):\n    return lambda answer, entry: float(answer == entry['answer'])\n"
"""Stands for the package of reasoning-gym, which has an environment of its own."""

Make = Callable[[Path], SandboxProvider]


@dataclass(frozen=True)
class Needs:
    """What an adapter is checked with."""

    sandboxes: Make = bubblewrap
    settings: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=lambda: WORDS)
    task: Callable[[], Mapping[str, Any]] = dict


def folder() -> dict[str, Any]:
    """A task folder, as its row names it."""
    return {"folder": str(PLAIN), "digest": task_digest(PLAIN)}


def example(name: str) -> dict[str, Any]:
    """The first example of a resources server."""
    return dict(json.loads((ROOT / "resources_servers" / name / "data" / "example.jsonl").read_text().splitlines()[0]))


OWN_SANDBOX = {"model_server": MODEL, "sandbox_provider": "sandbox", "sandbox_config": {"network": "gym_only"}}
HARNESS = Needs(settings=OWN_SANDBOX)
AGENTS = {
    "nop_agent": Needs(),
    "oracle_agent": Needs(
        docker,
        {"sandbox_provider": "sandbox"},
        {**WORDS, "metadata": {TASK_DATA: json.dumps(folder()), TASK_STEP: "0"}},
    ),
    "simple_agent": Needs(settings={"model_server": MODEL}),
}
"""Agents that are no harnesses."""
TASKS = {
    "example_session_state_mgmt": Needs(task=lambda: {"initial_count": 1, "expected_count": 1}),
    "human_eval": Needs(task=lambda: example("human_eval")),
    "mcqa": Needs(task=lambda: {"choices": ["yes", "no"], "answer": "A"}),
    "reasoning_gym": Needs(task=lambda: {"dataset": "sums", "entry": {"answer": "3"}}),
    "swebench_pro": Needs(docker, {"image_repository": IMAGE}, task=instance),
    "terminal_bench_2_1": Needs(docker, task=folder),
    "workspace_tasks": Needs(task=lambda: {"files": {"a.txt": "a"}, "test_script": "#!/bin/sh\nexit 0\n"}),
}


def shipped(server_type: Any) -> dict[str, type[Server[Any]]]:
    """What can be started."""
    everything = implementations(server_type).items()
    return {name: found for name, found in everything if not found.unavailable}


@pytest.fixture
def model() -> Any:
    with FakeModel() as fake:
        yield fake


@asynccontextmanager
async def started(
    name: str, found: Instance, make: Make, root: Path, model: FakeModel, *more: Instance
) -> AsyncIterator[Subject]:
    provider = make(root / "sandboxes")
    if issubclass(found.server_class, HarnessAgent):
        provider.common = Common(mounts=(mount(needs_runtime(found.server_class)),))
    async with launch([*more, found], sandboxes=lambda _: provider) as launched:
        launched.directory.remote[MODEL.name] = model.url
        if name in OVER_HTTP:
            async with over_http(launched.directory.url(found.name), launched.token) as subject:
                yield subject
        else:
            yield in_process(launched.directory.local[found.name])
    await provider.aclose()
    assert list((root / "sandboxes").glob("gym-*")) == []


@pytest.mark.parametrize("name", shipped("responses_api_agents"))
async def test_agents(name: str, model: FakeModel, tmp_path: Path) -> None:
    agent: Any = shipped("responses_api_agents")[name]
    with_ = HARNESS if issubclass(agent, HarnessAgent) else AGENTS[name]
    found = Instance(AGENT.name, AGENT.type, agent, agent.config_type.model_validate(with_.settings))
    async with started(name, found, with_.sandboxes, tmp_path, model) as subject:
        await check_agent_session_contract(
            subject,
            request=with_.request,
            continues=bool(agent.continuations),
            refuses=next((grant for kind, grant in GRANTS.items() if kind not in agent.transports), None),
        )


@pytest.mark.parametrize("name", shipped("resources_servers"))
async def test_resources_servers(name: str, model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reasoning_gym.py").write_text(SCORER)
    monkeypatch.syspath_prepend(tmp_path)
    server: Any = shipped("resources_servers")[name]
    with_ = TASKS[name]
    task = {key: value for key, value in with_.task().items() if key != "responses_create_params"}
    found = Instance(RESOURCES.name, RESOURCES.type, server, server.config_type.model_validate(with_.settings))
    async with started(name, found, with_.sandboxes, tmp_path, model) as subject:
        await check_resources_session_contract(subject, task_data=task, request=WORDS)


async def test_harbor(model: FakeModel, tmp_path: Path) -> None:
    nop = Instance(AGENT.name, AGENT.type, NopAgent, NopAgent.config_type())
    found = Instance("harbor", "environment_servers", HarborEnvironment, HarborConfig(agent_server=AGENT))

    def request(**task: Any) -> dict[str, Any]:
        task_input = {"responses_create_params": WORDS, "task_data": {**folder(), **task}}
        return {"task": {"task_id": {"taskset": "tasks", "task_id": "plain"}, "task_input": task_input}}

    async with started("harbor", found, docker, tmp_path, model, nop) as subject:
        await check_environment_contract(subject, request=request(), broken=request(folder="nowhere"))


def test_the_other_environment_servers_are_in_test_conformance() -> None:
    others = {"legacy_agent", "single_agent_turn", "single_agent_turn_legacy"}
    assert set(shipped("environment_servers")) == {"harbor"} | others
