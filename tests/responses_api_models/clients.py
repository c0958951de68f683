"""The official clients as harnesses use them: one conversation, in each API, whole and streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from anthropic import AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent
from openai import AsyncOpenAI, ContentFilterFinishReasonError, LengthFinishReasonError
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

Object = dict[str, Any]
PNG = "iVBORw0KGgo="
SCHEMA: Object = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


@dataclass
class Heard:
    """What a client was told. Usage: input, cached, output, reasoning; None for what it was not told."""

    thought: str = ""
    text: str = ""
    refusal: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    reason: str | None = ""
    usage: tuple[int | None, ...] = ()
    model: str = ""
    id: str = ""


class Client(Protocol):
    """A conversation in one API. It keeps its history as that API's harnesses do."""

    async def ask(self, *, stream: bool) -> Heard: ...

    def outputs(self, results: list[tuple[str, str, bool]]) -> None:
        """Answers calls: id, text, and whether an image comes with it."""
        ...

    async def aclose(self) -> None: ...


class ChatConversation:
    def __init__(self, base_url: str, token: str, system: str, user: str, **more: Any) -> None:
        self.client = AsyncOpenAI(base_url=f"{base_url}/v1", api_key=token, max_retries=0)
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
        self.messages: list[Any] = [
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "text", "text": user}, image]},
        ]
        function = {"name": "bash", "description": "Runs.", "parameters": SCHEMA}
        self.more = {"tools": [{"type": "function", "function": function}], "max_completion_tokens": 900, **more}

    async def ask(self, *, stream: bool) -> Heard:
        asked: Any = {"model": "any", "messages": self.messages, **self.more}
        if stream:
            completion = await self._streamed({**asked, "stream": True, "stream_options": {"include_usage": True}})
        else:
            completion = await self.client.chat.completions.create(**asked)
            check(ChatCompletion, completion)
        choice, usage = completion.choices[0], completion.usage
        said: Any = choice.message
        self.messages.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
        return Heard(
            getattr(said, "reasoning_content", None) or "",
            said.content or "",
            said.refusal or "",
            [(call.id, call.function.name, parsed(call.function.arguments)) for call in said.tool_calls or []],
            choice.finish_reason,
            chat_usage(usage) if usage else (),
            completion.model,
            completion.id,
        )

    async def _streamed(self, asked: Any) -> ChatCompletion:
        state = ChatCompletionStreamState()
        try:
            async for chunk in await self.client.chat.completions.create(**asked):
                check(ChatCompletionChunk, chunk)
                state.handle_chunk(chunk)
        except (LengthFinishReasonError, ContentFilterFinishReasonError):
            pass  # the helper's own opinion of an answer that was cut
        snapshot: ChatCompletion = state.current_completion_snapshot
        return snapshot

    def outputs(self, results: list[tuple[str, str, bool]]) -> None:
        for call_id, text, image in results:
            assert not image, "the API has no place for it"
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    async def aclose(self) -> None:
        await self.client.close()


def chat_usage(usage: Any) -> tuple[int | None, ...]:
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    thought = usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details else None
    return usage.prompt_tokens, cached, usage.completion_tokens, thought


