"""Where a harness runs: borrowed or owned, and who ends it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse, message
from gym.failures import EpisodeFailure
from gym.sandbox.interface import Sandbox, SandboxProvider, SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.sandbox.spec_config import SandboxConfig
from gym.servers.agent import AgentServer, AgentSession
from gym.servers.base import Call, ServerContext
from gym.servers.client import Client, Directory
from gym.servers.contract import AgentCloseRequest, AgentCloseResponse, AgentSessionRequest
from gym.servers.sandbox_access import AgentSandbox, SandboxedAgentConfig, take_sandbox
from gym.servers.sessions import Signer

EPISODE = {"rollout_id": "r1"}


class Shell(AgentServer[SandboxedAgentConfig]):
    """Runs its input as a command; `faults` name the steps that go wrong."""

    config_type = SandboxedAgentConfig
    needs_sandbox = True
    faults: frozenset[str] = frozenset()

    async def open(self, session: AgentSession) -> None:
        place = await take_sandbox(self, self.config, session)
        session.state["place"] = place
        if "setup" in self.faults:
            raise EpisodeFailure("agent_error", "the harness could not be installed")

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        place = session.state["place"]
        ran = await place.sandbox.exec(str(request.input), cwd=place.workdir)
        return ResponsesResponse(output=[message("assistant", ran.stdout_text)])

    async def close(self, session: AgentSession) -> None:
        if "close" in self.faults:
            raise EpisodeFailure("sandbox_lost", "the evidence could not be read")


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    metadata = {"team": "a", "rollout": "none", "purpose": "default"}
    made = LocalProvider(
        LocalProviderConfig(isolation="none", allow_unisolated=True, root=tmp_path, default_metadata=metadata)
    )
    yield made
    await made.aclose()


Make = Callable[..., Shell]


@pytest.fixture
def make(provider: LocalProvider) -> Make:
    def build(**settings: Any) -> Shell:
        providers: dict[str, SandboxProvider] = {"sandbox": provider}
        context = ServerContext("shell", Client(Directory(), "token"), Signer(b"s"), providers.__getitem__)
        return Shell(SandboxedAgentConfig.model_validate(settings), context)

    return build


async def seed(server: Shell, lent: Sandbox | None = None, ref: str = "sandbox", workdir: str = "") -> Call:
    body: dict[str, Any] = {"agent_session_id": "a1", "episode_id": EPISODE}
    body["task_id"] = {"taskset": "t", "task_id": "1"}
    if lent is not None:
        connection = {"kind": "direct", "provider_config_ref": ref, "descriptor": lent.descriptor()}
        body["sandbox_access"] = {"connection": connection, "workdir": workdir or lent.workdir}
    call = Call()
    await server.seed_session(AgentSessionRequest.model_validate(body), call)
    return call


async def run(server: Shell, seeded: Call, command: str) -> str:
    answer = await server.activate(ResponsesRequest(input=command), Call(cookies=seeded.set_cookies))
    return answer.output_text


async def close(server: Shell) -> AgentCloseResponse:
    body = AgentCloseRequest.model_validate({"agent_session_id": "a1", "episode_id": EPISODE})
    return await server.close_session(body, Call())


def records(root: Path) -> list[dict[str, Any]]:
    """What is known of the sandboxes that there are."""
    return [json.loads(path.read_text()) for path in root.glob("*/sandbox.json")]


OWN = {"sandbox_provider": "sandbox", "sandbox_config": {"metadata": {"purpose": "mine", "session": "none"}}}


async def test_a_lent_sandbox_is_used_and_left_alone(make: Make, provider: LocalProvider) -> None:
    lent = await provider.create(SandboxSpec())
    await lent.exec("mkdir inner; echo hello > inner/file")
    server = make(**OWN)
    seeded = await seed(server, lent, workdir=f"{lent.workdir}/inner")
    assert await run(server, seeded, "cat file; echo done > work") == "hello\n"
    await close(server)
    assert (await lent.read_file("inner/work", 10)) == b"done\n"


async def test_a_sandbox_of_the_agents_own_has_labels_and_is_stopped_at_close(make: Make, tmp_path: Path) -> None:
    server = make(**OWN)
    seeded = await seed(server)
    assert await run(server, seeded, "echo $((6 * 7))") == "42\n"
    (record,) = records(tmp_path)
    assert record["labels"] == {"team": "a", "purpose": "mine", "agent": "shell", "session": "a1", "rollout": "r1"}
    assert record["network"] == "open"
    await close(server)
    assert records(tmp_path) == []


async def test_without_any_sandbox_the_seed_fails_and_says_what_to_set(make: Make) -> None:
    with pytest.raises(EpisodeFailure) as caught:
        await seed(make())
    assert (caught.value.kind, caught.value.stage) == ("configuration", "seed")
    assert caught.value.message == (
        "shell needs a sandbox: the task's Resources server lends none, and the agent has no `sandbox_provider`"
    )


async def test_a_provider_that_is_not_here_is_a_fault_of_the_configuration(make: Make, provider: LocalProvider) -> None:
    lent = await provider.create(SandboxSpec())
    for settings, kept in ((OWN | {"sandbox_provider": "boxes"}, None), ({}, lent)):
        with pytest.raises(EpisodeFailure, match="the sandbox provider block `boxes`, which") as caught:
            await seed(make(**settings), kept, ref="boxes")
        assert caught.value.kind == "configuration"


async def test_what_the_provider_cannot_make_is_a_fault_of_the_configuration(make: Make) -> None:
    with pytest.raises(EpisodeFailure, match="image") as caught:
        await seed(make(sandbox_provider="sandbox", sandbox_config={"image": "some/image"}))
    assert caught.value.kind == "configuration"


async def test_a_lent_sandbox_that_is_gone_is_lost(make: Make, provider: LocalProvider) -> None:
    lent = await provider.create(SandboxSpec())
    await lent.stop()
    with pytest.raises(EpisodeFailure) as caught:
        await seed(make(), lent)
    assert caught.value.kind == "sandbox_lost"


async def test_a_failed_setup_stops_the_agents_own_sandbox(make: Make, tmp_path: Path) -> None:
    server = make(**OWN)
    server.faults = frozenset({"setup"})
    with pytest.raises(EpisodeFailure, match="could not be installed"):
        await seed(server)
    assert (records(tmp_path), server.sessions) == ([], {})


async def test_a_failed_setup_leaves_a_lent_sandbox_alone(make: Make, provider: LocalProvider) -> None:
    lent = await provider.create(SandboxSpec())
    server = make()
    server.faults = frozenset({"setup"})
    with pytest.raises(EpisodeFailure, match="could not be installed"):
        await seed(server, lent)
    assert (await lent.exec("true")).exit_code == 0


async def test_a_close_that_failed_keeps_the_sandbox_for_the_next_try(make: Make, tmp_path: Path) -> None:
    server = make(**OWN)
    await seed(server)
    server.faults = frozenset({"close"})
    with pytest.raises(EpisodeFailure, match="the evidence could not be read"):
        await close(server)
    assert len(records(tmp_path)) == 1
    server.faults = frozenset()
    await close(server)
    assert records(tmp_path) == []


class Sticky:
    """A sandbox that cannot be left the first time."""

    stops = 0

    async def stop(self) -> None:
        self.stops += 1
        if self.stops == 1:
            raise EpisodeFailure("cleanup_failed", "it sticks")


async def test_a_failed_release_can_be_tried_again_and_what_is_known_stays_known(make: Make) -> None:
    server = make(**OWN)
    await seed(server)
    session = server.sessions["a1"]
    assert session.sandbox is not None
    await session.sandbox.release()
    sticky = Sticky()
    session.sandbox = AgentSandbox(cast(Sandbox, sticky), "/work", owned=False)
    session.cleanup_confirmed = False
    with pytest.raises(EpisodeFailure, match="it sticks"):
        await close(server)
    closed = await close(server)
    assert (sticky.stops, closed.cleanup_confirmed) == (2, False)


def test_a_sandbox_config_becomes_a_spec() -> None:
    config = SandboxConfig.model_validate({"ttl_s": 60, "resources": {"cpu": 2}, "metadata": {"a": "1", "b": "1"}})
    spec = config.spec({"b": "2"})
    assert (spec.ttl_seconds, spec.resources.cpu, spec.network) == (60, 2, "none")
    assert spec.labels == {"a": "1", "b": "2"}
