"""`gym env start`, `stop` and `status`: servers that outlive one run."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gym.cli import state, sweep
from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SOME_FAILED

if TYPE_CHECKING:
    from gym.launch.hosting import Hosted
    from gym.planning.plan import Plan
    from gym.sandbox.spec import Found

STOP_SECONDS = 240.0
"""How long servers may take to stop: their sandboxes are freed meanwhile."""


def start(arguments: Arguments) -> int:
    """Starts servers and keeps them until a signal. Returns the exit code."""
    from gym.composition.compose import compose
    from gym.planning.plan import plan
    from gym.planning.resolve import resolve

    state.refuse_running()
    made = plan(resolve(compose(arguments.overrides(), arguments.files)), datasets=False)
    for note in made.notes:
        print(made.resolved.redactor.text(note), file=sys.stderr)
    left = asyncio.run(_serve(made, as_json=arguments.json))
    return EXIT_SOME_FAILED if left else EXIT_OK


async def _serve(made: Plan, *, as_json: bool) -> list[str]:
    """Serves until a signal; returns what is told of sandboxes that could not be removed."""
    from gym.launch import images
    from gym.launch.planned import serving
    from gym.launch.supervised import Event

    changed, left = asyncio.Event(), list[str]()

    def told(event: Event) -> None:
        if event.kind != "progress":
            print(event.text, file=sys.stderr, flush=True)
        if event.kind == "left":
            left.append(event.text)
        changed.set()

    stopping = _stop_on_signals()
    try:
        digests = await images.prepare(made, told)
        with ExitStack() as after:  # the file goes when the servers have stopped, not before
            async with serving(made, state.FILE.parent / "logs", told) as running:
                started_at = datetime.now(UTC).isoformat(timespec="seconds")
                servers = _described(made, running, started_at, digests)
                after.enter_context(state.written(servers))
                _announce(servers, as_json=as_json)
                while True:
                    await changed.wait()
                    changed.clear()
                    state.rewrite(_described(made, running, started_at, digests))
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
        print("stopped", file=sys.stderr)
    return left


def _stop_on_signals() -> asyncio.Event:
    """Cancels the current task on the first signal, and leaves at once on the second. Returns the event of the first.

    The servers' own cleanups are shielded from the cancellation.
    """
    loop, task, stopping = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None

    def stop() -> None:
        if stopping.is_set():
            os.write(2, b"left at once; sandboxes may be left behind\n")
            os._exit(EXIT_INTERRUPTED)
        stopping.set()
        print("stopping (once more to leave at once)", file=sys.stderr, flush=True)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    return stopping


def _described(made: Plan, running: Hosted, started_at: str, images: dict[str, str]) -> state.Servers:
    from gym.rollouts.identity import digest

    identity = state.identity_of(made)
    ticks = state.started_ticks(os.getpid())
    assert ticks is not None
    processes = running.processes()
    return state.Servers(
        pid=os.getpid(),
        ticks=ticks,
        started_at=started_at,
        base_url=running.launched.base_url,
        token=running.launched.token,
        instances={
            item.name: {
                "type": item.type,
                "implementation": item.implementation,
                "url": running.url(item.name),
                "processes": [asdict(one) for one in processes.get(item.name, [])],
            }
            for item in made.instances.values()
        },
        identity=identity,
        digest=digest(identity),
        operational=state.operational_of(made),
        images=images,
    )


def _announce(servers: state.Servers, *, as_json: bool) -> None:
    if as_json:
        print_json(state.as_shown(servers))
    else:
        for item in servers.instances.values():
            print(f"{item['url']}  {item['type']}  {item['implementation']}")
    sys.stdout.flush()
    print(f"running as process {servers.pid}; Ctrl-C or `gym env stop` stops it", file=sys.stderr, flush=True)


def stop(arguments: Arguments) -> int:
    """Stops the servers of this folder, and waits until they are gone. Returns the exit code."""
    found = state.read()
    outcome = "not running" if found is None else _end(found)
    if arguments.json:
        print_json({"outcome": outcome, "pid": found.pid if found else None})
    elif found is None:
        print("no servers run in this folder", file=sys.stderr)
    else:
        print(f"process {found.pid}: {outcome}", file=sys.stderr)
    return EXIT_SOME_FAILED if outcome.startswith("still") else EXIT_OK


def _end(servers: state.Servers) -> str:
    try:
        process = os.pidfd_open(servers.pid)
    except ProcessLookupError:
        state.FILE.unlink(missing_ok=True)
        return "was gone already"
    try:
        # The handle is open, so the number cannot be given to another process between this check and the signal.
        if not servers.is_process_alive:
            state.FILE.unlink(missing_ok=True)
            return "was gone already"
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], STOP_SECONDS)
        return "stopped" if ended else f"still stopping after {STOP_SECONDS:g} s"
    finally:
        os.close(process)


def status(arguments: Arguments) -> int:
    """Shows the running servers. Returns 0 where all answer, else 1."""
    found = state.read()
    if found is None or not found.is_process_alive:
        if arguments.json:
            print_json({"running": False})
        elif found is None:
            print("no servers run in this folder", file=sys.stderr)
        else:
            print(f"process {found.pid} is gone; its servers with it", file=sys.stderr)
        return EXIT_SOME_FAILED
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = dict(zip(found.instances, pool.map(found.answers, found.instances), strict=True))
    sandboxes = _sandboxes(found)
    if arguments.json:
        listed = [asdict(one) for one in sandboxes]
        print_json({"running": True, **state.as_shown(found), "answers": answers, "sandboxes": listed})
    else:
        rows = [
            [name, item["type"], item["implementation"], _processes(found, item), item["url"], _state(answers[name])]
            for name, item in found.instances.items()
        ]
        print_table(["instance", "type", "implementation", "process", "url", "state"], rows)
        if sandboxes:
            print()
            print_table(sweep.HEAD, [sweep.shown_row(one) for one in sandboxes])
        print(f"process {found.pid}, since {found.started_at}", file=sys.stderr)
    return EXIT_OK if all(answers.values()) else EXIT_SOME_FAILED


def _sandboxes(servers: state.Servers) -> list[Found]:
    """The sandboxes on this machine that the servers have made."""
    from gym.sandbox.sweep import found_all

    pids = {servers.pid} | {one["pid"] for item in servers.instances.values() for one in item["processes"]}
    return [one for item in asyncio.run(found_all()) for one in item.found if one.pid in pids]


def _state(answers: bool) -> str:
    return "up" if answers else "down"


def _processes(found: state.Servers, item: Mapping[str, Any]) -> str:
    """The processes of an instance; one without any of its own runs in the process that started it."""
    texts = []
    for process in item["processes"]:
        number = str(process["pid"] or process["state"])
        texts.append(number + (f" ({process['restarts']}x again)" if process["restarts"] else ""))
    return ", ".join(texts) or str(found.pid)
