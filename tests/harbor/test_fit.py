"""What a task asks for and cannot get is told by name, with file and line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gym.harbor.fit import AgentTraits, problems, traits, used_variables
from gym.harbor.task import load_task
from gym.sandbox.providers.docker import DockerProvider, DockerProviderConfig
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.sandbox.providers.opensandbox import OpenSandboxConfig, OpenSandboxProvider
from responses_api_agents.codex_agent.app import CodexAgent
from responses_api_agents.nop_agent.app import NopAgent
from responses_api_agents.oracle_agent.app import OracleAgent
from responses_api_agents.simple_agent.app import SimpleAgent
from tests.harbor.folders import FIXTURES, folder

HARNESS = AgentTraits("agent")
MCP = '[[environment.mcp_servers]]\nname = "s"\n'
APART = "[verifier]\nenvironment_mode = 'separate'\n"
STEPS = f'{APART}[[steps]]\nname = "one"\n[[steps]]\nname = "two"\nagent.network_mode = "no-network"'
STEP_FILES: dict[str, str | None] = {f"steps/{name}/instruction.md": "Do it.\n" for name in ("one", "two")}

UNFIT: list[tuple[str, dict[str, str | None], AgentTraits, str]] = [
    ("[environment]\ngpus = 1", {}, HARNESS, "task.toml:2  environment.gpus  docker has no GPUs"),
    ("[environment]\ngpu_types = ['H100']", {}, HARNESS, "environment.gpu_types  docker has no choice of GPUs"),
    ("[environment.tpu]\ntype = 'v6e'\ntopology = '2x4'", {}, HARNESS, "environment.tpu  docker has no TPUs"),
    (
        "[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.b']",
        {},
        HARNESS,
        "task.toml:2  agent.network_mode  docker cannot limit a network to some hosts",
    ),
    ("[agent]\nuser = 'a'", {}, replace(HARNESS, users=False), "agent.user  agent cannot work as a user"),
    (f"{MCP}transport = 'sse'\nurl = 'http://a/b'", {}, HARNESS, "mcp_servers.0.transport  agent does not speak sse"),
    (f"{MCP}transport = 'stdio'\ncommand = 'x'", {}, HARNESS, "agent cannot start the MCP server `s` (stdio)"),
    (f"{MCP}transport = 'http'\nurl = 'http://a/b'", {}, replace(HARNESS, mcp=False), "agent takes no MCP servers"),
    (
        f"{MCP}transport = 'http'\nurl = 'http://a/b'\nheaders = {{ X = '${{NOT_SET_HERE}}' }}",
        {},
        HARNESS,
        "environment.mcp_servers.0.headers.X  the variable NOT_SET_HERE is not set",
    ),
    (
        "[environment]\nskills_dir = '/s'",
        {},
        HARNESS,
        "environment.skills_dir  agent cannot be given a folder of skills",
    ),
    (
        "[environment.env]\nA = '${NOT_SET_HERE}'",
        {},
        HARNESS,
        "environment.env.A  the variable NOT_SET_HERE is not set",
    ),
    ("[verifier.env]\nA = '${NOT_SET_HERE}'", {}, HARNESS, "verifier.env.A  the variable NOT_SET_HERE is not set"),
    (
        "[solution.env]\nA = '${NOT_SET_HERE}'",
        {},
        traits("oracle", OracleAgent),
        "solution.env.A  the variable NOT_SET_HERE is not set",
    ),
    ("", {"solution/solve.sh": None}, traits("oracle", OracleAgent), "there is no solution, and oracle runs it"),
    ("", {"trajectory.json": "{}"}, HARNESS, "agent cannot go on from what trajectory.json says"),
    ("", {}, traits("simple", SimpleAgent), "simple does not work in a sandbox, where the task is"),
]
FIT: list[tuple[str, dict[str, str | None], AgentTraits]] = [
    ("", {}, HARNESS),
    ("[verifier]\nnetwork_mode = 'no-network'", {}, HARNESS),
    (STEPS, STEP_FILES, HARNESS),
    (f"{MCP}transport = 'stdio'\ncommand = 'x'", {}, traits("codex", CodexAgent)),
    (f"[agent]\nuser = 1\n[environment]\nskills_dir = '/s'\n{MCP}url = 'http://a/b'", {}, traits("nop", NopAgent)),
    ("[solution.env]\nA = '${NOT_SET_HERE}'", {"trajectory.json": "{}"}, traits("nop", NopAgent)),
    (
        f"{APART}network_mode = 'public'\n[environment]\nnetwork_mode = 'no-network'",
        {},
        HARNESS,
    ),
]


def told(path: Path, toml: str, files: dict[str, str | None], agent: AgentTraits) -> list[str]:
    """The problems with docker, which is not asked for anything."""
    task = load_task(folder(path / "task", toml, files))
    return [str(problem) for problem in problems(task, DockerProvider(DockerProviderConfig()), agent)]


@pytest.mark.parametrize(("toml", "files", "agent", "problem"), UNFIT)
def test_what_cannot_be_had_is_told(
    tmp_path: Path, toml: str, files: dict[str, str | None], agent: AgentTraits, problem: str
) -> None:
    (line,) = told(tmp_path, toml, files, agent)
    assert problem in line


@pytest.mark.parametrize(("toml", "files", "agent"), FIT)
def test_what_is_not_needed_is_not_asked_for(
    tmp_path: Path, toml: str, files: dict[str, str | None], agent: AgentTraits
) -> None:
    assert told(tmp_path, toml, files, agent) == []


def test_a_provider_without_images_or_networks_has_no_tasks(tmp_path: Path) -> None:
    task = load_task(folder(tmp_path / "task", "[environment]\nnetwork_mode = 'no-network'"))
    local = LocalProvider(LocalProviderConfig(isolation="none", allow_unisolated=True, root=tmp_path))
    (problem,) = problems(task, local, HARNESS)
    assert "task.toml:1  environment  a task needs an image, and local has none" in str(problem)
    elsewhere = OpenSandboxProvider(OpenSandboxConfig(domain="opensandbox.invalid"))
    build, network = map(str, problems(task, elsewhere, HARNESS))
    assert "environment  the image is built from a Dockerfile, which opensandbox cannot do" in build
    assert "environment.network_mode  opensandbox cannot do the network `gym_only`, which" in network


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (
            "[verifier]\nnetwork_mode = 'no-network'",
            "task.toml:2  verifier.network_mode  the verifier wants another network in the agent's sandbox",
        ),
        (STEPS, "task.toml:7  steps.1.agent.network_mode  the agent's network changes between steps"),
    ],
)
def test_a_provider_that_cannot_change_networks(tmp_path: Path, toml: str, problem: str) -> None:
    task = load_task(folder(tmp_path / "task", toml, STEP_FILES if "steps" in toml else {}))
    provider = OpenSandboxProvider(OpenSandboxConfig(domain="opensandbox.invalid", enforces_egress=True))
    assert any(problem in str(found) for found in problems(task, provider, traits("nop", NopAgent)))


def test_a_task_says_which_variables_it_asks_for() -> None:
    assert used_variables(load_task(FIXTURES / "variables")) == {"GYM_TESTS_GREETING", "GYM_TESTS_SUFFIX"}
