"""Servers in processes of their own: how they start, what they know, what they leave, and that they stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.launch import supervised
from gym.launch.hosting import Hosted
from tests.launch.parts import (
    WAIT_SECONDS,
    Events,
    apart,
    assert_free,
    freed,
    gone,
    is_alive,
    model,
    odd,
    pid_of,
    tell,
    up_again,
)


async def test_each_has_a_process_and_all_have_one_address_book() -> None:
    async with apart(odd("a"), odd("b"), here=[odd("c")]) as running:
        pids = [await tell(running, "pid", name) for name in "abc"]
        assert pids == [pid_of(running, "a"), pid_of(running, "b"), os.getpid()]
        urls = {name: running.url(name) for name in "abc"}
        assert await tell(running, "directory", "a") == {"b": urls["b"], "c": urls["c"]}
        assert set(running.launched.directory.remote) == {"a", "b"}
        assert [one.state for one in running.processes()["a"]] == ["running"]
    for name, pid in zip("ab", pids, strict=False):
        assert not is_alive(pid)
        assert_free(urls[name])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuse", r"^here.yaml:3  odd.fault  odd does not like it; try another$"),
        ("break", r"^odd could not be started: OSError: disk full$"),
        ("leave", r"^odd  odd could not be started: its process ended with exit code 7: odd starts$"),
        ("hang", r"^odd  odd could not be started: its process was not ready within 2 s"),
    ],
)
async def test_what_hinders_a_start_is_told_with_the_last_words(fault: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        async with apart(odd(fault=fault), odd("fine"), spin_up_seconds=2 if fault == "hang" else WAIT_SECONDS):
            raise AssertionError


async def test_all_that_servers_refuse_is_told_together() -> None:
    with pytest.raises(UserError) as caught:
        async with apart(odd("a", fault="refuse"), odd("b", fault="refuse"), odd("fine")):
            raise AssertionError
    assert [problem.what for problem in caught.value.problems] == ["a does not like it", "b does not like it"]


async def test_settings_arrive_with_their_secrets_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYM_TEST_KEY", "from-the-environment")
    mine, theirs = odd("mine", key="my-own-secret"), odd("theirs", key="GYM_TEST_KEY")
    redact = lambda text: text.replace("my-own-secret", "***")  # noqa: E731
    async with apart(mine, theirs, logs=tmp_path, redact=redact) as running:
        assert await tell(running, "key", "mine") == "my-own-secret"
        assert await tell(running, "variable", "mine") is None
        assert await tell(running, "variable", "theirs") == "from-the-environment"  # its settings name the variable
        assert await tell(running, "path", "mine") == os.environ.get("PYTHONPATH", "")
        await tell(running, "log", "mine")
        for name in ("mine", "theirs"):
            shown = [Path(f"/proc/{pid_of(running, name)}/{part}").read_bytes() for part in ("cmdline", "environ")]
            for secret in ("my-own-secret", "from-the-environment", running.launched.token):
                assert secret.encode() not in b"".join(shown)
    assert (tmp_path / "mine.log").read_text().splitlines()[-1] == "the key is ***, the token ***"
    assert "starts" in (tmp_path / "theirs.log").read_text()


async def test_a_process_that_dies_is_started_again_at_the_same_address() -> None:
    told = Events()
    async with apart(odd(), tell=told) as running:
        first, url = pid_of(running), running.url("odd")
        left = await tell(running, "child")
        os.kill(first, signal.SIGKILL)
        with contextlib.suppress(EpisodeFailure):
            await tell(running, "pid")  # on a connection to the dead process: refused at once
        assert await tell(running, "pid") not in (None, first)  # a connection that is new waits
        await up_again(running, "odd", 1)
        assert running.url("odd") == url
        assert not is_alive(left)  # what it had started went with it
    assert told.kinds("odd") == ["died", "up"]
    assert told[0].text == f"odd: process {first} was ended by signal 9; it is started again"


async def test_the_nursery_may_die_too() -> None:
    async with apart(odd("a"), odd("b")) as running:
        nursery = int(Path(f"/proc/{pid_of(running, 'a')}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(nursery, signal.SIGKILL)
        await asyncio.gather(up_again(running, "a", 1), up_again(running, "b", 1))
        assert await tell(running, "pid", "b") == pid_of(running, "b")


async def test_a_process_that_dies_too_often_is_given_up_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "RESTARTS", 2)
    monkeypatch.setattr(supervised, "FIRST_BACKOFF_SECONDS", 0.01)
    told = Events()
    async with apart(odd(fault="leave", once=str(tmp_path / "once")), odd("fine"), tell=told) as running:
        url = running.url("odd")
        os.kill(pid_of(running), signal.SIGKILL)
        async with asyncio.timeout(WAIT_SECONDS):
            while "lost" not in told.kinds("odd"):
                await asyncio.sleep(0.005)
        assert_free(url)
        assert running.processes()["odd"][0].state == "given up"
        assert await tell(running, "pid", "fine") == pid_of(running, "fine")
    assert told.kinds("odd") == ["died", "died", "lost"]
    assert told[-1].text.endswith("ended with exit code 7, for the 3th time in a row; it is not started any more")


@pytest.mark.parametrize("fault", ["refuse", "hang"])
async def test_a_process_that_cannot_come_up_again_is_given_up(tmp_path: Path, fault: str) -> None:
    told = Events()
    settings: dict[str, Any] = {"fault": fault, "once": str(tmp_path / "once")}
    async with apart(odd(**settings), tell=told, spin_up_seconds=8 if fault == "hang" else WAIT_SECONDS) as running:
        os.kill(pid_of(running), signal.SIGKILL)
        async with asyncio.timeout(WAIT_SECONDS):
            while "lost" not in told.kinds("odd"):
                await asyncio.sleep(0.005)
        await freed(running.url("odd"))
    reason = "odd does not like it" if fault == "refuse" else "not ready within 8 s"
    assert reason in told[-1].text


async def test_several_processes_share_the_address_and_the_others_go_on() -> None:
    async with apart(model(workers=3), odd()) as running:
        pids = {pid_of(running, "model", number) for number in range(3)}
        assert await answering(running) == pids
        os.kill(pid_of(running, "model", 1), signal.SIGKILL)
        await up_again(running, "model", 1, worker=1)
        now = {pid_of(running, "model", number) for number in range(3)}
        assert len(now & pids) == 2
        assert await answering(running) == now
        url = running.url("model")
    assert_free(url)
    for pid in pids | now:
        await gone(pid)


async def answering(running: Hosted) -> set[int]:
    """The processes that answer at the address of the model."""
    headers = {"content-type": "application/json", **running.launched.client.auth}

    def ask() -> int:
        asked = urllib.request.Request(f"{running.url('model')}/pid", b'{"text": ""}', headers)
        with urllib.request.urlopen(asked, timeout=WAIT_SECONDS) as answer:
            return int(answer.read())

    return {pid for _ in range(8) for pid in await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(8)))}


async def test_a_port_of_ones_own_is_kept_and_told_when_it_is_taken() -> None:
    async with apart(odd(port=0)) as first:
        port = int(first.url("odd").split(":")[2].split("/")[0])
        for taken in (odd("other", port=port), odd("other", port=port, num_workers=2)):
            with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                async with apart(odd("first"), taken):
                    raise AssertionError
    async with apart(odd(port=port)) as running:
        assert running.url("odd") == f"http://127.0.0.1:{port}/odd"


@pytest.mark.parametrize(
    ("host", "place", "expected"),
    [
        (None, {"bind_host": "0.0.0.0", "advertise_host": "127.0.0.2"}, "http://127.0.0.2:"),
        ("127.0.0.3", {}, "http://127.0.0.3:"),
        ("0.0.0.0", {"advertise_host": "127.0.0.2"}, "http://127.0.0.2:"),
    ],
)
async def test_the_address_that_others_are_told(host: str | None, place: dict[str, Any], expected: str) -> None:
    async with apart(odd(host=host), **place) as running:
        assert running.url("odd").startswith(expected)
        assert await tell(running, "pid") == pid_of(running)


async def test_a_process_that_does_not_leave_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    from gym.launch import process

    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    async with apart(odd()) as running:
        pid = pid_of(running)
        os.kill(pid, signal.SIGSTOP)
    assert not is_alive(pid)


async def test_cancelled_while_they_start() -> None:
    async def use() -> None:
        async with apart(odd("a", fault="hang"), odd("b")):
            raise AssertionError

    task = asyncio.create_task(use())
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
