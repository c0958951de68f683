"""Which runs may be continued, and what they still owe."""

import copy
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.errors import UserError
from gym.rollouts.identity import Absent, Difference, Plan, compare, digest, identity, owed, refuse_message, task_digest
from gym.rollouts.journal import Loaded
from gym.rollouts.rows import Row

CONFIG = {
    "model": {"name": "demo", "temperature": 0.0, "base_url": "http://127.0.0.1:8001/v1", "api_key": "k1"},
    "agent": {"kind": "simple", "max_steps": 6},
    "benchmark": {"kind": "arithmetic", "split": "test", "num_repeats": 2},
    "run": {"concurrency": 4, "max_attempts": 1},
}
OPERATIONAL = {("run",), ("model", "base_url"), ("benchmark", "num_repeats")}
TASKS = [
    {"task_id": "t1", "question": "2+2", "answer": "4"},
    {"task_id": "t2", "question": "3+4", "answer": "7"},
    {"task_id": "t3", "question": "5+6", "answer": "11"},
]


def is_operational(path):
    return path in OPERATIONAL


def is_secret(path, value):
    return path[-1].endswith("key") or value == "from-the-environment"


def identify(config):
    return identity(config, is_operational, is_secret)


def keys_of(tasks):
    return [("demo", task["task_id"], task_digest(task)) for task in tasks]


def finished(rows, tasks=TASKS):
    digests = {task["task_id"]: task_digest(task) for task in tasks}
    made = [
        Row("r", "demo", task, attempt, 0, digests.get(task, "?"), line, reward, "ok")
        for line, (task, attempt, reward) in enumerate(rows, 1)
    ]
    return Loaded(Path("rollouts.jsonl"), {row.key: row for row in made})


KILLED = [("t1", 0, 1.0), ("t1", 1, 0.0), ("t2", 0, 1.0)]
OWED = ["t2/1", "t3/0", "t3/1"]


def setting(path, value):
    def change(config, tasks):
        *parents, last = path.split(".")
        for name in parents:
            config = config[name]
        config[last] = value

    return change


def edit_t1(config, tasks):
    tasks[0]["answer"] = "5"


def append_t4(config, tasks):
    tasks.append({"task_id": "t4", "question": "1+1", "answer": "2"})


def swap(config, tasks):
    tasks[0], tasks[2] = tasks[2], tasks[0]


ALLOWED = [
    ("nothing", lambda config, tasks: None, OWED),
    ("concurrency", setting("run.concurrency", 16), OWED),
    ("address", setting("model.base_url", "http://127.0.0.1:9001/v1"), OWED),
    ("api key", setting("model.api_key", "k2"), OWED),
    ("tries", setting("run.max_attempts", 3), OWED),
    ("more repeats", setting("benchmark.num_repeats", 3), ["t1/2", "t2/1", "t2/2", "t3/0", "t3/1", "t3/2"]),
    ("fewer repeats", setting("benchmark.num_repeats", 1), ["t3/0"]),
    ("t4 appended", append_t4, [*OWED, "t4/0", "t4/1"]),
    ("order swapped", swap, ["t3/0", "t3/1", "t2/1"]),
    ("1 written as 1.0", setting("agent.max_steps", 6.0), OWED),
]


@pytest.mark.parametrize(("change", "expected"), [case[1:] for case in ALLOWED], ids=[case[0] for case in ALLOWED])
def test_a_run_may_be_continued_after(change, expected):
    config: Any = copy.deepcopy(CONFIG)
    tasks = copy.deepcopy(TASKS)
    change(config, tasks)
    assert compare(identify(CONFIG), identify(config)) == []
    assert digest(identify(CONFIG)) == digest(identify(config))
    plan = owed(keys_of(tasks), config["benchmark"]["num_repeats"], finished(KILLED))
    assert [f"{task}/{attempt}" for _, task, attempt in plan] == expected
    assert len(plan) == len(expected)


REFUSED = [
    ("model.temperature", 0.7, "model.temperature  was 0  now 0.7"),
    ("agent.max_steps", 12, "agent.max_steps  was 6  now 12"),
    ("agent.kind", "coder", 'agent.kind  was "simple"  now "coder"'),
    ("agent.tools", ["a", "b"], 'agent.tools  was (not set)  now ["a","b"]'),
    ("agent.max_steps", True, "agent.max_steps  was 6  now true"),
    ("agent.max_steps", None, "agent.max_steps  was 6  now null"),
]


@pytest.mark.parametrize(("key", "value", "line"), REFUSED)
def test_a_run_is_not_continued_after(key, value, line):
    config = copy.deepcopy(CONFIG)
    setting(key, value)(config, [])
    differences = compare(identify(CONFIG), identify(config))
    assert digest(identify(CONFIG)) != digest(identify(config))
    head, row = str(refuse_message(differences)).splitlines()
    assert "new output directory" in head
    assert "overwrite=true" in head
    assert row == line


def test_the_differences_stand_in_columns_and_are_data_too():
    differences = [Difference("agent.kind", "simple", "coder"), Difference("model.temperature", 0.0, Absent.ABSENT)]
    error = refuse_message(differences)
    assert str(error).splitlines()[1:] == [
        'agent.kind         was "simple"  now "coder"',
        "model.temperature  was 0         now (not set)",
    ]
    assert [problem.data.get("was") for problem in error.problems] == [None, "simple", 0.0]


