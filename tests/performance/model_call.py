"""What a model server adds to a call: `python -m tests.performance.model_call`.

The provider and the client are processes of their own, so the CPU that is shown is the model server's alone, per call.
Times to the first byte are of the client, directly at the provider and through the model server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.responses_api_models.servers import over
from tests.responses_api_models.upstreams import APIS, Call, Object, Said

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
WORDS = "some words of an answer " * 40
SAID = Said(thought="a thought " * 20, text=WORDS, calls=(Call("call_1", "bash", json.dumps({"command": "x" * 200})),))
EVENTS = 200
PAUSE_SECONDS = 0.001


def request(api: str, *, stream: bool) -> Object:
    """A harness's request of some 30 kB: instructions, tools, and a conversation of ten turns."""
    schema = {"type": "object", "properties": {"command": {"type": "string", "description": "d" * 400}}}
    names = [f"tool_{number}" for number in range(12)]
    long, system = "a line of some output\n" * 60, "An instruction. " * 400
    match api:
        case "responses":
            tools: Any = [{"type": "function", "name": name, "parameters": schema} for name in names]
            turns = [responses_turn(number, long) for number in range(10)]
            items = [{"role": "developer", "content": system}, *(item for turn in turns for item in turn)]
            body: Object = {"input": items, "tools": tools, "store": False}
        case "chat":
            tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names]
            chat = [entry for number in range(10) for entry in chat_turn(number, long)]
            body = {"messages": [{"role": "system", "content": system}, *chat], "tools": tools}
        case _:
            tools = [{"name": name, "input_schema": schema} for name in names]
            said = [entry for number in range(10) for entry in messages_turn(number, long)]
            body = {"messages": said, "system": system, "tools": tools, "max_tokens": 900}
    return {"model": "m", **body, "stream": stream}


def responses_turn(number: int, output: str) -> list[Object]:
    """A question, a call and its output."""
    call = {"type": "function_call", "call_id": f"c{number}", "name": "tool_1", "arguments": '{"command": "ls"}'}
    answer = {"type": "function_call_output", "call_id": f"c{number}", "output": output}
    return [{"role": "user", "content": "go on"}, call, answer]


def chat_turn(number: int, output: str) -> list[Object]:
    """The same in Chat Completions."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "tool_1", "arguments": '{"command": "ls"}'}}
    answer = {"role": "tool", "tool_call_id": f"c{number}", "content": output}
    return [{"role": "user", "content": "go on"}, {"role": "assistant", "content": None, "tool_calls": [call]}, answer]


def messages_turn(number: int, output: str) -> list[Object]:
    """The same in Anthropic Messages."""
    call = {"type": "tool_use", "id": f"c{number}", "name": "tool_1", "input": {"command": "ls"}}
    answer = {"type": "tool_result", "tool_use_id": f"c{number}", "content": output}
    return [
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [answer]},
    ]


def events_of(api: str) -> list[bytes]:
    """A stream of a few hundred events: one for each word."""
    _, streamed, _ = APIS[PATHS[api].removeprefix("/v1")]
    events: list[bytes] = list(streamed(SAID, {"stream_options": {"include_usage": True}}))
    fat = max(range(len(events)), key=lambda at: events[at].count(b"words") * (b"delta" in events[at]))
    half = WORDS[: len(WORDS) // 2].encode()
    word = events[fat].replace(half, b"word ")
    return [*events[: fat + 1], *[word] * (EVENTS - len(events)), *events[fat + 1 :]]


async def provide(port: Any) -> None:
    """The provider: answers at once, a stream with a pause after each event."""
    wholes = {path: json.dumps(APIS[path][0](SAID)).encode() for path in APIS}
    streams = {PATHS[api].removeprefix("/v1"): events_of(api) for api in PATHS}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                path = lines[0].split()[1].removeprefix("/v1")
                length = next(int(line[15:]) for line in lines if line.lower().startswith("content-length:"))
                await answer(writer, path, b'"stream": true' in await reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(writer: asyncio.StreamWriter, path: str, stream: bool) -> None:
        if not stream:
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(wholes[path])}\r\n\r\n"
            writer.write(head.encode() + wholes[path])
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in streams[path]:
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await asyncio.sleep(PAUSE_SECONDS)
        writer.write(b"0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def ask(url: str, key: str, body: Object, calls: int, concurrency: int) -> tuple[float, float]:
    """The client: median milliseconds to the first byte, and to the last."""
    import aiohttp

    payload, first, last = json.dumps(body).encode(), [], []
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def worker(number: int) -> None:
            for _ in range(number):
                started = time.perf_counter()
                async with session.post(url, data=payload, headers=headers) as response:
                    assert response.status == 200, await response.text()
                    await response.content.readany()
                    first.append(time.perf_counter() - started)
                    await response.read()
                last.append(time.perf_counter() - started)

        await asyncio.gather(*(worker(calls // concurrency) for _ in range(concurrency)))
    return statistics.median(first) * 1e3, statistics.median(last) * 1e3


def child(work: Callable[..., Any], pipe: Any) -> None:
    """Runs what it is sent, or its one task, in a process of its own."""
    if work is provide:
        asyncio.run(provide(pipe))
    while True:
        pipe.send(asyncio.run(ask(*pipe.recv())))


def started(work: Callable[..., Any]) -> tuple[Any, Any]:
    """A process, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=child, args=(work, theirs), daemon=True)
    process.start()
    return process, mine


async def measured(client: Any, *task: Any) -> tuple[float, float, float]:
    """Milliseconds to the first and the last byte, and of this process's CPU per call."""
    before = time.process_time()
    client.send(task)
    first, last = await asyncio.to_thread(client.recv)
    return first, last, (time.process_time() - before) / task[3] * 1e3


async def main(calls: int) -> None:
    """Every API over every upstream, whole and streamed, one call at a time and many."""
    (provider, port), (asker, client) = started(provide), started(ask)
    try:
        url = f"http://127.0.0.1:{port.recv()}"
        print("client over upstream        how    at once   first byte added   CPU a call")
        for spoken in PATHS:
            async with over(spoken, url) as server:
                for api in PATHS:
                    for stream in (False, True):
                        await compare(client, url, server, api, spoken, stream, calls)
    finally:
        for process in (provider, asker):
            process.terminate()
            process.join()


async def compare(client: Any, url: str, server: Any, api: str, spoken: str, stream: bool, calls: int) -> None:
    """One row for each concurrency."""
    body, direct = request(api, stream=stream), request(spoken, stream=stream)
    await measured(client, server.base_url + PATHS[api], server.key, body, 20, 4)
    for concurrency in (1, 16):
        alone, _, _ = await measured(client, url + PATHS[spoken], "k", direct, calls, concurrency)
        first, _, cpu = await measured(client, server.base_url + PATHS[api], server.key, body, calls, concurrency)
        how = "stream" if stream else "whole"
        print(f"{api:>9} over {spoken:<12} {how:>6} {concurrency:>8} {first - alone:>13.2f} ms {cpu:>11.2f} ms")


def run() -> None:
    """Entry of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=96, help="calls of each kind")
    asyncio.run(main(parser.parse_args().calls))


if __name__ == "__main__":
    run()
