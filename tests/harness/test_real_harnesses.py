"""Every harness that ships, as the real program in a sandbox, against a scripted model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gym.failures import EpisodeFailure
from gym.harness.agent import HarnessAgent
from gym.sandbox.interface import SandboxProvider
from responses_api_agents.claude_code_agent.app import ClaudeCodeAgent
from responses_api_agents.codex_agent.app import CodexAgent
from responses_api_agents.mini_swe_agent.app import MiniSweAgent
from responses_api_agents.opencode_agent.app import OpenCodeAgent
from responses_api_agents.pi_agent.app import PiAgent
from tests.harness.bench import grant, on_the_bench
from tests.harness.fake_model import FakeModel, mcp, say, shell
from tests.sandbox.conftest import bubblewrap, docker

HARNESSES: list[type[HarnessAgent[Any]]] = [
    ClaudeCodeAgent,
    CodexAgent,
    MiniSweAgent,
    OpenCodeAgent,
    PiAgent,
]
SECONDS_OF_A_TURN: dict[type[HarnessAgent[Any]], float] = {OpenCodeAgent: 20}
"""For those that take long to start."""

TOKEN = "token-of-the-mcp-server"
SANDBOXES = {"local": bubblewrap, "docker": docker}
every_harness = pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.harness)
ENDING: dict[type[HarnessAgent[Any]], list[str]] = {MiniSweAgent: ["function_call", "function_call_output"]}
"""What a harness does after its last words."""

REMOVE = "mkdir -p a/b; for name in a; do X=1 rm -rf $name; done; ls -d a || echo none"
EDIT = [
    [{"think": "let me see"}, say("Writing."), shell(f"echo 42 > answer.txt; {REMOVE}; cat answer.txt")],
    [say("All done.")],
]


@pytest.fixture(params=SANDBOXES)
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """Each kind of sandbox that harnesses are tested in."""
    made = SANDBOXES[request.param](tmp_path / "sandboxes")
    yield made
    await made.aclose()


@every_harness
async def test_a_text_is_answered(harness: type[HarnessAgent[Any]], provider: SandboxProvider) -> None:
    with FakeModel([[say("It is 42.")]]) as model:
        async with on_the_bench(harness, model, provider, system_prompt="SYSTEM {env:HOME}") as bench:
            prompt = '-- What is it?\n@README.md {file:/etc/passwd} $HOME `id` "it\'s" \U0001f600 \x7f'
            response, observed = await bench.run(prompt, instructions="INSTRUCTIONS $HOME")
    assert (response.status, response.output_text) == ("completed", "It is 42.")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (1000, 50)
    assert response.usage.input_tokens_details == {"cached_tokens": 400}
    (request,) = model.model_requests
    sent = _texts(request)
    assert any(prompt in text for text in sent)
    assert any("SYSTEM {env:HOME}\n\nINSTRUCTIONS $HOME" in text for text in sent)
    invocation, *_ = observed["records"]
    assert (invocation["status"], invocation["activation"], observed["gaps"]) == ("completed", 1, [])


@every_harness
async def test_files_are_edited_and_the_trajectory_tells_how(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider
) -> None:
    with FakeModel(EDIT) as model:
        async with on_the_bench(harness, model, provider) as bench:
            response, observed = await bench.run()
            assert await bench.text("answer.txt") == "42\n"
            left = await bench.sandbox.exec("ls -A . / /tmp")
    kinds = [item["type"] for item in response.output]
    assert kinds[:5] == ["reasoning", "message", "function_call", "function_call_output", "message"]
    assert kinds[5:] == ENDING.get(harness, [])
    call, result = response.output[2:4]
    assert call["call_id"] == result["call_id"] == "call_0_2"
    assert "none\n42" in result["output"].replace("\\n", "\n")
    assert response.usage is not None
    assert response.usage.total_tokens == 2100
    invocation, tool_call, *_ = observed["records"]
    assert invocation["conversation"] == response.output
    assert [ref["response_id"] for ref in invocation["model_calls"]] != ["", ""]
    assert (tool_call["tool_call_id"], tool_call["status"]) == ("call_0_2", "completed")
    assert tool_call["duration_ms"] is not None
    assert observed["counters"] == {"tool_calls": kinds.count("function_call"), "model_calls": 2}
    assert ".gym-" not in left.stdout_text


@every_harness
async def test_granted_tools_are_called(harness: type[HarnessAgent[Any]], provider: SandboxProvider) -> None:
    with FakeModel([[mcp("lookup_value", key="alpha")]], token=TOKEN) as model:
        async with on_the_bench(harness, model, provider) as bench:
            await bench.seed(tool_accesses=[grant(model, "task-tools")])
            response = await bench.activate()
            closed = await bench.close()
    call, result, *_ = response.output
    assert re.fullmatch("bash|(mcp__)?task[_-]tools__?lookup_value", call["name"])
    assert "value-of-alpha" in result["output"]
    assert TOKEN not in closed.model_dump_json()


@every_harness
async def test_required_tools_that_cannot_be_reached_fail_the_episode(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider
) -> None:
    with FakeModel(token=TOKEN) as model:
        async with on_the_bench(harness, model, provider) as bench:

            async def episode() -> None:
                await bench.seed(tool_accesses=[grant(model, token="a-token-that-is-wrong")])
                await bench.activate()

            with pytest.raises(EpisodeFailure) as failed:
                await episode()
            assert not model.model_requests
    assert failed.value.kind == "tool_server_error", failed.value.message


@every_harness
async def test_optional_tools_may_fail(harness: type[HarnessAgent[Any]], provider: SandboxProvider) -> None:
    with FakeModel(token=TOKEN) as model:
        async with on_the_bench(harness, model, provider) as bench:
            grants = [grant(model), grant(model, "other", "a-token-that-is-wrong", required=False)]
            await bench.seed(tool_accesses=grants)
            assert (await bench.activate()).status == "completed"
            closed = await bench.close()
    assert closed.agent_observations is not None
    (gap,) = closed.agent_observations["gaps"]
    assert "MCP server" in gap


@every_harness
async def test_a_history_becomes_a_transcript(harness: type[HarnessAgent[Any]], provider: SandboxProvider) -> None:
    history = [
        {"role": "system", "content": "SYSTEM"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "second"}]},
        {"role": "user", "content": "third"},
    ]
    with FakeModel() as model:
        async with on_the_bench(harness, model, provider) as bench:
            await bench.run(history)
    wanted = "<conversation>\n[user]\nfirst\n[assistant]\nsecond\n</conversation>\n\nthird"
    assert any(wanted in text for text in _texts(model.model_requests[0]))


@every_harness
async def test_bad_calls_are_the_models_business(harness: type[HarnessAgent[Any]], provider: SandboxProvider) -> None:
    turns = [[{"call": "no_such_tool"}], [{"broken_shell": '{"comm'}], [say("I give up.")]]
    with FakeModel(turns) as model:
        async with on_the_bench(harness, model, provider) as bench:
            response, _ = await bench.run()
    calls = [item for item in response.output if item["type"] == "function_call"]
    assert calls[0]["name"] == "no_such_tool"
    assert calls[1]["malformed_arguments"] is True
    assert response.output_text == "I give up."


@every_harness
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("401", "provider_refused"),
        ("429", "provider_rate_limited"),
        ("500", "provider_error"),
        ("context", "context_length_exceeded"),
        ("malformed", "malformed_answer"),
        ("truncated", "malformed_answer"),
    ],
)
async def test_a_model_that_fails_fails_the_episode(
    harness: type[HarnessAgent[Any]], fault: str, kind: str, provider: SandboxProvider
) -> None:
    with FakeModel(EDIT, fault=fault, fault_at=1) as model:
        async with on_the_bench(harness, model, provider, model_retries=0) as bench:
            await bench.seed()
            with pytest.raises(EpisodeFailure) as failed:
                await bench.activate()
            closed = await bench.close()
    assert failed.value.kind == kind, failed.value.message
    # Where the conversation is too long, a harness may try to shorten it.
    assert len(model.model_requests) == 2 or fault == "context"
    assert closed.agent_observations is not None
    invocation = closed.agent_observations["records"][0]
    assert (invocation["status"], invocation["error_type"]) == ("failed", kind)
    assert invocation["error_source"] == "harness"
    assert [item["type"] for item in invocation["conversation"]][2:4] == ["function_call", "function_call_output"]


@every_harness
async def test_an_empty_answer_is_graded(harness: type[HarnessAgent[Any]], provider: SandboxProvider) -> None:
    with FakeModel(fault="empty") as model:
        async with on_the_bench(harness, model, provider) as bench:
            response, _ = await bench.run()
    assert (response.status, response.output) == ("completed", [])


@every_harness
async def test_an_answer_that_is_cut_is_graded(harness: type[HarnessAgent[Any]], provider: SandboxProvider) -> None:
    with FakeModel([[say("It is 4")]], fault="length") as model:
        async with on_the_bench(harness, model, provider, model_retries=0) as bench:
            response, _ = await bench.run()
    assert (response.status, response.incomplete_details) == ("incomplete", {"reason": "max_output_tokens"})
    assert response.output_text.startswith("It is 4")


@every_harness
async def test_out_of_time_is_graded_as_far_as_it_came(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider
) -> None:
    with FakeModel(EDIT, fault="hang", fault_at=1) as model:
        async with on_the_bench(harness, model, provider, timeout_seconds=SECONDS_OF_A_TURN.get(harness, 6)) as bench:
            response, observed = await bench.run()
    assert (response.status, response.incomplete_details) == ("incomplete", {"reason": "timeout"})
    assert [item["type"] for item in response.output][2:4] == ["function_call", "function_call_output"]
    assert observed["stop_reason"] == "timeout"


@every_harness
async def test_a_model_that_never_answers_fails_the_episode(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider
) -> None:
    with FakeModel(fault="hang") as model:
        async with on_the_bench(harness, model, provider, timeout_seconds=4) as bench:
            await bench.seed()
            with pytest.raises(EpisodeFailure, match="no answer of the model") as failed:
                await bench.activate()
    assert failed.value.kind == "agent_timeout"


@every_harness
async def test_closing_ends_a_run_and_keeps_what_it_did(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider
) -> None:
    with FakeModel([[shell("echo begun > begun.txt; sleep 300")]]) as model:
        async with on_the_bench(harness, model, provider) as bench:
            await bench.seed()
            running = asyncio.ensure_future(bench.activate())
            assert await asyncio.to_thread(model.asked.wait, 30)
            while "begun.txt" not in (await bench.sandbox.exec("ls")).stdout_text:
                await asyncio.sleep(0.05)
            closed = await bench.close()
            with pytest.raises(EpisodeFailure) as failed:
                await running
            processes = await bench.sandbox.exec("ls /proc | grep -c '^[0-9]' ; ls -A / | grep gym- || true")
    assert failed.value.kind == "cancelled"
    assert closed.agent_observations is not None
    assert closed.agent_observations["stop_reason"] == "cancelled"
    assert ".gym-" not in processes.stdout_text


@every_harness
async def test_a_sandbox_that_dies_fails_the_episode(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider
) -> None:
    with FakeModel(fault="hang") as model:
        async with on_the_bench(harness, model, provider) as bench:
            await bench.seed()
            running = asyncio.ensure_future(bench.activate())
            assert await asyncio.to_thread(model.asked.wait, 30)
            await bench.sandbox.stop()
            with pytest.raises(EpisodeFailure) as failed:
                await running
            await bench.close()
    assert failed.value.kind == "sandbox_lost"


@every_harness
@pytest.mark.parametrize("provider", ["local"], indirect=True)
async def test_on_the_host_it_has_a_home_of_its_own(
    harness: type[HarnessAgent[Any]], provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key of the user")
    with FakeModel([[shell("pwd; env")]]) as model:
        async with on_the_bench(harness, model, provider, execution="host") as bench:
            await bench.seed(sandbox_access=None)
            response = await bench.activate()
            await bench.close()
    output = response.output[1]["output"]
    assert "key of the user" not in output
    home = re.search(r"(?:^|\n|\\n)HOME=([^\n\\]+)", output)
    assert home is not None
    assert Path(home[1]) != Path("~").expanduser()
    assert not Path(home[1]).exists()


def _texts(request: dict[str, Any]) -> list[str]:
    """All texts of a request to the model."""
    found = []
    for item in [*(request.get("input") or request["messages"]), {"content": request.get("system")}]:
        content = item.get("content") or []
        found += [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return found