def test_long_values_are_shown_where_they_begin_to_differ():
    old, new = "Please " * 50 + "stop. " * 20, "Please " * 50 + "go on. " * 20
    row = str(refuse_message([Difference("prompt", old, new)])).splitlines()[1]
    assert len(row) < 170
    assert "stop." in row
    assert "go on." in row


def test_an_edited_task_is_refused_by_name_with_its_lines():
    tasks = copy.deepcopy(TASKS)
    edit_t1({}, tasks)
    with pytest.raises(UserError) as error:
        owed(keys_of(tasks), 2, finished(KILLED))
    assert str(error.value) == (
        "rollouts.jsonl:1  task t1 changed since its rollouts were made; "
        "verify them again, drop its rows (lines 1, 2) or use a new output directory"
    )


def test_an_edited_task_without_rollouts_is_fine():
    tasks = copy.deepcopy(TASKS)
    tasks[2]["answer"] = "12"
    assert len(owed(keys_of(tasks), 2, finished(KILLED))) == 3


def test_two_tasks_of_one_id_and_tasks_without_repeats_are_refused():
    with pytest.raises(UserError, match="task t1 of demo stands twice"):
        owed(keys_of([TASKS[0], TASKS[0]]), 1, finished([]))
    for repeats in (0, {"other": 1}):
        with pytest.raises(UserError, match="task t1 of demo has no repeats"):
            owed(keys_of(TASKS[:1]), repeats, finished([]))


def test_what_is_left_out_of_the_score_is_noted():
    plan = owed(keys_of(TASKS), 1, finished([*KILLED, ("gone", 0, 1.0), ("gone", 1, 1.0)]))
    assert [row.key for row in plan.finished()] == [("demo", "t1", 0), ("demo", "t2", 0)]
    assert plan.notes == [
        "2 finished attempts of tasks that are not in this run left out of the score",
        "1 finished attempt beyond the number of repeats left out of the score",
    ]


def test_each_taskset_may_have_its_own_number_of_repeats():
    tasks = [("a", "1", "d"), ("b", "1", "d")]
    plan = owed(tasks, {"a": 1, "b": 3}, finished([]))
    assert list(plan) == [("a", "1", 0), ("b", "1", 0), ("b", "1", 1), ("b", "1", 2)]
    assert plan.planned == {"a": 1, "b": 1}
    assert plan.attempts("b", "1") == [0, 1, 2]


def test_secrets_and_operational_settings_are_no_part_of_an_identity_wherever_they_are():
    config = {
        "servers": [{"name": "a", "api_key": "s3cret"}, {"name": "from-the-environment", "headers": ["x", "y"]}],
        "words": ["plain", "from-the-environment"],
        "run": {"concurrency": 1},
        "dotted.name": {"empty": {}, "none": [], 3: None},
        "path": Path("a/b"),
    }
    assert identify(config) == {
        "servers.0.name": "a",
        "servers.1.headers": ["x", "y"],
        "words": ["plain"],
        '"dotted.name".empty': {},
        '"dotted.name".none': [],
        '"dotted.name".3': None,
        "path": "a/b",
    }


def test_ten_thousand_large_tasks_are_read_as_a_stream():
    def stream():
        for number in range(10_000):
            task = {"task_id": str(number), "question": "x" * 20_000}
            yield "demo", str(number), task_digest(task)

    tracemalloc.start()
    plan = owed(stream(), 2, finished([]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan) == 20_000
    assert peak < 5_000_000


words = st.text(max_size=4)
plain = st.none() | st.booleans() | st.integers() | st.floats() | words
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


def shuffled(value):
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(words, values, max_size=4))
def test_digests_do_not_depend_on_the_order_of_keys(config):
    def nothing(*_):
        return False

    one, other = identity(config, nothing, nothing), identity(shuffled(config), nothing, nothing)
    assert list(one) == list(other)
    assert digest(one) == digest(other)
    assert compare(one, other) == []
    assert task_digest(config) == task_digest(shuffled(config))


@given(st.dictionaries(words, values, max_size=4), st.dictionaries(words, values, max_size=4))
def test_two_identities_are_compared_as_their_digests_are(old, new):
    def nothing(*_):
        return False

    one, other = identity(old, nothing, nothing), identity(new, nothing, nothing)
    assert (compare(one, other) == []) == (digest(one) == digest(other))


attempts = st.tuples(st.sampled_from(["t1", "t2", "t3", "gone"]), st.integers(0, 4))


@given(st.sets(attempts), st.permutations(TASKS), st.integers(1, 5))
def test_what_is_owed_is_the_complement_of_what_is_done(done, tasks, num_repeats):
    plan = owed(keys_of(tasks), num_repeats, finished([(*key, 1.0) for key in done]))
    assert isinstance(plan, Plan)
    everything = {("demo", task["task_id"], attempt) for task in TASKS for attempt in range(num_repeats)}
    still, counted = list(plan), [row.key for row in plan.finished()]
    assert len(still) == len(plan)
    assert len(still) + len(counted) == len(everything)
    assert {*still, *counted} == everything
    assert list(dict.fromkeys(task for _, task, _ in still)) == [
        task["task_id"] for task in tasks if plan.attempts("demo", task["task_id"])
    ]
