"""Run commands in a container to their end, and kill what is left: the processes of one command, or all there are."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import replace
from functools import partial
from typing import Any

from gym.failures import EpisodeFailure
from gym.sandbox.interface import ExecResult
from gym.sandbox.processes import MARK
from gym.sandbox.providers.docker.daemon import DaemonError
from gym.sandbox.providers.docker.order import Container, Order
from gym.sandbox.providers.docker.running import Running
from gym.sandbox.providers.docker.scripts import CLEAR, COMMAND, KILL, as_utf8, wrapper
from gym.sandbox.waiting import uncancelled
from gym.sandbox.words import refused

KILL_SECONDS = 30.0
MAX_WORD_BYTES = 131_071
log = logging.getLogger(__name__)


async def run(container: Container, order: Order) -> ExecResult:
    """Run a command to its end, the end of its time, or the end of the sandbox.

    When this returns or raises, also by cancellation, no process of a command is left that did not end by itself.

    Raises:
        UserError: the image has no such user.
        DaemonError: nothing was started: the container is gone, or the daemon does not answer.
        EpisodeFailure: `sandbox_lost`: the sandbox ended meanwhile, or its processes are not confirmed to be gone.
    """
    body = order.script or (COMMAND if order.stdin is not None else f"{COMMAND} </dev/null")
    words = as_utf8(order.cwd, order.argv, wrapper(body))
    if any(len(word.encode()) > MAX_WORD_BYTES for word in words):
        return refused("argument list too long")
    began = time.monotonic()
    mark = f"{MARK}={container.sandbox_id}:{secrets.token_hex(8)}"
    environment = [f"{name}={value}" for name, value in order.env.items()] + ([mark] if order.killable else [])
    environment += [f"PATH={container.path}"] if order.ours else []

    def prepare(api: Any) -> str:
        # Not in the work directory, which may be gone; the wrapper goes where the order says.
        made = api.exec_create(
            container.reference, words, stdin=True, environment=environment, user=order.user or "", workdir="/"
        )
        return str(made["Id"])

    exec_id = await container.daemon.call(prepare)
    running = Running(container, exec_id, order, partial(kill, container, mark))
    try:
        # Cancelled half-way, it might start after all when nobody looks any more.
        await uncancelled(running.start())
        timed_out = await running.ended()
    except BaseException:
        try:
            await uncancelled(running.abandon())
        except EpisodeFailure as error:
            log.warning("sandbox %s: %s", container.sandbox_id, error)
        raise
    if timed_out:
        await uncancelled(running.abandon())
    result = await running.result(timed_out=timed_out)
    return ExecResult(**result, duration_seconds=time.monotonic() - began)


async def succeed(container: Container, script: str, *words: str, stdin: bytes | None = None) -> None:
    """Run a script of ours as root, which has to succeed.

    Raises:
        DaemonError: as `run`.
        EpisodeFailure: `sandbox_lost`: it failed.
    """
    said = await run(container, Order(["sh", "-c", script, "sh", *words], user="0", stdin=stdin, ours=True))
    if said.exit_code:
        why = said.stderr_text.strip()[-300:]
        raise EpisodeFailure("sandbox_lost", f"sandbox {container.sandbox_id} is broken: {why}")


async def kill(container: Container, mark: str) -> bool:
    """Kill the processes of one command, of whatever user, and confirm that they are gone.

    They are those that carry its mark, what descends from them, and what is in their sessions. One that has wiped its
    environment, lost its parents and made a session of its own is not found; `clear` kills it too.

    Returns:
        Whether the container was there to do so; without it, its processes are gone too.

    Raises:
        EpisodeFailure: `sandbox_lost`: some may be left.
    """
    return await _as_each_user(container, Order(["sh", "-c", KILL, "sh", mark], ours=True))


async def clear(container: Container, *users: int) -> bool:
    """Kill all processes of a container but its first, and confirm that they are gone; see `kill`.

    Args:
        container: Where.
        users: Whose processes there may be that root may not kill.
    """
    return await _as_each_user(container, Order([], script=CLEAR, ours=True), *map(str, users))


async def _as_each_user(container: Container, order: Order, *users: str) -> bool:
    """Run an order that kills as root, and then as those users whose processes it says root may not end or see."""
    pending, done = [*({*users} - {"0"}), "0"], set[str]()
    # The sandbox may have ended; what runs in it has to end all the same.
    killer = replace(container, ended=asyncio.get_running_loop().create_future())
    try:
        async with asyncio.timeout(KILL_SECONDS):
            while pending:
                user = pending.pop()
                done.add(user)
                result = await run(killer, replace(order, user=user, timeout_seconds=KILL_SECONDS, killable=False))
                if result.exit_code:
                    raise EpisodeFailure("sandbox_lost", f"processes could not be ended: {result.stderr_text[-200:]}")
                pending += set(result.stdout_text.split()) - done - set(pending)
            return True
    except DaemonError as error:
        if error.gone:
            return False
        raise EpisodeFailure("sandbox_lost", f"processes could not be ended: {error}") from error
    except TimeoutError as error:
        raise EpisodeFailure("sandbox_lost", "processes could not be ended in time") from error
