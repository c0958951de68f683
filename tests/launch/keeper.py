"""A resources server that keeps a sandbox for each session, and can be made to wait in any step."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gym.sandbox.interface import SandboxProvider
from gym.sandbox.providers.local.provider import LocalProvider
from gym.sandbox.providers.local.settings import LocalProviderConfig
from gym.sandbox.spec import SandboxSpec
from gym.servers.contract import VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData, tool
from tests.contract.world import trip


class KeeperTask(TaskData):
    """`fault` names the step that goes wrong."""

    expected: int = 0
    fault: str = ""


class Keeper(ResourcesServer[ResourcesServerConfig, KeeperTask]):
    """Each session's sandbox runs a command in the background."""

    config_type = ResourcesServerConfig
    task_type = KeeperTask

    async def seed(self, session: Session[KeeperTask]) -> None:
        session.sandbox = await self.context.sandboxes("box").create(SandboxSpec())
        await session.sandbox.upload(b"kept", "file")
        session.state["running"] = asyncio.create_task(session.sandbox.exec("sleep 1000", timeout_seconds=1000))
        await trip(session.task.fault, "seed")

    @tool
    async def increment(self, session: Session[KeeperTask], by: int = 1) -> int:
        """Reads the file of the sandbox."""
        assert session.sandbox is not None
        assert await session.sandbox.read_file("file", 10) == b"kept"
        await trip(session.task.fault, "tool")
        return by

    async def verify(self, session: Session[KeeperTask], request: VerifyRequest) -> VerifyResponse:
        await trip(session.task.fault, "verify")
        return VerifyResponse(reward=1.0)

    async def close(self, session: Session[KeeperTask]) -> None:
        if "running" in session.state:
            session.state["running"].cancel()
        await super().close(session)


def box(root: Path) -> LocalProviderConfig:
    """Settings of sandboxes below a folder; isolated where that works here."""
    return LocalProviderConfig(root=root, allow_unisolated=True)


def opener(root: Path) -> dict[str, SandboxProvider]:
    """The provider of the block `box`."""
    return {"box": LocalProvider(box(root))}
