"""A lent sandbox is its owner's again before anything of it is judged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gym.apis.responses import ResponsesResponse, function_call
from gym.failures import EpisodeFailure
from gym.sandbox.interface import SandboxProvider, SandboxSpec
from gym.servers.base import Call, ServerContext
from gym.servers.contract import (
    EpisodeId,
    SandboxAccess,
    SandboxConnection,
    SeedSessionRequest,
    TaskId,
    VerifyRequest,
    VerifyResponse,
)
from gym.servers.resources import ResourcesServer, ResourcesServerConfig, Session, TaskData, tool
from tests.environment_servers.wiring import World, build, turn
from tests.sandbox.conftest import bubblewrap, docker

BEAT = "echo 0 >beat; setsid sh -c 'while :; do echo 1 >>beat; sleep 0.02; done' >/dev/null 2>&1 </dev/null &"
COUNT = "wc -l <beat; sleep 0.5; wc -l <beat"


class Judge(ResourcesServer[ResourcesServerConfig, TaskData]):
    """Tells what an agent can still do in the sandbox that it was lent, and whether what it left running goes on."""

    async def seed(self, session: Session[TaskData]) -> None:
        provider = self.context.sandboxes("sandbox")
        session.sandbox = await provider.create(SandboxSpec())
        descriptor = session.state["lent"] = session.sandbox.descriptor()
        connection = SandboxConnection(provider_config_ref="sandbox", descriptor=descriptor)
        session.sandbox_access = SandboxAccess(connection=connection, workdir=session.sandbox.workdir)

    @tool
    async def borrow(self, session: Session[TaskData]) -> str:
        """Do what an agent would."""
        borrowed = session.state["borrowed"] = await self._connected(session)
        await borrowed.exec(BEAT)
        return "left something running"

    async def verify(self, session: Session[TaskData], request: VerifyRequest) -> VerifyResponse:
        assert session.sandbox is not None
        before, after = map(int, (await session.sandbox.exec(COUNT)).stdout.split())
        late = [await _outcome(session.state["borrowed"].exec("true")), await _outcome(self._connected(session))]
        names = [str(session.sandbox.descriptor())]
        return VerifyResponse.model_validate({"reward": 1.0, "late": late, "running": after > before, "names": names})

    async def _connected(self, session: Session[TaskData]) -> Any:
        return await self.context.sandboxes("sandbox").connect(session.state["lent"])


class Watching(Judge):
    """Wants to see what was left running."""

    verifies_services: ClassVar[bool] = True


async def _outcome(use: Any) -> str:
    try:
        await use
    except EpisodeFailure as failure:
        return failure.kind
    return "works"


@pytest.fixture(params=[docker, bubblewrap])
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    make: Callable[[Path], SandboxProvider] = request.param
    made = make(tmp_path / "sandboxes")
    yield made
    await made.aclose()


def world(provider: SandboxProvider, kind: type[Judge]) -> World:
    def resources(context: ServerContext) -> Judge:
        return kind(ResourcesServerConfig(), context)

    return build(resources, [turn(function_call("borrow", {}, "c1"))], provider=provider)


@pytest.mark.parametrize("kind", [Judge, Watching])
async def test_a_borrower_is_out_before_the_verdict(provider: SandboxProvider, kind: type[Judge]) -> None:
    made = world(provider, kind)
    told = await made.run({})
    await made.stop()
    assert told.result is not None, told.failure
    row = told.result.model_extra or {}
    assert row["late"] == ["sandbox_lost", "sandbox_lost"]
    assert row["running"] == (kind.verifies_services and provider.capabilities.background)


async def test_it_is_taken_back_once(provider: SandboxProvider) -> None:
    made = world(provider, Watching)
    server = made.resources
    task_id, episode_id = TaskId(taskset="test", task_id="t1"), EpisodeId(rollout_id="r1")
    call = Call()
    seed = SeedSessionRequest(resources_session_id="s1", episode_id=episode_id, task_id=task_id, task_data={})
    await server.seed_session(seed, call)
    session = server.session_of("s1")
    assert isinstance(server, Judge)
    await server.borrow(session)
    names = []
    for text in ("first", "first", "second"):
        response = ResponsesResponse(id=text, output=[])
        body = VerifyRequest.model_validate({"responses_create_params": {"input": "x"}, "response": response})
        verdict = await server.verify_session(body, Call(cookies=dict(call.set_cookies)))
        names += (verdict.model_extra or {})["names"]
    assert len(set(names)) == 1
    assert names[0] != str(session.state["lent"])
    await made.stop()
