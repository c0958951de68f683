"""Episodes of all fixtures: their own solution earns everything, doing nothing earns nothing, and what fails fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harbor import images
from gym.harbor.task import load_task
from gym.sandbox.interface import SandboxProvider
from gym.servers.agent import AgentServer, AgentSession
from gym.servers.contract import Failure, RunResponse
from responses_api_agents.nop_agent.app import NopAgent
from responses_api_agents.oracle_agent.app import OracleAgent
from tests.harbor.folders import FIXTURES, folder
from tests.harbor.trials import World, build
from tests.sandbox.conftest import docker

AT_ONCE = 4
UNSOUND = {"allowlist": "configuration", "broken-verifier": "reward_missing"}
BASE = '[environment]\ndocker_image = "gym-base"\nnetwork_mode = "no-network"\n'
CTRF = "no-such-pytest --ctrf /logs/verifier/ctrf.json; echo 0 > /logs/verifier/reward.txt"

NO_IMAGE = '[environment]\ndocker_image = "gym.invalid/none"'
FAILING: dict[str, tuple[str, dict[str, str | None], str, str]] = {
    "no reward": (BASE, {"tests/test.sh": "exit 1"}, "reward_missing", "exit code 1"),
    "an empty reward": (BASE, {"tests/test.sh": "touch /logs/verifier/reward.json"}, "reward_empty", "reward.json"),
    "a text": (BASE, {"tests/test.sh": "echo well > /logs/verifier/reward.txt"}, "reward_unreadable", "'well'"),
    "a link": (
        BASE,
        {"tests/test.sh": "echo 1 > /r; ln -s /r /logs/verifier/reward.txt"},
        "reward_unreadable",
        "a link",
    ),
    "a folder": (BASE, {"tests/test.sh": "mkdir -p /logs/verifier/reward.json"}, "reward_unreadable", "a folder"),
    "a long artifact": (
        f'artifacts = ["/app"]\n{BASE}workdir = "/app"\n[verifier]\nenvironment_mode = "separate"',
        {"solution/solve.sh": "truncate -s 300M /app/long"},
        "artifact_lost",
        "/app was not kept: more than 268435456 bytes",
    ),
    "no tools": (BASE, {"tests/test.sh": CTRF}, "verifier_tools_missing", "its network is no-network"),
    "no time": (
        f"{BASE}[verifier]\ntimeout_sec = 0.5",
        {"tests/test.sh": "echo begun; sleep 60"},
        "verifier_timeout",
        "0.5 s; its last line: begun",
    ),
    "a broken build": (
        '[task]\nname = "t/broken"',
        {"environment/Dockerfile": "FROM gym-base\nRUN echo the reason; exit 7\n"},
        "image_build",
        "the reason",
    ),
    "no such image": (NO_IMAGE, {}, "image_pull", "gym.invalid/none"),
    "no such user": (f'{BASE}[agent]\nuser = "nobody-at-all"', {}, "configuration", "nobody-at-all"),
    "an ill container": (
        f'{BASE}[environment.healthcheck]\ncommand = "echo it is ill; exit 1"\ninterval_sec = 0.1\nretries = 2',
        {},
        "healthcheck_failed",
        "failed 2 times in a row: echo it is ill; exit 1: exit code 1, it is ill",
    ),
    "a broken setup": (
        f'{BASE}[[steps]]\nname = "one"',
        {"steps/one/instruction.md": "Do it.", "steps/one/workdir/setup.sh": "echo no luck; exit 3"},
        "task_setup",
        "exit code 3, no luck",
    ),
}


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """Containers, and the images that were built for them."""
    made = docker(tmp_path)
    yield made
    await made.aclose()


async def all_of(world: World, folders: list[Path]) -> dict[str, RunResponse]:
    """An episode of each, some at a time."""
    few = asyncio.Semaphore(AT_ONCE)

    async def one(path: Path) -> RunResponse:
        async with few:
            return await world.episode(path)

    told = await asyncio.gather(*(one(path) for path in folders))
    await world.stop()
    return {path.name: outcome for path, outcome in zip(folders, told, strict=True)}


def outcome(told: RunResponse) -> Any:
    """The reward, or the kind of the failure."""
    return told.failure.failure_kind if told.failure else told.result and told.result.reward


@pytest.mark.parametrize(("agent", "reward"), [(OracleAgent, 1.0), (NopAgent, 0.0)])
async def test_every_fixture_proves_itself(
    provider: SandboxProvider, tmp_path: Path, agent: type[AgentServer[Any]], reward: float
) -> None:
    folders = sorted(FIXTURES.iterdir())
    found = await all_of(build(agent, provider, tmp_path), folders)
    assert {name: outcome(told) for name, told in found.items()} == {
        path.name: UNSOUND.get(path.name, reward) for path in folders
    }


async def test_an_image_that_cannot_be_pulled_stops_no_other_task(
    provider: SandboxProvider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = load_task(folder(tmp_path / "bad", NO_IMAGE)), load_task(folder(tmp_path / "good", BASE))
    assert list(await images.prepare(provider, [bad, good], 1, lambda _: None)) == ["gym-base"]
    assert f"{tmp_path}/bad/task.toml:2  environment.docker_image  the image `gym.invalid/none`" in caplog.text
    with pytest.raises(UserError, match=r"bad/task\.toml:2"):
        await images.prepare(provider, [bad], 1, lambda _: None)


async def test_failures_have_kinds_of_their_own(provider: SandboxProvider, tmp_path: Path) -> None:
    folders = [folder(tmp_path / name.replace(" ", "-"), toml, files) for name, (toml, files, _, _) in FAILING.items()]
    found = await all_of(build(OracleAgent, provider, tmp_path / "run"), folders)
    failures = dict(zip(FAILING, (told.failure for told in found.values()), strict=True))
    assert {name: failure.failure_kind for name, failure in failures.items() if failure} == {
        name: kind for name, (_, _, kind, _) in FAILING.items()
    }
    for name, (*_, words) in FAILING.items():
        failure = failures[name]
        assert isinstance(failure, Failure)
        assert words in failure.failure_reason


async def test_a_row_tells_what_happened_and_the_files_are_kept(provider: SandboxProvider, tmp_path: Path) -> None:
    world = build(OracleAgent, provider, tmp_path)
    row = (await world.result(FIXTURES / "artifacts")).model_extra or {}
    kept = world.kept(FIXTURES / "artifacts")
    assert row["rewards"] == {"reward": 1.0}
    assert row["image_digest"].startswith("sha256:")
    files = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    assert files == [
        "agent/oracle.txt",
        "artifacts/app/out/a.txt",
        "artifacts/cache/keep.txt",
        "artifacts/logs/artifacts/extra.txt",
        "artifacts/manifest.json",
        "artifacts/notes/final.txt",
        "verifier/reward.txt",
        "verifier/test-stdout.txt",
    ]
    manifest = json.loads((kept / "artifacts/manifest.json").read_text())
    assert [(entry["source"], entry["type"], entry["status"]) for entry in manifest] == [
        ("/logs/artifacts", "directory", "ok"),
        ("/app/out", "directory", "ok"),
        ("/app/notes.txt", "file", "ok"),
        ("/app/cache", "directory", "ok"),
        ("/app/never-made", "directory", "failed"),
    ]
    steps = (await world.result(FIXTURES / "steps")).model_extra or {}
    assert [(step["name"], step["rewards"]) for step in steps["step_results"]] == [
        ("open", {"reward": 1.0}),
        ("deposit", {"reward": 1.0, "tidy": 1.0}),
        ("close", {"reward": 1.0}),
    ]
    assert (world.kept(FIXTURES / "steps") / "steps/deposit/artifacts/receipts/deposit").is_file()
    await world.stop()


async def test_an_image_is_used_as_it_is(provider: SandboxProvider, tmp_path: Path) -> None:
    """Its entrypoint runs, as whose user it says, from where it says; its own links to the tests stay."""
    image = """
        FROM gym-base
        RUN mkdir -p /srv/app && ln -s /tests /srv/app/tests && chown -R agent /srv/app
        COPY entry /entry
        WORKDIR /srv/app
        USER agent
        ENTRYPOINT ["/bin/sh", "/entry"]
    """
    checks = '[ -e tests/test.sh ] && [ "$(cat started)" = "agent sh -c sleep infinity" ] && [ "$PWD" = /srv/app ]'
    task = folder(
        tmp_path / "task",
        "[environment]\ncpus = 64\nnetwork_mode = 'no-network'",
        {
            "environment/Dockerfile": dedent(image),
            "environment/entry": 'echo "$(id -un) $*" > started\nexec "$@"\n',
            "tests/test.sh": f"if {checks}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt",
        },
    )
    world = build(NopAgent, provider, tmp_path)
    result = await world.result(task)
    assert (result.reward, (result.model_extra or {})["verifier_notes"]) == (1.0, [])
    await world.stop()


async def test_each_phase_has_its_network(provider: SandboxProvider, tmp_path: Path) -> None:
    """Also where all of them share a sandbox; a service goes on."""
    look = "cd /sys/class/net && ls -d [!l]* 2>/dev/null | wc -l"
    serve = (
        "setsid python3 -u -m http.server 8000 >/tmp/log 2>&1 </dev/null & until [ -s /tmp/log ]; do sleep 0.1; done"
    )
    checks = (
        f'[ "$(cat /tmp/agent)" = "$AGENT" ] && [ "$({look})" = "$VERIFIER" ] && grep -qs python3 /proc/[0-9]*/comm'
    )
    steps = {"one": ("no-network", "public"), "two": ("public", "no-network")}
    numbers = {"public": 1, "no-network": 0}
    toml, files = '[environment]\ndocker_image = "gym-base"\n', dict[str, str | None]()
    for name, (agent, verifier) in steps.items():
        toml += f"""
            [[steps]]
            name = "{name}"
            agent.network_mode = "{agent}"
            verifier.network_mode = "{verifier}"
            verifier.env = {{ AGENT = "{numbers[agent]}", VERIFIER = "{numbers[verifier]}" }}
        """
        files[f"steps/{name}/instruction.md"] = "Do it."
    files["solution/solve.sh"] = f"{serve}\n({look}) > /tmp/agent"
    files["tests/test.sh"] = f"if {checks}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
    world = build(OracleAgent, provider, tmp_path)
    result = await world.result(folder(tmp_path / "task", dedent(toml), files))
    assert [step["reward"] for step in (result.model_extra or {})["step_results"]] == [1.0, 1.0]
    await world.stop()


async def test_secrets_are_masked_in_what_is_kept(
    provider: SandboxProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "the-key-of-the-judge")
    script = 'echo "asking with $KEY"; echo "$KEY" > /logs/verifier/asked; echo 1 > /logs/verifier/reward.txt'
    task = folder(
        tmp_path / "judged",
        f'{BASE}[verifier.env]\nKEY = "${{JUDGE_API_KEY}}"',
        {"tests/test.sh": script},
    )
    world = build(NopAgent, provider, tmp_path)
    result = await world.result(task)
    assert (result.reward, (result.model_extra or {})["verifier_output"]) == (1.0, "asking with ***")
    assert (world.kept(task) / "verifier/asked").read_text() == "***\n"
    await world.stop()


async def test_what_runs_out_of_time_or_says_too_much_is_graded(provider: SandboxProvider, tmp_path: Path) -> None:
    script = "head -c 80000000 /dev/zero; echo; echo said; echo 1 > /logs/verifier/reward.txt"
    files = {"tests/test.sh": script, "solution/solve.sh": "sleep 60"}
    task = folder(tmp_path / "task", f"{BASE}[agent]\ntimeout_sec = 2", files)
    world = build(OracleAgent, provider, tmp_path)
    result = await world.result(task)
    assert result.reward == 1.0
    assert (result.model_extra or {})["verifier_output"].endswith("\nsaid")
    await world.stop()


async def test_a_changed_folder_and_what_cannot_be_had_are_refused(provider: SandboxProvider, tmp_path: Path) -> None:
    task = folder(tmp_path / "task", BASE)
    world = build(OracleAgent, provider, tmp_path)
    changed = await world.episode(task, digest="sha256:" + "0" * 64)
    assert changed.failure is not None
    assert (changed.failure.failure_kind, changed.failure.terminal) == ("malformed_task", True)
    await world.stop()


class Returning(OracleAgent):
    """Comes back in the next step with what it was lent in the one before."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lent: list[Any] = []
        self.found: list[str] = []

    async def open(self, session: AgentSession) -> None:
        """As its base, after a try with what it has kept."""
        access = session.request.sandbox_access
        assert access is not None
        for kept in self.lent:
            try:
                await self.context.sandboxes("sandbox").connect(kept)
                self.found.append("works")
            except EpisodeFailure as failure:
                self.found.append(failure.kind)
        self.lent.append(access.connection.descriptor)
        await super().open(session)


