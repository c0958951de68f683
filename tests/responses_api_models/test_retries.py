"""How many requests a failing provider gets: what docs/models.md says under "Retries", and not one more."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gym.launch.in_process import launch
from gym.servers.keys import Identity
from tests.responses_api_models.provider import Provider, Reply, serving
from tests.responses_api_models.servers import Served, instance_over, no_sandboxes, over

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 3
BUSY = {"error": {"message": "busy"}}
FAULTS = {
    "429": Reply(429, BUSY),
    "500": Reply(500, BUSY),
    "connection broken": Reply(cut=True),
    "400": Reply(400, {"error": {"message": "no"}}),
    "no answer": Reply(200, {"hello": 1}),
}
ONCE = (("400", False), ("400", True), ("no answer", False))
"""What is asked once: JSON that is no answer is looked at when it has been taken, unless it is a stream."""
APIS = ("chat", "responses", "messages")


@pytest.fixture
async def counting() -> AsyncIterator[Provider]:
    async with serving() as provider:
        yield provider


async def ask(server: Served, api: str, *, stream: bool) -> None:
    """Asks with an official client that has its own retries, as harnesses have them."""
    said: Any = [{"role": "user", "content": "hi"}]
    if api == "messages":
        async with anthropic.AsyncAnthropic(base_url=server.base_url, api_key=server.key) as claude:
            await claude.messages.create(model="m", messages=said, max_tokens=9, stream=stream)
        return
    async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=server.key) as client:
        if api == "chat":
            await client.chat.completions.create(model="m", messages=said, stream=stream)
        else:
            await client.responses.create(model="m", input=said, stream=stream)


async def refused(server: Served, api: str, *, stream: bool) -> Exception:
    """The error that such a client gets."""
    with pytest.raises((openai.APIError, anthropic.APIError)) as raised:
        await ask(server, api, stream=stream)
    return raised.value


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_harness_request_is_tried_by_the_model_server_alone(counting: Provider, fault: str) -> None:
    counting.replies = [FAULTS[fault]]
    async with over("chat", counting.base_url, max_attempts=ATTEMPTS) as server:
        for api, stream in ((api, stream) for api in APIS for stream in (False, True)):
            counting.bodies.clear()
            error = await refused(server, api, stream=stream)
            assert len(counting.bodies) == (1 if (fault, stream) in ONCE else ATTEMPTS), (api, stream)
            if fault.isdigit():
                assert getattr(error, "status_code", None) == int(fault)


async def test_a_refused_connection_is_tried_as_often(unused_tcp_port: int) -> None:
    async with over("chat", f"http://127.0.0.1:{unused_tcp_port}", max_attempts=ATTEMPTS) as server:
        error = await refused(server, "chat", stream=True)
    assert f"({ATTEMPTS} attempts)" in str(error)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(429, BUSY, {"retry-after": "45"}), "answered 429: busy (no time for another attempt: the episode ends"),
        (Reply(hang=True), "s (no time for another attempt: the episode ends in 0 s)"),
    ],
)
async def test_an_attempt_and_a_wait_end_with_the_episode(counting: Provider, reply: Reply, why: str) -> None:
    """A harness carries no deadline: its session key does."""
    counting.replies = [reply]
    async with launch([instance_over("chat", counting.base_url)], sandboxes=no_sandboxes) as launched:
        seconds = 0.2 if reply.hang else 30
        key = launched.keys.issue(Identity("rollout", "session"), ["policy_model"], seconds)
        async with httpx.AsyncClient() as client:
            url = launched.directory.url("policy_model") + "/v1/responses"
            sent = {"authorization": f"Bearer {key}"}
            answer = await client.post(url, json={"input": "hi"}, headers=sent, timeout=30)
    assert answer.status_code == (504 if reply.hang else 429)
    assert why in answer.json()["detail"]
    assert len(counting.bodies) == 1


@pytest.mark.parametrize(("fault", "requests"), [("429", 2 * ATTEMPTS), ("400", 1)])
async def test_a_run_tries_the_episode_again_and_not_the_request(
    counting: Provider, tmp_path: Path, fault: str, requests: int
) -> None:
    counting.replies = [FAULTS[fault]]
    settings = "++policy_model.responses_api_models.vllm_model"
    words = ["+experiment=onboarding", "model-provider=vllm", "limit=1", "max_attempts=2", f"output={tmp_path / 'o'}"]
    words += [f"{settings}.max_attempts={ATTEMPTS}", f"{settings}.retry_backoff_seconds=0.001"]
    own = {"POLICY_BASE_URL": f"{counting.base_url}/v1", "POLICY_MODEL_NAME": "m", "PYTHONPATH": str(ROOT)}
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "gym.run", *words],
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1, run.stderr
    assert len(counting.bodies) == requests
    rows = [json.loads(line) for line in (tmp_path / "o" / "failures.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == (["provider_refused"] if fault == "400" else ["provider_rate_limited"] * 2)
