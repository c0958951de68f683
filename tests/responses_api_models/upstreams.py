"""A provider on loopback that speaks all three APIs, whole and streamed, written from their references.

It says what a test tells it to say, keeps what it was asked, and checks each request against the official packages'
own types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

Object = dict[str, Any]


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Said:
    """What the model says in one turn. Usage: input, of it cached; output, of it reasoning."""

    thought: str = ""
    text: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    stop: str = ""
    usage: tuple[int, int, int, int] = (100, 40, 30, 7)


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: Object


@dataclass
class Upstream:
    """Says its turns in order; the last one again and again.

    Attributes:
        gate: Where set to wait, held between the first piece of a stream and the rest.
        gone: Set when a client left before its stream ended.
        cut: Ends a stream after so many events.
    """

    base_url: str = ""
    says: list[Said] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    refuses: tuple[int, Any, dict[str, str]] | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    cut: int | None = None
    waiting: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(Asked(request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        if self.refuses is not None:
            status, told, headers = self.refuses
            return web.json_response(told, status=status, headers=headers)
        if request.path.endswith("/count_tokens"):
            return web.json_response({"input_tokens": 12})
        whole, streamed, check = APIS[request.path.removeprefix("/v1")]
        check(body)
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if not body.get("stream"):
            return web.json_response(whole(said))
        return await self._stream(request, list(streamed(said, body)))

    async def _stream(self, request: web.Request, events: list[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for at, event in enumerate(events[: self.cut]):
                await response.write(event)
                if at == 0:
                    self.waiting += 1
                    await self.gate.wait()
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        return response


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """A provider on a free port."""
    provider = Upstream()
    provider.gate.set()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{path:.*}", provider.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.base_url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield provider
    finally:
        provider.gate.set()
        await runner.cleanup()


def halves(text: str) -> Iterator[str]:
    middle = len(text) // 2
    yield from filter(None, (text[:middle], text[middle:]))


def sse(data: Object, event: str = "") -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


# Chat Completions


def chat_usage(said: Said) -> Object:
    read, cached, wrote, thought = said.usage
    return {
        "prompt_tokens": read,
        "completion_tokens": wrote,
        "total_tokens": read + wrote,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def chat_call(call: Call) -> Object:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def chat_reason(said: Said) -> str:
    return said.stop or ("tool_calls" if said.calls else "stop")


def chat_whole(said: Said) -> Object:
    message: Object = {"role": "assistant", "content": said.text or None, "refusal": said.refusal or None}
    if said.thought:
        message["reasoning_content"] = said.thought
    if said.calls:
        message["tool_calls"] = [chat_call(call) for call in said.calls]
    choice = {"index": 0, "message": message, "finish_reason": chat_reason(said), "logprobs": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "served"}
    return {**head, "choices": [choice], "usage": chat_usage(said)}


def chat_streamed(said: Said, body: Object) -> Iterator[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served"}

    def chunk(delta: Object, reason: str | None = None) -> bytes:
        return sse({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    yield chunk({"role": "assistant", "content": ""})
    for name, text in (("reasoning_content", said.thought), ("content", said.text), ("refusal", said.refusal)):
        yield from (chunk({name: piece}) for piece in halves(text))
    for index, call in enumerate(said.calls):
        yield chunk({"tool_calls": [{"index": index, **chat_call(Call(call.id, call.name, ""))}]})
        for piece in halves(call.arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, chat_reason(said))
    if (body.get("stream_options") or {}).get("include_usage"):
        yield sse({**head, "choices": [], "usage": chat_usage(said)})
    yield b"data: [DONE]\n\n"


# Responses


def responses_items(said: Said) -> list[Object]:
    items: list[Object] = []
    if said.thought:
        summary = [{"type": "summary_text", "text": said.thought}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "sealed-by-provider"})
    text = {"type": "output_text", "text": said.text, "annotations": []}
    refusal = {"type": "refusal", "refusal": said.refusal}
    for wanted, part in ((said.text, text), (said.refusal, refusal)):
        if wanted:
            head = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
            items.append({**head, "content": [part]})
    for call in said.calls:
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": f"fc_{call.id}", "status": "completed", **named})
    return items


def responses_whole(said: Said) -> Object:
    read, cached, wrote, thought = said.usage
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "served",
        "status": "incomplete" if said.stop else "completed",
        "incomplete_details": {"reason": said.stop} if said.stop else None,
        "error": None,
        "output": responses_items(said),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": wrote,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": read + wrote,
        },
    }


DELTAS = {
    "summary_text": ("reasoning_summary_text", "reasoning_summary_part", "summary_index", "text"),
    "output_text": ("output_text", "content_part", "content_index", "text"),
    "refusal": ("refusal", "content_part", "content_index", "refusal"),
}


def responses_streamed(said: Said, body: Object) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, "sequence_number": 0, **fields}, kind)

    whole = responses_whole(said)
    yield event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        emptied = {key: type(value)() for key, value in item.items() if key in ("content", "summary", "arguments")}
        yield event("response.output_item.added", output_index=index, item={**item, **emptied})
        for part in item.get("summary") or item.get("content") or []:
            kind, outer, at, key = DELTAS[part["type"]]
            more: Object = {"logprobs": []} if kind == "output_text" else {}
            yield event(f"response.{outer}.added", **place, **{at: 0}, part={**part, key: ""})
            for piece in halves(part[key]):
                yield event(f"response.{kind}.delta", **place, **{at: 0}, delta=piece, **more)
            yield event(f"response.{kind}.done", **place, **{at: 0}, **{key: part[key]}, **more)
            yield event(f"response.{outer}.done", **place, **{at: 0}, part=part)
        for piece in halves(item.get("arguments", "")):
            yield event("response.function_call_arguments.delta", **place, delta=piece)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{whole['status']}", response=whole)


# Anthropic Messages


def messages_blocks(said: Said) -> list[Object]:
    blocks: list[Object] = []
    if said.thought:
        blocks.append({"type": "thinking", "thinking": said.thought, "signature": "signed-by-provider"})
    if said.text or said.refusal:
        blocks.append({"type": "text", "text": said.text or said.refusal})
    for call in said.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)})
    return blocks


def messages_usage(said: Said) -> Object:
    read, cached, wrote, thought = said.usage
    counts = {"input_tokens": read - cached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
    return {**counts, "output_tokens": wrote, "output_tokens_details": {"thinking_tokens": thought}}


def messages_reason(said: Said) -> str:
    return said.stop or ("refusal" if said.refusal else "tool_use" if said.calls else "end_turn")


def messages_whole(said: Said) -> Object:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "served"}
    end = {"stop_reason": messages_reason(said), "stop_sequence": None}
    return {**head, "content": messages_blocks(said), **end, "usage": messages_usage(said)}


def messages_streamed(said: Said, body: Object) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, **fields}, kind)

    start = {"input_tokens": said.usage[0] - said.usage[1], "output_tokens": 1}
    yield event("message_start", message={**messages_whole(said), "content": [], "stop_reason": None, "usage": start})
    yield event("ping")
    for index, block in enumerate(messages_blocks(said)):
        deltas: list[Object] = []
        match block:
            case {"type": "text", "text": text}:
                empty: Object = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in halves(text)]
            case {"type": "thinking", "thinking": text}:
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in halves(text)]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case _:
                empty = {**block, "input": {}}
                text = said.calls[index - len(messages_blocks(said)) + len(said.calls)].arguments
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in halves(text)]
        yield event("content_block_start", index=index, content_block=empty)
        yield from (event("content_block_delta", index=index, delta=delta) for delta in deltas)
        yield event("content_block_stop", index=index)
    delta = {"stop_reason": messages_reason(said), "stop_sequence": None}
    yield event("message_delta", delta=delta, usage=messages_usage(said))
    yield event("message_stop")


@cache
def adapter(module: str, name: str) -> TypeAdapter[Any]:
    import importlib

    return TypeAdapter(getattr(importlib.import_module(module), name))


def typed(module: str, name: str, body: Object) -> None:
    """Checks a body against an official type. Iterables in it are checked when they are read, so all are."""

    def read(value: Any) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                read(inner)
        elif not isinstance(value, str | bytes | int | float | None):
            for inner in value:
                read(inner)

    try:
        read(adapter(module, name).validate_python(body))
    except ValidationError as error:
        raise AssertionError(f"no {name}: {json.dumps(body)[:2000]}") from error


def check_chat(body: Object) -> None:
    typed("openai.types.chat.completion_create_params", "CompletionCreateParamsBase", body)


def check_responses(body: Object) -> None:
    typed("openai.types.responses.response_create_params", "ResponseCreateParamsBase", body)


def check_messages(body: Object) -> None:
    typed("anthropic.types.message_create_params", "MessageCreateParamsBase", body)
    roles = [message["role"] for message in body["messages"]]
    assert roles[0] == "user", roles
    assert body["max_tokens"] > 0


APIS: dict[str, tuple[Any, Any, Any]] = {
    "/chat/completions": (chat_whole, chat_streamed, check_chat),
    "/responses": (responses_whole, responses_streamed, check_responses),
    "/messages": (messages_whole, messages_streamed, check_messages),
}
