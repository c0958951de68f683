"""A neutral answer as an OpenAI response, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym.apis import sse
from gym.apis.events import TEXTS, Delta, Ended, Event, ItemDone, ItemStarted, Started, fold
from gym.apis.responses import Item, ResponsesResponse, Usage, new_id

ECHOED: dict[str, Any] = {
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "temperature": None,
    "text": None,
    "tool_choice": "auto",
    "top_p": None,
}
"""Settings of the request that a response repeats, with what it has where the request has none."""

ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
PART_TYPES = {kind: part for part, (_, kind) in TEXTS.items()}
Object = dict[str, Any]
Seal = Callable[[Item], Item]


def echoed(body: Mapping[str, Any]) -> Object:
    """What a response repeats of its request: its settings. Tools and instructions can be long; they stay out."""
    settings = {name: body[name] if body.get(name) is not None else default for name, default in ECHOED.items()}
    return {**settings, "instructions": None, "tools": []}


def to_response(response: ResponsesResponse, body: Mapping[str, Any], seal: Seal) -> Object:
    """The response in full, as clients of the API expect it."""
    own = response.model_dump(mode="json")
    output = [with_id(seal(item)) for item in response.output]
    usage = required_usage(response.usage)
    return {**echoed(body), **own, "created_at": int(response.created_at), "output": output, "usage": usage}


def required_usage(usage: Usage | None) -> Object | None:
    """Usage as the API demands it: its clients read these details unasked, so one that is unknown is a zero here."""
    if usage is None:
        return None
    read = {"cached_tokens": 0, "cache_write_tokens": 0, **(usage.input_tokens_details or {})}
    wrote = {"reasoning_tokens": 0, **(usage.output_tokens_details or {})}
    return {**usage.model_dump(mode="json"), "input_tokens_details": read, "output_tokens_details": wrote}


def with_id(item: Item) -> Item:
    """The item with an id; a call's follows from its call id."""
    if item.get("id"):
        return item
    prefix = ID_PREFIXES.get(str(item.get("type")), "item")
    return {**item, "id": f"{prefix}_{item['call_id']}" if item.get("call_id") else new_id(prefix)}


@dataclass
class ResponsesEncoder:
    """Streams one response.

    Attributes:
        echo: What the response repeats of its request.
        seal: Puts what the client asks for into reasoning items.
    """

    echo: Object
    seal: Seal
    _head: Object = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)
    _number: int = 0
    _index: int = -1
    _item_id: str = ""
    _name: str = ""
    _part: tuple[str, int] | None = None
    _texts: list[str] = field(default_factory=list)

    def event(self, event: Event) -> bytes:
        """The events of an event."""
        match event:
            case Started():
                return self._started(event)
            case ItemStarted(item):
                return self._item_started(item)
            case Delta():
                return self._delta(event)
            case ItemDone(item):
                return self._item_done(item)
            case Ended():
                self._events.append(event)
                whole = fold(self._events)
                end = {**whole.model_dump(mode="json", include=OF_THE_END), "usage": required_usage(whole.usage)}
                return self._sent(f"response.{whole.status}", response={**self._head, **end})

    def _sent(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return sse.encoded(data, kind)

    def _started(self, event: Started) -> bytes:
        created = {"id": event.id or new_id("resp"), "object": "response", "created_at": int(time.time())}
        state: Object = {"model": event.model, "status": "in_progress", "output": [], "usage": None, "error": None}
        self._head = {**self.echo, **created, **state, "incomplete_details": None}
        begun = self._sent("response.created", response=self._head)
        return begun + self._sent("response.in_progress", response=self._head)

    def _item_started(self, item: Item) -> bytes:
        self._index += 1
        begun = with_id(item)
        self._item_id, self._name, self._part = begun["id"], str(begun.get("name")), None
        return self._sent("response.output_item.added", output_index=self._index, item=begun)

    def _place(self) -> Object:
        return {"item_id": self._item_id, "output_index": self._index}

    def _delta(self, delta: Delta) -> bytes:
        before = b""
        if self._part != (delta.kind, delta.part):
            before = self._part_done()
            self._part, self._texts = (delta.kind, delta.part), []
            before += self._part_event("added", "")
        self._texts.append(delta.text)
        more = self._part_place() | ({"logprobs": []} if delta.kind == "text" else {})
        return before + self._sent(f"{NAMES[delta.kind]}.delta", **self._place(), **more, delta=delta.text)

    def _part_place(self) -> Object:
        kind, part = self._part or ("", 0)
        return {"summary_index": part} if kind == "summary" else {} if kind in WHOLE else {"content_index": part}

    def _part_event(self, what: str, text: str) -> bytes:
        kind = self._part[0] if self._part else ""
        if kind in WHOLE:
            return b""
        part_type = PART_TYPES[kind]  # type: ignore[index]
        part: Object = {"type": part_type, TEXTS[part_type][0]: text}
        if kind == "text":
            part |= {"annotations": []}
        name = "response.reasoning_summary_part" if kind == "summary" else "response.content_part"
        return self._sent(f"{name}.{what}", **self._place(), **self._part_place(), part=part)

    def _part_done(self) -> bytes:
        if self._part is None:
            return b""
        kind, text = self._part[0], "".join(self._texts)
        more = self._part_place() | {VALUES.get(kind, "text"): text}
        if kind == "text":
            more["logprobs"] = []
        if kind == "arguments":
            more["name"] = self._name
        return self._sent(f"{NAMES[kind]}.done", **self._place(), **more) + self._part_event("done", text)

    def _item_done(self, item: Item) -> bytes:
        parts = self._part_done()
        done = {**self.seal(item), "id": self._item_id}
        self._part = None
        self._events.append(ItemDone(done))
        return parts + self._sent("response.output_item.done", output_index=self._index, item=done)


OF_THE_END = {"status", "incomplete_details", "output"}
WHOLE = ("arguments", "input")
"""Kinds that fill an item itself, and no part of it."""

NAMES = {
    "text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning": "response.reasoning_text",
    "summary": "response.reasoning_summary_text",
    "arguments": "response.function_call_arguments",
    "input": "response.custom_tool_call_input",
}
VALUES = {"refusal": "refusal", "arguments": "arguments", "input": "input"}
"""The field of a `done` event that has the whole text."""
