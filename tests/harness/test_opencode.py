"""What only OpenCode does, with the real program: sessions that continue, its prompts and its permissions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.sandbox.interface import SandboxProvider
from gym.servers.base import Call, ServerError
from gym.servers.contract import ACTIVATION_HEADER, INVOCATION_HEADER
from responses_api_agents.opencode_agent.app import OpenCodeAgent
from tests.harness.bench import Bench, grant, on_the_bench
from tests.harness.fake_model import FakeModel, mcp, say, shell
from tests.sandbox.conftest import bubblewrap, docker

CONTINUE = {"mode": "resume_harness_session"}
SANDBOXES = {"local": bubblewrap, "docker": docker}


@pytest.fixture
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """A kind of sandbox; local by default."""
    made = SANDBOXES[getattr(request, "param", "local")](tmp_path / "sandboxes")
    yield made
    await made.aclose()


async def go_on(bench: Bench, index: int, text: str, **params: Any) -> ResponsesResponse:
    """One more activation of the session."""
    request = ResponsesRequest.model_validate({"input": text, **params})
    return await bench.agent.activate(request, Call(headers={ACTIVATION_HEADER: str(index)}, cookies=bench.cookies))


def said(request: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of what a request to the model has."""
    return [(item["role"], item["content"]) for item in request["messages"] if isinstance(item.get("content"), str)]


@pytest.mark.parametrize("provider", SANDBOXES, indirect=True)
@pytest.mark.parametrize("sandbox", ["borrowed", "owned"])
async def test_a_session_goes_on(provider: SandboxProvider, sandbox: str) -> None:
    turns = [[say("Yes."), shell("echo $((40 + 2)) > answer.txt")], [say("Written.")], [shell("cat answer.txt")]]
    owned = {"sandbox_access": None} if sandbox == "owned" else {}
    with FakeModel([*turns, [say("It says 42.")]]) as model:
        async with on_the_bench(OpenCodeAgent, model, provider, sandbox_provider="sandbox") as bench:
            await bench.seed(continuation=CONTINUE, **owned)
            first = await go_on(bench, 1, "write it", instructions="BE {env:HOME}")
            assert await go_on(bench, 1, "write it", instructions="BE {env:HOME}") == first
            with pytest.raises(ServerError, match="keeps the instructions of its first activation"):
                await go_on(bench, 2, "read it", instructions="be another")
            second = await go_on(bench, 2, "read it")
            left = await bench.sandbox.exec("ls -A / | grep gym- || true")
            closed = await bench.close()
            if sandbox == "borrowed":
                assert ".gym-" in left.stdout_text
                assert ".gym-" not in (await bench.sandbox.exec("ls -A /")).stdout_text
    assert (first.output_text, second.output_text) == ("Yes.\nWritten.", "It says 42.")
    assert [item["type"] for item in second.output] == ["function_call", "function_call_output", "message"]
    assert "42" in second.output[1]["output"]
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.total_tokens == second.usage.total_tokens == 2100

    last = said(model.model_requests[-1])
    assert [text for role, text in last if role == "user"] == ["write it", "read it"]
    assert "BE {env:HOME}" in last[0][1]

    assert closed.agent_observations is not None
    invocations = [item for item in closed.agent_observations["records"] if item["kind"] == "agent_invocation"]
    assert [item["activation"] for item in invocations] == [1, 2]
    assert len({item["harness_session_id"] for item in invocations}) == 1
    assert [item["conversation"] for item in invocations] == [first.output, second.output]
    assert closed.agent_observations["counters"] == {"tool_calls": 2, "model_calls": 4}
    ids = [headers.get(INVOCATION_HEADER) for _, headers, _ in model.requests]
    assert ids == [item["invocation_id"] for item in invocations for _ in range(2)]
    assert closed.cleanup_confirmed is True


