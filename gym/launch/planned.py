"""The servers of a plan, started each where it belongs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gym.capture.store import FOLDER
from gym.launch.closing import close_all
from gym.launch.hosting import Apart, Hosted, Place, hosted
from gym.launch.in_process import Instance, calm_collector
from gym.launch.slices import Part
from gym.launch.supervised import Event
from gym.planning.hosting import blocks_of
from gym.planning.plan import Plan
from gym.sandbox.spec import Common, Mount
from gym.servers.client import Client

if TYPE_CHECKING:
    from gym.harness.recipes import Recipe


@asynccontextmanager
async def started(plan: Plan, logs: Path, tell: Callable[[Event], None]) -> AsyncIterator[Client]:
    """As `serving`; gives the client that reaches the servers."""
    async with serving(plan, logs, tell) as running:
        yield running.launched.client


@asynccontextmanager
async def serving(plan: Plan, logs: Path, tell: Callable[[Event], None]) -> AsyncIterator[Hosted]:
    """Starts the plan's servers, each where it belongs, and stops them and their sandboxes at the end.

    Args:
        logs: Folder for the logs of servers with processes of their own. The record of model calls is beside it.
        tell: Is told what happens to these, and of sandboxes that could not be removed.
    """
    settings = plan.resolved.settings
    host = own_address() if settings.use_absolute_ip else settings.default_host
    place = Place(
        bind_host=settings.bind_host or host,
        advertise_host=host,
        port=settings.port,
        logs=logs,
        redact=plan.resolved.redactor.text,
        records=logs.parent / FOLDER if settings.capture else None,
        secrets=plan.resolved.redactor.values,
        spin_up_seconds=settings.server_spinup_timeout_seconds,
        tell=tell,
    )
    try:
        common = Common({"run": str(logs.parent)}, await _runtimes(plan, tell))
        for provider in plan.providers.values():
            provider.common = common
        here, apart = _placed(plan, common)
        async with hosted(here, apart, sandboxes=plan.providers.__getitem__, place=place) as running:
            calm_collector()
            yield running
    finally:
        for left in await close_all(plan.providers):
            tell(left)


def own_address() -> str:
    """This machine's address as other machines see it."""
    import socket

    return socket.gethostbyname(socket.gethostname())


async def _runtimes(plan: Plan, tell: Callable[[Event], None]) -> tuple[Mount, ...]:
    """Has the runtimes of the plan's harnesses ready; returns the mounts by which any sandbox shows them.

    Raises:
        UserError: What cannot be installed.
    """
    from gym.harness import bundles

    instances = list(plan.instances.values())
    loop = asyncio.get_running_loop()

    def progress(recipe: Recipe, what: str) -> None:
        loop.call_soon_threadsafe(tell, Event("note", recipe.name, f"{recipe}: {what}"))

    await asyncio.to_thread(bundles.prefetch, instances, progress)
    return bundles.mounts(instances)


def _placed(plan: Plan, common: Common) -> tuple[list[Instance], list[Apart]]:
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
        apart.append(Apart(instance, parts, how.requirements, common))
    return here, apart
