"""Workspace tasks: real sandboxes, a real shell, and verdicts that the agent cannot reach."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse, function_call
from gym.sandbox.providers.local.provider import LocalProvider
from gym.sandbox.providers.local.settings import LocalProviderConfig
from gym.sandbox.spec_config import SandboxConfig
from gym.servers.base import Call, ServerContext
from gym.servers.contract import EpisodeId, RunResponse, SeedSessionRequest, TaskId
from resources_servers.workspace_tasks.app import COMMAND_LIMIT_BYTES, WorkspaceTasks, WorkspaceTasksConfig
from tests.environment_servers.wiring import ScriptedModel, World, build, turn

PASSES_IF_DONE = "#!/bin/sh\n[ -e done.txt ] || exit 1\n"
Make = Callable[..., World]


@pytest.fixture(params=["auto", "none"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """Builds worlds over local sandboxes, isolated where this machine can, and plain."""
    config = LocalProviderConfig(isolation=request.param, allow_unisolated=True, root=tmp_path / "sandboxes")
    provider = LocalProvider(config)
    worlds: list[World] = []

    def made(policy: Any, **settings: Any) -> World:
        def resources(context: ServerContext) -> WorkspaceTasks:
            return WorkspaceTasks(WorkspaceTasksConfig(**settings), context)

        worlds.append(build(resources, policy, provider=provider))
        return worlds[-1]

    yield made
    for world in worlds:
        await world.stop()
    await provider.aclose()
    left = [entry.name for entry in (tmp_path / "sandboxes").glob("gym-*")]
    assert left == []


def shell(command: str, **arguments: Any) -> dict[str, Any]:
    return turn(function_call("shell", {"command": command, **arguments}, "c1"))


def task(test_script: str = PASSES_IF_DONE, **fields: Any) -> dict[str, Any]:
    return {"test_script": test_script, "files": {}, **fields}


def result_of(episode: RunResponse) -> dict[str, Any]:
    assert episode.result is not None, episode.failure
    return episode.result.model_dump()


def output_of(episode: RunResponse) -> str:
    response = result_of(episode)["response"]
    items: list[Item] = ResponsesResponse.model_validate(response).output
    return str(next(item["output"] for item in items if item["type"] == "function_call_output"))


async def test_the_test_script_decides(make: Make) -> None:
    world = make([shell("cat sub/name.txt && touch done.txt")])
    solved = await world.run(task(files={"sub/name.txt": "näme\n"}))
    assert (result_of(solved)["reward"], result_of(solved)["verifier_exit_code"]) == (1.0, 0)
    assert output_of(solved) == "exit code: 0\nnäme\n"

    untouched = await make([]).run(task("#!/bin/sh\necho nothing was done; [ -e done.txt ] || exit 1\n"))
    assert (result_of(untouched)["reward"], result_of(untouched)["verifier_output"]) == (0.0, "nothing was done")


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("echo out; echo err >&2; exit 3", "exit code: 3\nout\nerr\n"),
        ("if", "exit code: 2\n"),
        ("no-such-program", "exit code: 127\n"),
        ("printf 'a\\377b'", "exit code: 0\na\ufffdb"),
        ("cat", "exit code: 0\n"),
    ],
)
async def test_the_shell_answers_with_exit_code_and_output(make: Make, command: str, answer: str) -> None:
    assert output_of(await make([shell(command)]).run(task())).startswith(answer)


async def test_output_is_bounded_and_says_what_is_left_out(make: Make) -> None:
    world = make(
        [shell("echo first; head -c 100000 /dev/zero | tr '\\0' x; echo; echo last")], tool_output_limit_bytes=200
    )
    output = output_of(await world.run(task()))
    assert output.startswith("exit code: 0\nfirst\nxxx")
    assert output.endswith("xxx\nlast\n")
    assert "bytes left out" in output
    assert len(output) < 400


async def test_a_command_that_runs_out_of_time_is_told_to_the_model(make: Make) -> None:
    episode = await make([shell("echo begun; sleep 60", timeout_seconds=0.5)]).run(task())
    assert output_of(episode) == "timed out after 0.5 s\nbegun\n"
    assert result_of(episode)["reward"] == 0.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "x" * (COMMAND_LIMIT_BYTES + 1)},
        {"command": "echo \0"},
        {"command": 3},
        {},
        {"command": "ls", "timeout_seconds": 0},
    ],
)
async def test_commands_that_cannot_be_run_are_told_to_the_model(make: Make, arguments: dict[str, Any]) -> None:
    episode = await make([turn(function_call("shell", arguments, "c1"))]).run(task())
    assert "refused the call" in output_of(episode)
    assert result_of(episode)["ng_agent_observations"]["counters"]["tool_calls_invalid"] == 1


# Each tries to get the reward without the work.
CHEATS = {
    "a background process makes the file late": "(sleep 0.2; touch done.txt) >/dev/null 2>&1 &",
    "a session of its own makes the file late": "setsid sh -c 'sleep 0.2; touch done.txt' >/dev/null 2>&1 &",
    "a shell of the agent's own": "mkdir -p bin && printf '#!/bin/true\\n' > bin/sh; PATH=$PWD/bin:$PATH; export PATH",
    "a profile in the home folder": "for f in .profile .shrc; do echo 'exit 0' > $f; echo 'exit 0' > ~/$f; done",
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_what_the_agent_leaves_behind_does_not_pass_the_test(make: Make, cheat: str) -> None:
    episode = await make([shell(CHEATS[cheat])]).run(task("#!/bin/sh\nsleep 0.4; [ -e done.txt ] || exit 1\n"))
    assert result_of(episode)["reward"] == 0.0


async def test_modules_in_the_workspace_do_not_shadow_the_verifiers(make: Make) -> None:
    script = "#!/usr/bin/env python3\nimport json, os, sys\nsys.exit(0 if os.path.exists('done.txt') else 1)\n"
    planted = "for f in json sitecustomize usercustomize; do echo 'import os; os._exit(0)' > $f.py; done"
    assert result_of(await make([shell(planted)]).run(task(script)))["reward"] == 0.0


async def test_the_script_is_never_where_the_agent_looks(make: Make) -> None:
    seen = "find . /gym-verifier ../gym-verifier 2>/dev/null | grep -c -e test -e verifier"
    assert output_of(await make([shell(seen)]).run(task())) == "exit code: 1\n0\n"
    judged = await make([]).run(
        task('#!/bin/sh\n[ "$(ls -A)" = given.txt ] && [ $# = 0 ] || exit 1\n', files={"given.txt": ""})
    )
    assert result_of(judged)["reward"] == 1.0


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\necho broken >&2; exit 2\n", "exited with 2: broken"),
        ("#!/no/such/interpreter\n", "exited with 127"),
        ("#!/usr/bin/env no-such-program\n", "exited with 127"),
        ("#!/bin/sh\nkill -9 $$\n", "exited with 137"),
        ("#!/bin/sh\nsleep 60\n", "ran out of time"),
    ],
)
async def test_a_crashed_verifier_is_a_failure_and_no_reward(make: Make, script: str, said: str) -> None:
    world = make([shell("touch done.txt")], verifier_timeout_seconds=0.5)
    episode = await world.run(task(script))
    assert episode.result is None
    assert episode.failure is not None
    assert (episode.failure.failure_kind, episode.failure.stage) == ("verifier_crashed", "verification")
    assert said in episode.failure.failure_reason


async def test_a_tasks_own_bound_wins(make: Make) -> None:
    world = make([], verifier_timeout_seconds=600)
    episode = await world.run(task("#!/bin/sh\nsleep 60\n", timeout_seconds=0.3))
    assert episode.failure is not None
    assert "ran out of time" in episode.failure.failure_reason


async def test_a_workspace_that_is_too_large_earns_nothing(make: Make) -> None:
    episode = await make([shell("head -c 5000 /dev/zero > done.txt")], workspace_limit_bytes=4000).run(task())
    assert result_of(episode)["reward"] == 0.0
    assert "more than 4000 bytes" in result_of(episode)["verifier_output"]


async def test_links_out_of_the_workspace_are_not_followed(make: Make, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    episode = await make([shell(f"ln -s {secret} done.txt; ln -s / root")]).run(task())
    assert result_of(episode)["reward"] == 0.0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"test_script": "exit 0\n"}, "must begin with `#!`"),
        ({"test_script": "#!\n"}, "must begin with `#!`"),
        ({"files": {"../escape": ""}}, "must be a path below the work directory"),
        ({"files": {"/etc/passwd": ""}}, "must be a path below the work directory"),
        ({"files": {"": ""}}, "must be a path below the work directory"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
    ],
)
async def test_a_malformed_task_fails_before_a_sandbox_starts(make: Make, fields: dict[str, Any], said: str) -> None:
    episode = await make([]).run(task() | fields)
    assert episode.failure is not None
    assert (episode.failure.failure_kind, episode.failure.terminal) == ("malformed_task", True)
    assert said in episode.failure.failure_reason


async def test_a_sandbox_that_cannot_start_is_a_failure(make: Make, tmp_path: Path) -> None:
    world = make([])
    (tmp_path / "sandboxes").write_text("a file where the folder of all sandboxes belongs")
    episode = await world.run(task())
    (tmp_path / "sandboxes").unlink()
    assert episode.failure is not None
    assert (episode.failure.failure_kind, episode.failure.stage) == ("sandbox_start", "seed")


async def test_a_sandbox_that_dies_fails_the_episode_at_once(make: Make) -> None:
    class Killing(ScriptedModel):
        async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
            for session in world.resources.sessions.values() if self.requests else ():
                assert session.sandbox is not None
                await session.sandbox.stop()
            return await super().respond(request, call)

    world = make(lambda context: Killing([shell("true")] * 3, context))
    episode = await world.run(task())
    assert episode.failure is not None
    assert (episode.failure.failure_kind, episode.failure.stage) == ("sandbox_lost", "agent")
    assert len(world.requests) == 2


async def test_what_the_provider_refuses_is_a_fault_of_the_configuration(make: Make) -> None:
    episode = await make([], sandbox_config=SandboxConfig(image="some/image")).run(task())
    assert episode.failure is not None
    assert (episode.failure.failure_kind, episode.failure.stage) == ("configuration", "seed")


async def test_settings_reach_the_sandbox(make: Make) -> None:
    config = SandboxConfig(workdir="/srv/task", env={"COLOUR": "blue"})
    output = output_of(await make([shell("echo $COLOUR; pwd")], sandbox_config=config).run(task()))
    assert output.startswith("exit code: 0\nblue\n")
    assert output.endswith("/srv/task\n")


@pytest.mark.parametrize("lend", [True, False])
async def test_the_sandbox_is_lent_when_the_setting_says_so(make: Make, lend: bool) -> None:
    server = make([], lend_sandbox=lend).resources
    seed = SeedSessionRequest(
        resources_session_id="s1",
        episode_id=EpisodeId(rollout_id="r1"),
        task_id=TaskId(taskset="test", task_id="t1"),
        task_data=task(files={"a.txt": "content"}),
    )
    access = (await server.seed_session(seed, Call())).sandbox_access
    assert (access is not None) is lend
    if access is not None:
        assert access.connection.provider_config_ref == "sandbox"
        borrowed = await server.context.sandboxes("sandbox").connect(access.connection.descriptor)
        assert (await borrowed.exec("cat a.txt")).stdout == b"content"
        assert borrowed.workdir == access.workdir
        await borrowed.stop()


async def test_nothing_of_this_process_environment_reaches_a_command(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "POLICY_API_KEY", "EXAMPLE-0001")
    output = output_of(await make([shell("env")]).run(task("#!/bin/sh\nenv; exit 1\n")))
    assert "EXAMPLE-0001" not in output