class ResponsesConversation:
    def __init__(self, base_url: str, token: str, system: str, user: str, **more: Any) -> None:
        self.client = AsyncOpenAI(base_url=f"{base_url}/v1", api_key=token, max_retries=0)
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
        self.input: list[Any] = [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": system}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": user}, image]},
        ]
        tool = {"type": "function", "name": "bash", "description": "Runs.", "parameters": SCHEMA, "strict": False}
        include = ["reasoning.encrypted_content"]
        self.more = {"tools": [tool], "max_output_tokens": 900, "store": False, "include": include, **more}

    async def ask(self, *, stream: bool) -> Heard:
        asked: Any = {"model": "any", "input": self.input, **self.more}
        if stream:
            response = await self._streamed({**asked, "stream": True})
        else:
            response = await self.client.responses.create(**asked)
            check(Response, response)
        heard = Heard(model=response.model, id=response.id, reason=response.status)
        if response.incomplete_details:
            heard.reason = response.incomplete_details.reason
        for item in response.output:
            match item.type:
                case "reasoning":
                    parts: list[Any] = [*(item.content or []), *item.summary]
                    heard.thought += "".join(part.text for part in parts)
                case "message":
                    for part in item.content:
                        heard.text += part.text if part.type == "output_text" else ""
                        heard.refusal += part.refusal if part.type == "refusal" else ""
                case "function_call":
                    heard.calls.append((item.call_id, item.name, parsed(item.arguments)))
            replayed = item.model_dump(exclude_none=True)
            if item.type == "reasoning":
                replayed.pop("content", None)  # as Codex replays it
            self.input.append(replayed)
        if usage := response.usage:
            cached, thought = usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens
            heard.usage = (usage.input_tokens, cached, usage.output_tokens, thought)
        return heard

    async def _streamed(self, asked: Any) -> Response:
        texts: dict[str, str] = {}
        last: Any = None
        async for event in await self.client.responses.create(**asked):
            check(ResponseStreamEvent, event)
            if event.type.endswith(".delta"):
                texts[event.item_id] = texts.get(event.item_id, "") + event.delta
            last = event
        response: Response = last.response
        whole = {}
        for item in response.output:
            parts = [*(getattr(item, "content", None) or []), *(getattr(item, "summary", None) or [])]
            text = "".join(getattr(part, "text", "") or getattr(part, "refusal", "") for part in parts)
            whole[item.id] = text + getattr(item, "arguments", "")
        assert texts == {key: text for key, text in whole.items() if text}
        return response

    def outputs(self, results: list[tuple[str, str, bool]]) -> None:
        for call_id, text, image in results:
            shown: list[Object] = [{"type": "input_text", "text": text}]
            if image:
                shown.append({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"})
            output = shown if image else text
            self.input.append({"type": "function_call_output", "call_id": call_id, "output": output})

    async def aclose(self) -> None:
        await self.client.close()


class MessagesConversation:
    def __init__(self, base_url: str, token: str, system: str, user: str, **more: Any) -> None:
        self.client = AsyncAnthropic(base_url=base_url, api_key=token, max_retries=0)
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        self.messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": user}, image]}]
        tools = [{"name": "bash", "description": "Runs.", "input_schema": SCHEMA}]
        self.more = {"system": [{"type": "text", "text": system}], "tools": tools, "max_tokens": 900, **more}

    async def ask(self, *, stream: bool) -> Heard:
        asked: Any = {"model": "any", "messages": self.messages, **self.more}
        if not stream:
            message = await self.client.messages.create(**asked)
            check(Message, message)
        else:
            async with self.client.messages.stream(**asked) as events:
                async for event in events:
                    if event.type in ("message_start", "content_block_delta", "message_delta"):
                        check(RawMessageStreamEvent, event)
                message = await events.get_final_message()
        heard = Heard(model=message.model, id=message.id, reason=message.stop_reason)
        for block in message.content:
            match block.type:
                case "thinking":
                    assert block.signature
                    heard.thought += block.thinking
                case "text":
                    heard.text += block.text
                case "tool_use":
                    heard.calls.append((block.id, block.name, block.input))
        content = [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in message.content]
        self.messages.append({"role": "assistant", "content": content})
        usage = message.usage
        cached = usage.cache_read_input_tokens or 0
        thought = usage.output_tokens_details.thinking_tokens if usage.output_tokens_details else None
        heard.usage = (usage.input_tokens + cached, cached, usage.output_tokens, thought)
        return heard

    def outputs(self, results: list[tuple[str, str, bool]]) -> None:
        blocks: list[Object] = []
        for call_id, text, image in results:
            content: list[Object] = [{"type": "text", "text": text}]
            if image:
                content.append({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}})
            blocks.append({"type": "tool_result", "tool_use_id": call_id, "content": content})
        self.messages.append({"role": "user", "content": blocks})

    async def aclose(self) -> None:
        await self.client.close()


def check(kind: Any, value: Any) -> None:
    """Whether an answer is what the official type says; the clients themselves do not look."""
    adapter(kind).validate_python(value.to_dict())


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parsed(arguments: str) -> Any:
    """Arguments as JSON; what is none stays as it is."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


CLIENTS: dict[str, type[Any]] = {
    "chat": ChatConversation,
    "responses": ResponsesConversation,
    "messages": MessagesConversation,
}