async def test_a_session_goes_on_after_its_time_was_up(provider: SandboxProvider) -> None:
    with FakeModel([[say("Ready.")], [say("Wait."), shell("sleep 300")], [say("I am back.")]]) as model:
        async with on_the_bench(OpenCodeAgent, model, provider) as bench:
            await bench.seed(continuation=CONTINUE)
            begun = time.monotonic()
            await go_on(bench, 1, "ready?")
            enough = 5 + 4 * (time.monotonic() - begun)
            bench.agent.config = bench.agent.config.model_copy(update={"timeout_seconds": enough})
            second = await go_on(bench, 2, "wait")
            third = await go_on(bench, 3, "go on")
            await bench.close()
    assert (second.status, second.incomplete_details) == ("incomplete", {"reason": "timeout"})
    assert [item["type"] for item in second.output] == ["message", "function_call"]
    assert (third.status, third.output_text) == ("completed", "I am back.")


async def test_a_system_prompt_takes_the_place_of_its_own(provider: SandboxProvider) -> None:
    prompt = "You are {env:HOME}, {file:/etc/passwd} and $HOME.\n---\n# Not a title"
    with FakeModel([[say("Hello.")]]) as model:
        async with on_the_bench(
            OpenCodeAgent, model, provider, system_prompt_mode="replace", system_prompt=prompt
        ) as bench:
            await bench.run("Who are you?")
    system, user = said(model.model_requests[0])
    assert system[1].startswith(prompt)
    assert "you are opencode" not in system[1].lower()
    assert user == ("user", "Who are you?")


async def test_the_files_of_the_task_are_read_and_its_configuration_is_not(provider: SandboxProvider) -> None:
    with FakeModel([[shell("echo ${XDG_DATA_HOME#$HOME}; echo $PATH; rg --version | head -n 1")]]) as model:
        async with on_the_bench(OpenCodeAgent, model, provider) as bench:
            for name, text in (("AGENTS.md", "RULE 7"), ("opencode.json", '{"permission": {"bash": "deny"}}')):
                await bench.sandbox.upload(text.encode(), f"{bench.sandbox.workdir}/{name}")
            response, _ = await bench.run()
    assert "RULE 7" in said(model.model_requests[0])[0][1]
    assert response.output[1]["output"].startswith("/.local/share\n")
    assert "opencode" not in response.output[1]["output"]


async def test_a_broken_connection_to_required_tools_is_made_again(provider: SandboxProvider) -> None:
    with FakeModel([[mcp("lookup_value", key="alpha")]], lost=1) as model:
        async with on_the_bench(OpenCodeAgent, model, provider) as bench:
            await bench.seed(tool_accesses=[grant(model)])
            response = await bench.activate()
    assert model.lost == 0
    assert "value-of-alpha" in response.output[1]["output"]


async def test_tools_are_withheld_by_rules(provider: SandboxProvider) -> None:
    rules = {"*": "deny", "edit": {"*": "deny"}, "bash": {"*": "deny", "ls": "allow"}, "grep": "allow"}
    turns = [[shell("id")], [{"call": "grep", "arguments": {"pattern": "needle"}}], [say("Well.")]]
    with FakeModel(turns) as model:
        async with on_the_bench(OpenCodeAgent, model, provider, opencode_config={"permission": rules}) as bench:
            await bench.sandbox.upload(b"a needle\n", f"{bench.sandbox.workdir}/hay.txt")
            response, observed = await bench.run()
    assert {tool["function"]["name"] for tool in model.model_requests[0]["tools"]} == {"bash", "grep"}
    outputs = [item["output"] for item in response.output if item["type"] == "function_call_output"]
    assert "permission" in outputs[0]
    assert "hay.txt" in outputs[1]
    calls = [item["status"] for item in observed["records"] if item["kind"] == "tool_call"]
    assert (response.output_text, calls) == ("Well.", ["failed", "completed"])


@pytest.mark.parametrize(("fault", "kind"), [("500", "provider_error"), ("hang", "provider_unreachable")])
async def test_it_tries_again_as_often_as_it_is_told(provider: SandboxProvider, fault: str, kind: str) -> None:
    with FakeModel(fault=fault) as model:
        settings: dict[str, Any] = {"model_retries": 1, "stream_idle_timeout_seconds": 1}
        async with on_the_bench(OpenCodeAgent, model, provider, **settings) as bench:
            await bench.seed()
            with pytest.raises(EpisodeFailure) as failed:
                await bench.activate()
    assert failed.value.kind == kind, failed.value.message
    assert len(model.model_requests) == 2
