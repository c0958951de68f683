"""Final tables: plain where there is no terminal, boxes on a real one."""

import io
import os
from pathlib import Path

import pytest

from gym.report.metrics import Scores
from gym.report.table import SweepPoint, duration, run_table, sweep_mean, sweep_table


def point(name, seed, status, **more):
    return SweepPoint({"model.name": name, "seed": seed}, status, **more)


SWEEP = [
    point("a", 0, "finished", mean_reward=1.0, coverage="1 of 1", seconds=2.0),
    point("a", 1, "finished", mean_reward=0.5, coverage="1 of 1", seconds=65.0),
    point("b", 0, "failed", failure_kind="exception", message="ValueError: boom-b0\n", log=Path("b0.log")),
    point("b", 1, "failed", failure_kind="exception", message="ValueError: [red]boom-b1", log=Path("b1.log")),
    point("c", 0, "finished", mean_reward=0.0, seconds=3.25),
    point("c", 1, "failed", failure_kind="worker_killed", message="signal 9", mean_reward=0.0, log=Path("l" * 90)),
]


def plain(draw, *args):
    file = io.StringIO()
    draw(*args, file)
    return file.getvalue()


def on_terminal(draw, *args):
    """What a real terminal receives."""
    master, slave = os.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as file:
        draw(*args, file)
        file.flush()
        text = b""
        while not text.endswith(b"end\r\n"):
            if not text:
                file.write("end\n")
                file.flush()
            text += os.read(master, 1 << 16)
    os.close(master)
    return text.decode()


def test_a_sweep_with_failed_points():
    log = "l" * 90
    assert plain(sweep_table, SWEEP).splitlines() == [
        "model.name  seed  status    mean reward  coverage        time  failure                              log",
        "a           0     finished       1.0000  1 of 1         2.0 s  -                                    -",
        "a           1     finished       0.5000  1 of 1    1 min 05 s  -                                    -",
        "b           0     failed              -  -                  -  exception: ValueError: boom-b0       b0.log",
        "b           1     failed              -  -                  -  exception: ValueError: [red]boom-b1  b1.log",
        "c           0     finished       0.0000  -              3.2 s  -                                    -",
        f"c           1     failed              -  -                  -  worker_killed: signal 9              {log}",
        "",
        "finished     3 of 6 points",
        "failed       3: exception 2, worker_killed 1",
        "mean reward  0.5000 over finished points",
    ]


def test_a_failed_point_never_enters_the_mean():
    assert sweep_mean(SWEEP) == 0.5
    assert sweep_mean(SWEEP[2:4]) is None
    assert sweep_mean([]) is None


def test_a_sweep_that_stopped_at_its_first_failure():
    text = plain(sweep_table, [*SWEEP[:3], point("b", 1, "not_started"), point("c", 0, "not_started")])
    assert text.count("not_started") == 2
    assert "finished     2 of 5 points" in text


def run_scores(tasks=3):
    scores = Scores(2, {"demo": tasks})
    for number in range(1, tasks):
        scores.add("demo", f"t{number}", 0, 1.0)
        scores.add("demo", f"t{number}", 1, 0.5 * (number % 2))
    scores.fail("sandbox_start", "demo")
    scores.usage.add({"input_tokens": 1000, "output_tokens": 100})
    scores.usage.add({"input_tokens": 5})
    return scores


def run(scores, path=Path("results/x")):
    return scores.summary(), scores.tasks(), path


def test_a_run():
    assert plain(run_table, *run(run_scores())).splitlines() == [
        "taskset  task  reward  attempts",
        "demo     t1    0.7500  2 of 2",
        "demo     t2    0.5000  2 of 2",
        "",
        "mean reward       0.6250 (standard error 0.1250, tasks as clusters)",
        "coverage          2 of 3 tasks, 4 of 6 attempts; 1 attempt failed: sandbox_start 1",
        "missing as 0 / 1  0.4167 / 0.7500",
        "pass@k            pass@1 0.5000, pass@2 1.0000",
        "usage             input tokens 1005, output tokens 100 + unknown of 1, model calls unknown",
        "results           results/x",
    ]


def test_a_run_without_results_and_a_run_of_single_attempts():
    text = plain(run_table, *run(Scores(1, {"demo": 2})))
    assert text.startswith("mean reward       -\n")
    assert "coverage          0 of 2 tasks, 0 of 2 attempts\n" in text
    scores = Scores(1, {"demo": 1})
    scores.add("demo", "t1", 0, 1.0)
    text = plain(run_table, *run(scores))
    assert "95 % interval  0.2065 to 1.0000 (Wilson)\n" in text
    assert "missing" not in text


def test_several_tasksets_have_a_line_each():
    scores = run_scores()
    scores.add("other", "o1", 0, 0.0)
    text = plain(run_table, *run(scores))
    assert "taskset  mean reward  coverage\n" in text
    assert "other         0.0000  1 of 1 tasks, 1 of 2 attempts\n" in text


def test_no_escape_code_and_no_cut_where_there_is_no_terminal():
    scores = Scores(1, {"demo": 300})
    for number in range(300):
        scores.add("demo", "\x1b[31m" + "long" * 40 + f"-{number:03}\nx", 0, 1.0)
    text = plain(run_table, *run(scores))
    assert text.count("long" * 40) == 300
    assert "\x1b" not in text
    assert "…" not in text


@pytest.mark.parametrize(("draw", "args"), [(sweep_table, (SWEEP,)), (run_table, run(run_scores()))])
def test_a_terminal_gets_a_box_with_the_same_words(monkeypatch, draw, args):
    monkeypatch.setenv("COLUMNS", "300")
    text = on_terminal(draw, *args)
    assert "┃" in text
    words = "finished boom-b0 [red]boom-b1 worker_killed" if draw is sweep_table else "t1 t2 0.7500 0.6250 demo"
    assert all(word in text for word in words.split())


def test_a_terminal_is_spared_the_thousandth_task():
    text = on_terminal(run_table, *run(run_scores(101)))
    assert "and 50 more tasks, in results/x" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (3599.6, "1 h 00 min"), (7620, "2 h 07 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