async def test_each_step_lends_anew_and_services_go_on(provider: SandboxProvider, tmp_path: Path) -> None:
    beat = """#!/bin/sh
        setsid python3 -c 'if True:
            import pathlib, socket, time
            port = socket.create_server(("127.0.0.1", 0))
            while True:
                pathlib.Path("/app/beat").write_text(str(time.time()))
                time.sleep(0.02)' >/dev/null 2>&1 </dev/null &
        until [ -s /app/beat ]; do sleep 0.1; done
    """
    runs = 'a=$(cat /app/beat); sleep 0.5; [ "$a" != "$(cat /app/beat)" ]; echo $((1 - $?)) >/logs/verifier/reward.txt'
    steps = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("one", "two"))
    files: dict[str, str | None] = {"tests/test.sh": None, "solution/solve.sh": None}
    for name, solution in (("one", beat), ("two", "#!/bin/sh\ntrue\n")):
        files |= {
            f"steps/{name}/instruction.md": "Do it.",
            f"steps/{name}/tests/test.sh": f"#!/bin/sh\n{runs}\n",
            f"steps/{name}/solution/solve.sh": solution,
        }
    world = build(Returning, provider, tmp_path / "run")
    row = await world.result(folder(tmp_path / "task", f'{BASE}workdir = "/app"\n{steps}', files))
    await world.stop()
    assert [step["reward"] for step in (row.model_extra or {})["step_results"]] == [1.0, 1.0]
    assert isinstance(world.agent, Returning)
    assert world.agent.found == ["sandbox_lost"]
