"""The real small model: served, streamed, calling tools, and gone with its run however that ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from pydantic import ValidationError

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harness import bundles
from gym.responses_api_models.local_llm_model.app import (
    SMOLLM2,
    WEIGHTS,
    LocalLLMModel,
    LocalLLMModelConfig,
    calling_first,
)
from gym.servers.base import Call
from tests.conftest import needs
from tests.responses_api_models.provider import context
from tests.responses_api_models.servers import Served, served

ROOT = Path(__file__).resolve().parents[2]
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
SHELL = {"name": "run_shell", "description": "Runs a shell command.", "parameters": PARAMETERS}


@pytest.fixture(scope="module")
def bundle() -> bundles.Bundle:
    try:
        return bundles.prepare(LocalLLMModel.runtime(LocalLLMModelConfig.model_validate({})))
    except UserError as error:
        needs(SMOLLM2, present=False, reason=str(error))
        raise AssertionError from error


@asynccontextmanager
async def small_model(**settings: Any) -> AsyncIterator[Served]:
    async with served(LocalLLMModel, temperature=0, max_output_tokens=16, **settings) as server:
        yield server


async def test_it_answers_whole_and_streamed(bundle: bundles.Bundle) -> None:
    async with (
        small_model() as server,
        openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=server.key) as client,
        anthropic.AsyncAnthropic(base_url=server.base_url, api_key=server.key) as claude,
    ):
        whole = await client.chat.completions.create(model="m", messages=QUESTION)
        assert (whole.model, whole.choices[0].finish_reason) == (SMOLLM2, "stop")
        assert whole.choices[0].message.content == "The capital of France is Paris."
        assert whole.usage is not None
        assert 0 < whole.usage.completion_tokens <= 16
        pieces = [
            chunk.choices[0].delta.content
            async for chunk in await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
            if chunk.choices and chunk.choices[0].delta.content
        ]
        assert len(pieces) > 3
        assert "".join(pieces) == "The capital of France is Paris."
        async with claude.messages.stream(model="m", messages=QUESTION, max_tokens=3) as stream:
            final = await stream.get_final_message()
        assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 3)
        with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
            await client.responses.create(model="m", input="word " * 9000)


async def test_it_calls_a_tool_and_then_answers(bundle: bundles.Bundle) -> None:
    async with (
        small_model() as server,
        openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=server.key) as client,
    ):
        tools: Any = [{"type": "function", **SHELL}]
        asked: Any = [{"role": "user", "content": "List the files here with ls."}]
        first = await client.responses.create(model="m", input=asked, tools=tools, max_output_tokens=80)
        (call,) = first.output
        assert isinstance(call, ResponseFunctionToolCall)
        assert call.name == "run_shell"
        assert list(json.loads(call.arguments)) == ["command"]
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}
        history = [*asked, call.model_dump(exclude_none=True), output]
        second = await client.responses.create(model="m", input=history, tools=tools)
        assert [item.type for item in second.output] == ["message"]
        functions: Any = [{"type": "function", "function": SHELL}]
        stream = await client.chat.completions.create(
            model="m", messages=asked, tools=functions, max_tokens=80, stream=True
        )
        parts = [part async for chunk in stream for part in (chunk.choices and chunk.choices[0].delta.tool_calls) or []]
        arguments = "".join(part.function.arguments or "" for part in parts if part.function)
        assert json.loads(arguments) == json.loads(call.arguments)


def test_a_newcomers_run(bundle: bundles.Bundle, tmp_path: Path) -> None:
    limit = "policy_model.responses_api_models.local_llm_model.max_output_tokens=16"
    words = ["+experiment=onboarding", "model-provider=local_llm", "limit=1", f"++{limit}", "output=out"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("POLICY_")}
    run = subprocess.run(
        [sys.executable, "-m", "gym.run", *words],
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    (row,) = (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()
    assert json.loads(row)["usage"]["model_calls"] >= 1


def is_over(process: int, seconds: float = 20) -> bool:
    """Waits for the end of a process that need not be a child."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


@pytest.fixture
def model(bundle: bundles.Bundle) -> LocalLLMModel:
    return LocalLLMModel(LocalLLMModelConfig.model_validate({"max_attempts": 1}), context())


def engine_of(model: LocalLLMModel) -> int:
    assert model._engine is not None
    return model._engine.pid


