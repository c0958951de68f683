"""The servers of a plan, started each where it belongs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gym.launch.hosting import Apart, Hosted, Place, hosted
from gym.launch.in_process import Instance, calm_collector
from gym.launch.slices import Part
from gym.launch.supervised import Event
from gym.planning.hosting import blocks_of
from gym.planning.plan import Plan
from gym.servers.client import Client


@asynccontextmanager
async def started(plan: Plan, logs: Path, tell: Callable[[Event], None]) -> AsyncIterator[Client]:
    """As `serving`; gives the client that reaches the servers."""
    async with serving(plan, logs, tell) as running:
        yield running.launched.client


@asynccontextmanager
async def serving(plan: Plan, logs: Path, tell: Callable[[Event], None]) -> AsyncIterator[Hosted]:
    """Starts the plan's servers, each where it belongs, and stops them and their sandboxes at the end.

    Args:
        logs: Folder for the logs of servers with processes of their own.
        tell: Is told what happens to these.
    """
    settings = plan.resolved.settings
    host = own_address() if settings.use_absolute_ip else settings.default_host
    place = Place(
        bind_host=settings.bind_host or host,
        advertise_host=host,
        port=settings.port,
        logs=logs,
        redact=plan.resolved.redactor.text,
        spin_up_seconds=settings.server_spinup_timeout_seconds,
        tell=tell,
    )
    here, apart = _placed(plan)
    try:
        async with hosted(here, apart, sandboxes=plan.providers.__getitem__, place=place) as running:
            calm_collector()
            yield running
    finally:
        for provider in plan.providers.values():
            await provider.aclose()


def own_address() -> str:
    """This machine's address as other machines see it."""
    import socket

    return socket.gethostbyname(socket.gethostname())


def _placed(plan: Plan) -> tuple[list[Instance], list[Apart]]:
    """The instances of this process, and those with processes of their own."""
    here: list[Instance] = []
    apart: list[Apart] = []
    for item in plan.instances.values():
        instance = Instance(item.name, item.type, item.server_class, item.config)
        how = plan.hosting[item.name]
        if not how.is_apart:
            here.append(instance)
            continue
        blocks = {name: plan.blocks[name] for name in blocks_of(plan, item)}
        parts = {name: Part.of(block.component_class, block.config, name) for name, block in blocks.items()}
        apart.append(Apart(instance, parts, how.requirements))
    return here, apart
