"""A counter for each session: the smallest task whose reward depends on state that the tools change."""

from __future__ import annotations

from pydantic import Field

from gym.servers.contract import VerifyRequest, VerifyResponse
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData, tool


class CounterTask(TaskData):
    """Where the counter starts, and where it must stand at the end."""

    initial_count: int = Field(description="The counter's value when the episode starts.")
    expected_count: int = Field(description="The value that earns the reward.")


class ExampleSessionStateMgmt(ResourcesServer[ResourcesServerConfig, CounterTask]):
    """Rewards 1.0 when the session's counter stands at `expected_count`, else 0.0; what the agent says is not read."""

    task_type = CounterTask

    async def seed(self, session: Session[CounterTask]) -> None:
        """Sets the counter to its start."""
        session.state["count"] = session.task.initial_count

    @tool
    async def increment_counter(self, session: Session[CounterTask], count: int) -> dict[str, bool]:
        """Add a number to the counter."""
        session.state["count"] += count
        return {"success": True}

    @tool
    async def get_counter_value(self, session: Session[CounterTask]) -> dict[str, int]:
        """Read the counter."""
        return {"count": session.state["count"]}

    async def verify(self, session: Session[CounterTask], request: VerifyRequest) -> VerifyResponse:  # noqa: ARG002
        """Compares the counter with the expected value."""
        return VerifyResponse(reward=float(session.state["count"] == session.task.expected_count))
