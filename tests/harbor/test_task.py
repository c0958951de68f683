"""Task folders: what the format accepts, what it refuses and where, and what follows for each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gym.errors import UserError
from gym.harbor.task import Network, Task, load_task
from gym.harbor.variables import fill_env, fill_headers
from tests.harbor.folders import FIXTURES, folder

STEP = '[[steps]]\nname = "one"\n'
STEP_FILES = {"steps/one/instruction.md": "One.\n"}
MCP = "[[environment.mcp_servers]]\n"

WRONG = [
    # Unknown keys, at every depth.
    (
        "[agent]\ntimeout_secs = 3",
        "task.toml:2  agent.timeout_secs  unknown key `timeout_secs`; did you mean `timeout_sec`?",
    ),
    ("[enviroment]\nx = 1", "task.toml:1  enviroment  unknown key `enviroment`; did you mean `environment`?"),
    (f"{STEP}agent.usr = 'x'", "task.toml:3  steps.0.agent.usr  unknown key `usr`; did you mean `user`?"),
    (f'{MCP}name = "a"\nurl = "u"\ntimeout = 1', "task.toml:4  environment.mcp_servers.0.timeout  unknown key"),
    # Values.
    ('[task]\nname = "a/b/c"', "task.toml:2  task.name  `a/b/c` is no name"),
    ('[task]\nname = "plain"', "task.toml:2  task.name  `plain` is no name"),
    ("[agent]\ntimeout_sec = 0", "task.toml:2  agent.timeout_sec  wants a number greater than 0"),
    ("[agent]\ntimeout_sec = nan", "task.toml:2  agent.timeout_sec  wants a number"),
    ("[verifier]\ntimeout_sec = true", "task.toml:2  verifier.timeout_sec  wants a number"),
    ('[verifier]\ntimeout_sec = "600"', "task.toml:2  verifier.timeout_sec  wants a number"),
    ("[agent]\nuser = -1", "task.toml:2  agent.user  wants"),
    ('[environment]\nworkdir = "app"', "task.toml:2  environment.workdir  wants an absolute path, got `app`"),
    ("[environment]\nmemory_mb = 0", "task.toml:2  environment.memory_mb  wants an integer of at least 1"),
    ("[environment]\nenv = { A = 1 }", "task.toml:2  environment.env.A  wants text, got 1"),
    ('[environment]\nenv = { "A=B" = "1" }', "task.toml:2  environment.env"),
    ("[environment.healthcheck]\ninterval_sec = 1", "task.toml:1  environment.healthcheck.command  is required"),
    ('[environment.tpu]\ntype = "v6e"\ntopology = "2y4"', "task.toml:3  environment.tpu.topology  wants"),
    ('schema_version = "1.5"', "task.toml:1  schema_version  schema 1.5 is newer than 1.4"),
    ('schema_version = "new"', "task.toml:1  schema_version  `new` is no version"),
    # Hosts.
    (
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.b",\n"http://a.b/c"]',
        "task.toml:4  environment.allowed_hosts.1  `http://a.b/c` is a URL; an allow-list has hosts, such as `a.b`",
    ),
    *(
        (f'[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["{host}"]', f"agent.allowed_hosts.0  `{host}` is no")
        for host in ("a:80", "a/b", "10.0.0.1/8", "*", "a.*.b", "*.10.0.0.1", "-a", "fe80::1%eth0", "a b", "[::1]")
    ),
    (
        '[agent]\nnetwork_mode = "public"\nallowed_hosts = ["a"]',
        'task.toml:3  agent.allowed_hosts  is only for network_mode = "allowlist"',
    ),
    (
        '[verifier]\nallowed_hosts = ["a"]',
        'task.toml:2  verifier.allowed_hosts  is only for network_mode = "allowlist"',
    ),
    # MCP servers.
    (
        f'{MCP}name = "a"\ntransport = "tcp"\nurl = "u"',
        "task.toml:3  environment.mcp_servers.0.transport  wants one of stdio, sse, streamable-http",
    ),
    (f'{MCP}name = "a"', "task.toml:1  environment.mcp_servers.0  the sse server `a` needs `url`"),
    (f'{MCP}name = "a"\ntransport = "stdio"', "the stdio server `a` needs `command`"),
    (f'{MCP}name = "a"\nurl = "u"\ncommand = "c"', "has a `url`, and no `command` or args"),
    (
        f'{MCP}name = "a"\nurl = "u"\nheaders = {{ Authorization = "Bearer s3cret" }}',
        "the header Authorization holds a",
    ),
    (f'{MCP}name = "a"\nurl = "u"\nheaders = {{ X-Api-Key = "${{K:-s3cret}}" }}', "the header X-Api-Key holds a"),
    (f'{MCP}name = "a"\nurl = "u"\nheaders = {{ X-Auth-Id = "s3cret" }}', "the header X-Auth-Id holds a credential"),
    (f'{MCP}name = "a"\nurl = "u"\nheaders = {{ X-A = "${{API_KEY:-s3cret}}" }}', "the header X-A holds a credential"),
    (f'{MCP}name = "a"\nurl = "u"\nheaders = {{ X-A = "${{" }}', "the header X-A has a `${`"),
    (f'{MCP}name = "a"\nurl = "u"\n{MCP}name = "a"\nurl = "v"', "task.toml:5  environment.mcp_servers.1.name  two MCP"),
    # Artifacts and hooks.
    ('artifacts = ["/a", "/b/../c"]', "task.toml:1  artifacts.1"),
    ('artifacts = [{ source = "/a", destination = "/b" }]', "artifacts.0.destination  `/b` is no relative path"),
    ('artifacts = [{ source = "/a", destination = "manifest.json" }]', "is the list of what was collected"),
    (
        '[[artifacts]]\nsource = "/a"\nservice = "db"',
        "task.toml:3  artifacts.0.service  `db` is a container of docker-compose",
    ),
    ('[[verifier.collect]]\ncommand = "x"\nservice = "db"', "task.toml:3  verifier.collect.0.service  `db` is a"),
    # Verifiers.
    (
        '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1',
        'task.toml:2  verifier.environment_mode  "shared" contradicts [verifier.environment]',
    ),
    (
        '[verifier.environment]\nskills_dir = "/s"',
        "task.toml:2  verifier.environment.skills_dir  is for the agent, and a verifier's container has none",
    ),
    # Steps.
    ('[[steps]]\nname = "a/b"', "task.toml:2  steps.0.name  `a/b` cannot be the name of a folder"),
    (f'{STEP}[[steps]]\nname = "ONE"', "task.toml:4  steps.1.name  the step `ONE` has the name of the step `one`"),
    (f'{STEP}min_reward = "all"', "task.toml:3  steps.0.min_reward  wants a number or a mapping"),
    ('multi_step_reward_strategy = "mean"', "task.toml:1  multi_step_reward_strategy  is for tasks with [[steps]]"),
    # What cannot run here.
    ('[environment]\nos = "Windows"', "task.toml:2  environment.os  tasks in Windows containers are not supported"),
    # Deprecated spellings that make no sense.
    ('[environment]\nmemory = "lots"', "task.toml:2  environment.memory  `lots` is no size; write memory_mb = 2048"),
    (
        '[environment]\nstorage = "2G"\nstorage_mb = 1000',
        "task.toml:2  environment.storage  `storage = '2G'` contradicts `storage_mb = 1000`",
    ),
    (
        '[environment]\nallow_internet = true\nnetwork_mode = "no-network"',
        "task.toml:2  environment.allow_internet  `allow_internet = true` contradicts",
    ),
    ('version = "1.0"\nschema_version = "1.4"', "task.toml:1  version  `version = '1.0'` contradicts"),
]


@pytest.mark.parametrize(("toml", "message"), WRONG)
def test_a_wrong_value_is_told_with_its_line_and_its_key(toml, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {**STEP_FILES, "steps/ONE/instruction.md": "Two.\n"}
    with pytest.raises(UserError) as caught:
        load_task(folder(tmp_path, toml, files))
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert len(caught.value.problems) == 1, str(caught.value)


@pytest.mark.parametrize(
    ("toml", "files", "message"),
    [
        ("", {"instruction.md": None}, "t/instruction.md  is missing"),
        ("", {"instruction.md": "<!-- canary -->\n\n"}, "t/instruction.md  is empty"),
        ("", {"environment/Dockerfile": None}, "t/environment/Dockerfile  is missing: the task has no image"),
        ("", {"environment/docker-compose.yaml": ""}, "t/environment/docker-compose.yaml  tasks of several containers"),
        ("", {"tests/test.sh": None, "tests/x": ""}, "t/tests/test.sh  is missing: the task has no verifier"),
        (
            "",
            {"solution/solve.sh": None, "solution/x": ""},
            "t/solution/solve.sh  is missing, though there is a solution",
        ),
        ("", {"tests/.harborignore": "*.tmp\n", "tests/a.tmp": ""}, "t/tests/a.tmp  a .harborignore leaves it out"),
        (STEP, {}, "t/steps/one  the step `one` has no folder"),
        (STEP, {"steps/one/x": ""}, "t/steps/one/instruction.md  is missing"),
        (STEP, {**STEP_FILES, "tests/test.sh": None}, "t/steps/one/tests/test.sh  is missing"),
        (STEP, {**STEP_FILES, "steps/one/solution/x": ""}, "t/steps/one/solution/solve.sh  is missing"),
    ],
)
def test_a_missing_file_is_named(toml, files, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        load_task(folder(tmp_path / "t", toml, files))
    assert [str(problem).startswith(message) for problem in caught.value.problems] == [True], str(caught.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    toml = "[agent]\nuser = true\n\n[environment]\nmemory = 'x'\ncpu = 1\n"
    with pytest.raises(UserError) as caught:
        load_task(folder(tmp_path, toml, {"instruction.md": None, "environment/Dockerfile": None}))
    assert [problem.where for problem in caught.value.problems] == [
        *("task.toml:2", "task.toml:5", "task.toml:6"),
        *("environment/Dockerfile", "instruction.md"),
    ]


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "nowhere"])
def test_a_link_out_of_the_folder_is_refused(target, tmp_path) -> None:
    (tmp_path / "outside").write_text("x")
    task = folder(tmp_path / "t")
    (task / "environment" / "inside").symlink_to("Dockerfile")
    assert load_task(task)
    (task / "environment" / "link").symlink_to(target)
    with pytest.raises(UserError, match="environment/link  is a link that leads out of the task folder"):
        load_task(task)


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
def test_the_fixtures_are_whole(name) -> None:
    task = load_task(FIXTURES / name)
    assert task.has_solution
    assert task.name in (f"gym-tests/{name}", name)


def _load(name: str) -> Task:
    return load_task(FIXTURES / name)


def test_deprecated_spellings_mean_todays_keys_and_are_named_as_written() -> None:
    task = _load("old-spellings")
    assert (task.table.schema_version, task.environment.config.memory_mb, task.environment.config.storage_mb) == (
        *("1.0", 256, 512),
    )
    assert task.environment.network == Network("no-network", (), ("environment", "network_mode"))
    problem = task.problem(task.environment.network.key, "x")
    assert (problem.key, problem.where.rpartition(":")[2]) == ("environment.allow_internet", "18")


def test_a_step_has_its_own_settings_over_those_of_the_task() -> None:
    task = _load("steps")
    opening, deposit, close = task.steps
    assert task.reward_strategy == "final"
    assert [step.agent.timeout_seconds for step in task.steps] == [60, 30, 60]
    assert [step.verifier.timeout_seconds for step in task.steps] == [30, 20, 30]
    assert [step.verifier.env["GOAL"] for step in task.steps] == ["0", "5", "closed"]
    assert {step.verifier.env["UNIT"] for step in task.steps} == {"coins"}
    assert [step.min_rewards for step in task.steps] == [{"reward": 1.0}, {"reward": 0.5, "tidy": 1.0}, {}]
    assert [[item.source for item in step.artifacts] for step in (opening, deposit)] == [
        ["/logs/artifacts", "/app/ledger"],
        ["/logs/artifacts", "/app/ledger", "/app/receipt"],
    ]
    assert [path.relative_to(task.folder).as_posix() for path in deposit.verifier.tests] == [
        "tests",
        "steps/deposit/tests",
    ]
    assert deposit.setup is not None
    assert deposit.setup.parent == deposit.workdir
    assert (opening.workdir, close.setup) == (None, None)


def test_users_and_containers_of_steps() -> None:
    first, second = _load("steps-mean").steps
    assert (first.agent.user, second.agent.user) == ("root", "agent")
    assert first.verifier.container is None
    assert second.verifier.container is not None
    assert [hook.command for hook in second.verifier.collect] == ["cp /app/second /logs/artifacts/second"]
    assert first.solution == second.solution


SEPARATE = '[environment]\n{own}\n[verifier]\nenvironment_mode = "separate"\n{verifier}\n'


@pytest.mark.parametrize(
    ("own", "verifier", "expected"),
    [
        ("", "", "no-network"),
        ('network_mode = "public"', "", "no-network"),
        ('network_mode = "allowlist"\nallowed_hosts = ["A.b."]', "", "allowlist"),
        ('network_mode = "public"', 'network_mode = "public"', "public"),
        ('network_mode = "public"', "[verifier.environment]\ncpus = 1", "no-network"),
        ('network_mode = "no-network"', '[verifier.environment]\nnetwork_mode = "public"', "public"),
    ],
)
def test_a_verifier_of_its_own_never_gets_the_public_network_by_accident(own, verifier, expected, tmp_path) -> None:
    task = load_task(folder(tmp_path, SEPARATE.format(own=own, verifier=verifier)))
    phase = task.steps[0].verifier
    assert phase.network.mode == expected
    assert phase.network.hosts == (("a.b",) if expected == "allowlist" else ())


@pytest.mark.parametrize(
    ("verifier", "files", "image", "context", "uploads"),
    [
        ("", {}, None, "environment", True),
        ("", {"tests/Dockerfile": "FROM x\n"}, None, "tests", False),
        ('[verifier.environment]\ndocker_image = "v"', {}, "v", None, False),
        ("[verifier.environment]\ncpus = 2", {}, None, "environment", True),
        ('[verifier.environment]\ndocker_image = "v"', {"tests/Dockerfile": "FROM x\n"}, "v", None, False),
    ],
)
def test_the_image_of_a_verifier_of_its_own(verifier, files, image, context, uploads, tmp_path) -> None:
    task = load_task(folder(tmp_path, SEPARATE.format(own="cpus = 1\nmemory_mb = 99", verifier=verifier), files))
    phase = task.steps[0].verifier
    assert phase.container is not None
    assert phase.container.docker_image == image
    assert phase.container.context == (tmp_path / context if context else None)
    assert bool(phase.tests) is uploads
    assert (phase.container.config.cpus, phase.container.config.memory_mb) == (2 if "cpus" in verifier else 1, 99)


def test_a_verifier_image_needs_no_test_script_in_the_folder(tmp_path) -> None:
    files = {"tests/test.sh": None, "tests/Dockerfile": "FROM x\n"}
    assert (
        load_task(folder(tmp_path, '[verifier]\nenvironment_mode = "separate"\n', files)).steps[0].verifier.tests == ()
    )


def test_variables() -> None:
    env = {"A": "plain", "B": "${X}", "C": "${Y:-d}", "D": "${Z:-}", "E": "x-${X}", "F": "${GONE}"}
    filled = fill_env(env, {"X": "1", "Y": "2"})
    assert filled.values == {"A": "plain", "B": "1", "C": "2", "D": "", "E": "x-${X}"}
    assert filled.missing == {"F": "GONE"}
    headers = fill_headers({"A": "Bearer ${T}", "B": "${S:-a}/${T}", "C": "${GONE} ${T}"}, {"T": "t"})
    assert (headers.values, headers.missing) == ({"A": "Bearer t", "B": "a/t"}, {"C": "GONE"})


def test_a_task_is_data(tmp_path) -> None:
    task = load_task(folder(tmp_path / "t"))
    assert replace(task) == load_task(tmp_path / "t")
    assert (task.task_id, task.name, task.has_steps, Path(task.folder).is_absolute()) == ("t", "t", False, True)
