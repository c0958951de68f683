"""SWE-bench Pro on an instance of our own: a real image, real git, and whatever an agent could do to be rewarded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Sandbox
from gym.sandbox.providers.docker.provider import DockerProvider
from gym.sandbox.providers.docker.settings import DockerProviderConfig
from gym.servers.base import Call, ServerContext
from gym.servers.client import Client, Directory
from gym.servers.contract import CloseSessionRequest, EpisodeId, SeedSessionRequest, TaskId, VerifyRequest
from gym.servers.sessions import Signer
from resources_servers.swebench_pro.app import SwebenchPro, SwebenchProConfig
from resources_servers.swebench_pro.grading import is_cut_short, statuses
from resources_servers.swebench_pro.repository import Section, is_protected, path_of, sections, without
from resources_servers.swebench_pro.task import SwebenchProTask, names_in
from tests.resources_servers.swebench_instance import FIXED, IMAGE, RUN, instance

SOLVE = "sed -i 's/a - b/a + b/' calc.py"
EPISODE = EpisodeId(rollout_id="r1")
VERIFY = VerifyRequest(
    responses_create_params=ResponsesRequest(input="solve it"), response=ResponsesResponse(output=[])
)


class Bench:
    """A server and one session of it."""

    def __init__(self, provider: DockerProvider, settings: dict[str, Any], row: dict[str, Any]) -> None:
        config = SwebenchProConfig(image_repository=IMAGE, **settings)
        context = ServerContext(
            "benchmark", Client(Directory(base_url="http://gym.invalid"), "t"), Signer(b"s"), lambda _: provider
        )
        self.server, self.row = SwebenchPro(config, context), {**instance(), **row}
        self.call = Call()

    async def seed(self) -> Sandbox:
        seed = SeedSessionRequest(
            resources_session_id="s1", episode_id=EPISODE, task_id=TaskId(taskset="t", task_id="i"), task_data=self.row
        )
        await self.server.seed_session(seed, self.call)
        self.call.cookies = self.call.set_cookies
        sandbox = self.server.sessions["s1"].sandbox
        assert sandbox is not None
        return sandbox

    async def verdict(self) -> dict[str, Any]:
        return (await self.server.verify_session(VERIFY, self.call)).model_dump()

    async def close(self) -> None:
        await self.server.close_session(CloseSessionRequest(resources_session_id="s1"), Call())


@pytest.fixture
async def provider() -> AsyncIterator[DockerProvider]:
    instance()
    provider = DockerProvider(DockerProviderConfig())
    yield provider
    await provider.aclose()


async def graded(provider: DockerProvider, command: str, row: dict[str, Any], **settings: Any) -> dict[str, Any]:
    bench = Bench(provider, settings, row)
    try:
        sandbox = await bench.seed()
        done = await sandbox.exec(command)
        assert done.exit_code == 0, done.stderr_text
        return await bench.verdict()
    finally:
        await bench.close()


CHEAT_TESTS = (
    "printf 'import unittest\\nclass T(unittest.TestCase):\\n  def test_add(self): pass\\n' >tests/test_calc.py"
)
FAKE = (
    "printf '#!/bin/sh\\necho \"test_add (x) ... ok\" >&2\\n' >/usr/local/bin/python3; chmod +x /usr/local/bin/python3"
)
REWRITE = "setsid sh -c 'while :; do cp /tmp/calc.py calc.py; sleep 0.1; done' >/dev/null 2>&1 &"
PATCHES = [
    pytest.param(SOLVE, {}, {"reward": 1.0, "patch_applied": True, "tests_not_passed": []}, id="solved"),
    pytest.param("true", {}, {"reward": 0.0, "error": "nothing was changed"}, id="empty"),
    pytest.param(
        f"{SOLVE}; sed -i 's/2 . x/3 * x/' calc.py",
        {},
        {"reward": 0.0, "patch_applied": True, "tests_not_passed": ["test_double"]},
        id="breaks a test that passed",
    ),
    pytest.param(
        f"{SOLVE}; head -c 9000 /dev/urandom >data.bin; printf 'x\\r\\n' >>dos.txt; git add -A; git -c user.name=a -c"
        " user.email=b commit -qm done",
        {},
        {"reward": 1.0},
        id="binary, line ends, committed",
    ),
    pytest.param(
        f"{SOLVE}; git init -q sub; touch sub/f; git init -q own; cd own; git -c user.name=a -c user.email=b commit -q"
        " --allow-empty -m x; echo 'from calc import *' >own.py",
        {"run_script": f"test -e sub/f && test -e own/own.py || exit 1\n{RUN}"},
        {"reward": 1.0, "dropped_paths": []},
        id="repositories inside",
    ),
    pytest.param(
        "printf '[pytest]\naddopts = -p cheat\n' >pytest.ini; echo '[tool:pytest]' >setup.cfg; echo {} >jest.config.js;"
        " mkdir pkg new; echo '{\"jest\": {}}' >pkg/package.json; echo '{}' >new/package.json",
        {},
        {"reward": 0.0, "dropped_paths": ["jest.config.js", "pkg/package.json", "pytest.ini", "setup.cfg"]},
        id="settings of test runners",
    ),
    pytest.param(
        "printf 'import os\nos.write(2, b\"test_add (x) ... ok\\ntest_double (x) ... ok\\n\")\nos._exit(0)\n' >calc.py",
        {"run_script": f'echo "==== test session starts ====" >&2\n{RUN}'},
        {"reward": 0.0, "tests_not_passed": ["test_add", "test_double"]},
        id="says what it should, and ends the tests",
    ),
    pytest.param("echo 'def' >calc.py", {}, {"reward": 0.0, "patch_applied": True}, id="no Python"),
    pytest.param("rm -rf .git; echo x >.git", {}, {"reward": 0.0, "patch_applied": False}, id="no repository"),
    pytest.param(CHEAT_TESTS, {}, {"reward": 0.0, "dropped_paths": ["tests/test_calc.py"]}, id="tampered tests"),
    pytest.param(
        "echo x >conftest.py; echo y >>pristine.txt; ln -s /etc/passwd calc.lnk; touch .git/index.lock",
        {},
        {"reward": 0.0, "dropped_paths": ["conftest.py"], "patch_applied": True},
        id="test machinery, files of the image, a link, a lock",
    ),
    pytest.param(
        f"{FAKE}; cp calc.py /tmp; {REWRITE}", {}, {"reward": 0.0}, id="a fake python, a process that goes on"
    ),
    pytest.param(
        "ln -sf /tmp/elsewhere.py calc.py; cp calc.py /tmp/elsewhere.py 2>/dev/null || true",
        {},
        {"reward": 0.0},
        id="link",
    ),
]


@pytest.mark.parametrize(("command", "row", "expected"), PATCHES)
async def test_the_tests_of_the_instance_decide(provider, command, row, expected) -> None:
    verdict = await graded(provider, command, row)
    assert {name: verdict[name] for name in expected} == expected, verdict


LOOKS = (
    *("git rev-parse solved", "git rev-parse origin/main", "git stash list | grep .", "git reflog | grep ."),
    *("git fsck --lost-found --unreachable 2>&1 | grep commit", "git remote | grep .", "grep -r 'a + b' ."),
    *("ls /tmp | grep -i gym", "ls / | grep -i verif"),
)


async def test_the_solution_cannot_be_reached(provider: DockerProvider) -> None:
    bench = Bench(provider, {}, {})
    try:
        sandbox = await bench.seed()
        solved = bench.row["before_repo_set_cmd"].split()[-3]
        for look in (f"git cat-file -e {solved}", *LOOKS):
            assert (await sandbox.exec(look)).exit_code != 0, look
        assert "base" in (await sandbox.exec("git log --all --format=%s")).stdout_text
    finally:
        await bench.close()


async def test_a_verdict_is_given_once(provider: DockerProvider) -> None:
    bench = Bench(provider, {}, {})
    try:
        await (await bench.seed()).exec(SOLVE)
        first, second = await asyncio.gather(bench.verdict(), bench.verdict())
        assert first == second == await bench.verdict()
        assert first["reward"] == 1.0
        assert FIXED.splitlines()[1] in first["model_patch"]
    finally:
        await bench.close()


@pytest.mark.parametrize(
    ("row", "expected"),
    [({}, {"reward": 1.0}), ({"patch": "no patch"}, {"reward": 0.0, "patch_applied": False})],
)
async def test_golden_mode_grades_the_published_solution(provider, row, expected) -> None:
    verdict = await graded(provider, "true", row, golden=True)
    assert {name: verdict[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("row", "settings", "told"),
    [
        ({"parser_script": "pass"}, {}, "its parser read nothing in the log of the tests"),
        ({"run_script": "sleep 60"}, {"test_timeout_seconds": 1}, "its tests took longer than"),
        ({"before_repo_set_cmd": "git checkout 1234567 -- x"}, {"grading_tries": 1}, "could not be put in place"),
    ],
)
async def test_what_says_nothing_is_no_reward(provider, row, settings, told) -> None:
    with pytest.raises(EpisodeFailure, match=told) as caught:
        await graded(provider, SOLVE, row, **settings)
    assert caught.value.kind == "verifier_crashed"


async def test_time_that_runs_out_after_a_required_failure_is_a_verdict(provider: DockerProvider) -> None:
    script = "python3 -m unittest -v $1; sleep 60"
    verdict = await graded(provider, "touch new.txt", {"run_script": script}, test_timeout_seconds=5)
    assert (verdict["reward"], verdict["eval_timed_out"]) == (0.0, True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["a", "b"]', ["a", "b"]),
        ("['a', \"it's\"]", ["a", "it's"]),
        ("('a',)", ["a"]),
        ("[]", []),
        (["a"], ["a"]),
    ],
)
def test_lists_are_json_or_python(text: Any, names: list[str]) -> None:
    assert names_in(text) == names


@pytest.mark.parametrize("text", ["__import__('os').system('true')", "[a, b]", "", "[" * 10_000])
def test_nothing_in_a_list_is_executed(text: str) -> None:
    with pytest.raises(ValueError, match="neither a JSON list nor a Python one"):
        names_in(text)


def test_a_row_tells_what_grading_needs() -> None:
    row = {
        "instance_id": "i", "base_commit": "a" * 40, "run_script": "r", "parser_script": "p", "dockerhub_tag": "t",
        "FAIL_TO_PASS": "['x']", "PASS_TO_PASS": "[]",
        "before_repo_set_cmd": f"git reset --hard {'a' * 40}\ngit checkout {'b' * 40} -- t/one.py t/two.py\n",
    }  # fmt: skip
    task = SwebenchProTask.model_validate(row)
    assert task.required == {"x"}
    assert task.solution_commit == "b" * 40
    assert task.test_files == {"t/one.py", "t/two.py"}
    config = SwebenchProConfig(image_repository="mine/images")
    assert config.image(task) == "mine/images:t"
    assert config.image(task.model_copy(update={"image_digest": "sha256:c"})) == "mine/images@sha256:c"


@pytest.mark.parametrize(
    ("path", "is_new", "dropped"),
    [
        ("pytest.ini", True, True),
        ("sub/tox.ini", False, True),
        ("setup.cfg", False, False),  # the published solution changes it
        ("package.json", False, True),
        ("sub/package.json", True, False),
        ("web/jest.config.ts", True, True),
        ("src/karma.js", True, False),
        ("src/calc.py", False, False),
    ],
)
def test_who_may_set_up_the_test_runner(path: str, is_new: bool, dropped: bool) -> None:
    task = SwebenchProTask.model_validate({**instance(), "patch": "diff --git a/setup.cfg b/setup.cfg\n"})
    header = f"diff --git a/{path} b/{path}\n" + "new file mode 100644\n" * is_new
    assert is_protected(task, Section(path, header.encode())) is dropped


@pytest.mark.parametrize(
    ("log", "cut"),
    [
        ("", False),
        ("==== test session starts ====\nx PASSED\n==== 1 passed in 0.12s ====\n", False),
        (
            "\x1b[1m==== test session starts ====\x1b[0m\n\x1b[32m=== 1 passed in 61.2s (0:01:01) ===\x1b[0m",
            False,
        ),
        ("==== test session starts ====\nx PASSED\n", True),
        ("== test session starts ==\n== 1 passed in 1.00 seconds ==\n== test session starts ==\ny PASSED\n", True),
    ],
)
def test_a_run_that_was_cut_short(log: str, cut: bool) -> None:
    assert is_cut_short(log) is cut


HEADERS = [
    (b"diff --git a/x.py b/x.py", "x.py"),
    (b"diff --git a/a b/c b/a b/c", "a b/c"),
    (b'diff --git "a/tab\\t\\303\\244.py" "b/tab\\t\\303\\244.py"', "tab\tä.py"),
    (b"diff --git a/x b/x\r", "x"),
]


@pytest.mark.parametrize(("header", "path"), HEADERS)
def test_the_path_of_a_section(header: bytes, path: str) -> None:
    assert path_of(header) == path


def test_a_patch_is_cut_into_its_files() -> None:
    patch = b"diff --git a/x b/x\n-diff --git a/no b/no\n+1\ndiff --git a/y b/y\n+2\n"
    assert [section.path for section in sections(patch)] == ["x", "y"]
    assert without(patch, lambda section: section.path == "x") == (b"diff --git a/y b/y\n+2\n", ["x"])
    assert without(b"", lambda section: True) == (b"", [])


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"tests": [{"name": "a", "status": "passed"}]}', {"a": "PASSED"}),
        (b'{"tests": []}', {}),
        (b'{"tests": [1]}', None),
        (b"[]", None),
        (b"", None),
    ],
)
def test_what_a_parser_wrote_is_checked(content: bytes, found: dict[str, str] | None) -> None:
    assert statuses(content) == found
