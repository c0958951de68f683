"""What recording adds to a model call: `python -m tests.performance.recording`.

A server of the same process asks a model that answers at once, with 20 messages of history (30 kB), 12 tools (6 kB),
and one new message of 1 kB a call. Shown is this process's CPU per call, without and with the record.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from gym.apis.responses import ResponsesRequest, ResponsesResponse, Usage, message
from gym.composition.redact import Redactor, Secret
from gym.launch.in_process import Instance, launch
from gym.sandbox.interface import SandboxProvider
from gym.servers.base import Call
from gym.servers.contract import ROLLOUT_HEADER, ServerRef
from gym.servers.model import ModelServer, ModelServerConfig

MODEL = ServerRef(type="responses_api_models", name="model")
HISTORY = [message("user", f"{number} " + "word " * 300) for number in range(20)]
TOOLS = [{"type": "function", "name": f"tool_{number}", "description": "d" * 400} for number in range(12)]


class Prompt(ModelServer[ModelServerConfig]):
    """Says the same at once."""

    scripted = True

    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        usage = Usage(input_tokens=10, output_tokens=10, total_tokens=20)
        return ResponsesResponse(output=[message("assistant", "x" * 400)], usage=usage)


def no_sandboxes(name: str) -> SandboxProvider:
    raise AssertionError(name)


async def measured(records: Path | None, calls: int) -> float:
    """Milliseconds of CPU a call."""
    redactor = Redactor([Secret(f"secret-of-the-run-{number}") for number in range(5)])
    made = Instance(MODEL.name, "responses_api_models", Prompt, ModelServerConfig())
    async with launch([made], sandboxes=no_sandboxes, records=records, redact=redactor.text) as launched:
        started = time.process_time()
        for number in range(calls):
            said = [*HISTORY, message("user", f"{number} " + "new " * 250)]
            request = ResponsesRequest(input=said, tools=TOOLS, instructions="i " * 2000)
            headers = {ROLLOUT_HEADER: "rollout"}
            await launched.client.post(MODEL, "/v1/responses", request, ResponsesResponse, headers=headers)
        return (time.process_time() - started) / calls * 1e3


def run() -> None:
    """Entry of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=400)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            without = asyncio.run(measured(None, calls))
            recorded = asyncio.run(measured(Path(folder) / str(number), calls))
            print(f"without {without:.2f} ms, with {recorded:.2f} ms: {recorded - without:.2f} ms a call")


if __name__ == "__main__":
    run()