async def test_the_engine_ends_with_its_server(model: LocalLLMModel) -> None:
    await model.start()
    process = engine_of(model)
    os.kill(process, 0)
    async with httpx.AsyncClient() as client:
        refused = await client.post(model.upstream.endpoint.url, json={"messages": QUESTION})
    assert refused.status_code == 401, "others on this machine have no key for it"
    await model.stop()
    assert is_over(process)
    await model.stop()


async def test_an_engine_that_dies_fails_the_call(model: LocalLLMModel, caplog: pytest.LogCaptureFixture) -> None:
    await model.start()
    os.kill(engine_of(model), signal.SIGKILL)
    assert model._engine is not None
    assert model._engine._watcher is not None
    await model._engine._watcher
    with pytest.raises(EpisodeFailure) as failure:
        await model.routes["/v1/responses"]({"input": "hi"}, Call())
    assert failure.value.kind == "provider_unreachable"
    assert "the engine ended in the middle of the run: ended by SIGKILL" in caplog.text
    await model.stop()


KEEPER = """
import asyncio
from gym.responses_api_models.local_llm_model.app import LocalLLMModel, LocalLLMModelConfig
from tests.responses_api_models.provider import context

async def main():
    model = LocalLLMModel(LocalLLMModelConfig(), context())
    await model.start()
    print(model._engine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def keeper(bundle: bundles.Bundle) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", KEEPER], stdout=subprocess.PIPE, text=True, env=env) as process:
        yield process
        process.kill()


def test_the_engine_ends_with_a_run_that_is_killed(keeper: subprocess.Popen[str]) -> None:
    assert keeper.stdout is not None
    process = int(keeper.stdout.readline())
    keeper.kill()
    assert is_over(process)


@pytest.mark.parametrize(("content", "why"), [(None, "cannot read .*: No such file"), (b"PK\3\4", "is no GGUF file")])
def test_a_file_that_is_no_model_is_refused_at_planning(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValidationError, match=why):
        LocalLLMModelConfig.model_validate({"gguf": str(path)})


async def test_a_damaged_model_says_what_is_wrong(bundle: bundles.Bundle, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    with (bundle.path / WEIGHTS).open("rb") as file:
        path.write_bytes(file.read(5_000_000))
    model = LocalLLMModel(LocalLLMModelConfig.model_validate({"gguf": str(path)}), context())
    with pytest.raises(UserError, match=r"cannot serve .*cut.gguf: tensor .* is not within the file bounds"):
        await model.start()
    await model.stop()


async def test_another_file(bundle: bundles.Bundle, tmp_path: Path) -> None:
    """A file of the user's own brings its own template, and is not made to call tools."""
    path = tmp_path / "own-model.gguf"
    path.symlink_to(bundle.path / WEIGHTS)
    async with served(LocalLLMModel, gguf=str(path), max_output_tokens=4) as server, httpx.AsyncClient() as client:
        tools = [{"type": "function", "function": SHELL}]
        body = {"messages": QUESTION, "tools": tools}
        url = f"{server.base_url}/v1/chat/completions"
        answer = (await client.post(url, json=body, headers=server.headers, timeout=60)).json()
    assert answer["model"] == "own-model"
    assert "tool_calls" not in answer["choices"][0]["message"]


async def test_an_engine_that_is_too_slow(bundle: bundles.Bundle) -> None:
    model = LocalLLMModel(LocalLLMModelConfig.model_validate({"start_timeout_seconds": 0.001}), context())
    with pytest.raises(UserError, match=r"it did not serve within 0\.001 s"):
        await model.start()


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("a", "b")]
ASK, ANSWERED = {"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c", "content": "y"}


@pytest.mark.parametrize(
    ("body", "tools", "forced"),
    [
        ({"messages": [ASK]}, [], False),
        ({"messages": [ASK], "tools": TOOLS, "tool_choice": "none"}, TOOLS, False),
        ({"messages": [ASK], "tools": TOOLS}, TOOLS, True),
        ({"messages": [ASK, ANSWERED], "tools": TOOLS, "tool_choice": "auto"}, [], False),
        ({"messages": [ASK, ANSWERED], "tools": TOOLS, "tool_choice": "required"}, TOOLS, True),
        (
            {"messages": [ASK], "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "b"}}},
            TOOLS[1:],
            True,
        ),
    ],
)
def test_a_call_comes_first(body: dict[str, Any], tools: list[Any], forced: bool) -> None:
    sent = calling_first({**body, "stop": "END"})
    assert sent.get("tools", []) == tools
    assert (sent["messages"] != body["messages"]) == forced
    assert sent["stop"] == (["END", "<tool_call>"] if forced else "END")
