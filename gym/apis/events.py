"""The neutral stream between any upstream and any client: what a model says, event by event.

The items are Responses items. They come one after another: the events of an item lie between its `ItemStarted` and its
`ItemDone`, which has it whole. An answer begins with `Started` and ends with `Ended`; one that breaks off raises.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gym.apis.responses import Item, ResponsesResponse, Usage, new_id

Kind = Literal["text", "refusal", "reasoning", "summary", "arguments", "input"]
"""What a delta adds to: text or refusal of a message, content or summary of reasoning, a call's arguments or input."""


@dataclass(frozen=True, slots=True)
class Started:
    """The answer begins. `id` is the upstream's own, where it told one."""

    id: str
    model: str


@dataclass(frozen=True, slots=True)
class ItemStarted:
    """An item begins; what deltas will fill is empty in it."""

    item: Item


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the item that is open. `part` is the place in its content or summary."""

    kind: Kind
    text: str
    part: int = 0


@dataclass(frozen=True, slots=True)
class ItemDone:
    """The open item is complete."""

    item: Item


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is complete.

    Attributes:
        incomplete: Why the answer is incomplete (`max_output_tokens`, `content_filter`); None: it is complete.
        usage: Tokens, where the upstream told them.
        stop_sequence: The stop sequence that ended the answer, where the upstream told it.
    """

    incomplete: str | None = None
    usage: Usage | None = None
    stop_sequence: str | None = None


Event = Started | ItemStarted | Delta | ItemDone | Ended


def fold(events: Iterable[Event]) -> ResponsesResponse:
    """The whole response that events make."""
    started, ended, output = Started("", ""), Ended(), []
    for event in events:
        match event:
            case Started():
                started = event
            case ItemDone(item):
                output.append(item)
            case Ended():
                ended = event
    more = {"stop_sequence": ended.stop_sequence} if ended.stop_sequence is not None else {}
    return ResponsesResponse(
        id=started.id or new_id("resp"),
        object="response",
        created_at=float(int(time.time())),
        model=started.model,
        status="incomplete" if ended.incomplete else "completed",
        incomplete_details={"reason": ended.incomplete} if ended.incomplete else None,
        output=output,
        usage=ended.usage,
        **more,
    )


def unfold(response: ResponsesResponse, pieces: int = 1) -> Iterator[Event]:
    """The events that a whole response makes, each text in so many pieces."""
    yield Started(response.id, response.model)
    for item in response.output:
        yield from unfold_item(item, pieces)
    yield ended(response)


def ended(response: ResponsesResponse) -> Ended:
    """How a whole response ended."""
    incomplete = (response.incomplete_details or {}).get("reason", "max_output_tokens")
    stop_sequence = (response.model_extra or {}).get("stop_sequence")
    return Ended(incomplete if response.status == "incomplete" else None, response.usage, stop_sequence)


def unfold_item(item: Item, pieces: int = 1) -> Iterator[Event]:
    """The events that a whole item makes."""
    yield ItemStarted(skeleton(item))
    for delta in deltas_of(item):
        size = max(1, -(-len(delta.text) // pieces))
        for at in range(0, len(delta.text), size):
            yield Delta(delta.kind, delta.text[at : at + size], delta.part)
    yield ItemDone(item)


def skeleton(item: Item) -> Item:
    """An item as it begins: without what deltas fill."""
    empty: Item = {"arguments": "", "input": "", "content": [], "summary": []}
    begun = {key: empty.get(key, value) for key, value in item.items()}
    if item.get("type") == "reasoning":
        begun.pop("content", None)
        begun.pop("encrypted_content", None)
    if "status" in item:
        begun["status"] = "in_progress"
    return begun


def begun(kind: Kind) -> Item:
    """A message or a reasoning item as it begins."""
    if kind in ("reasoning", "summary"):
        return {"type": "reasoning", "id": new_id("rs"), "summary": []}
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "in_progress", "content": []}


def begun_call(name: str, call_id: str) -> Item:
    """A function call as it begins."""
    named = {"type": "function_call", "id": new_id("fc"), "call_id": call_id, "name": name}
    return {**named, "arguments": "", "status": "in_progress"}


TEXTS: dict[str, tuple[str, Kind]] = {
    "output_text": ("text", "text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("text", "reasoning"),
    "summary_text": ("text", "summary"),
}
"""Part types that hold a text: under which key, and the kind of its deltas."""


def deltas_of(item: Item) -> Iterator[Delta]:
    """The texts of an item, each as one delta; empty ones are left out."""
    for key in ("content", "summary"):
        content = item.get(key)
        for place, part in enumerate(content if isinstance(content, list) else []):
            name, kind = TEXTS.get(part.get("type"), ("", "text"))
            if part.get(name):
                yield Delta(kind, part[name], place)
    if item.get("type") == "function_call" and item.get("arguments"):
        yield Delta("arguments", item["arguments"])
    if item.get("type") == "custom_tool_call" and item.get("input"):
        yield Delta("input", item["input"])


class _Growing:
    """An item in the making, and its events that were not handed out yet."""

    __slots__ = ("closed", "events", "item", "kind", "texts")

    def __init__(self, item: Item, kind: Kind) -> None:
        self.item = item
        self.kind: Kind = kind
        self.texts: list[str] = []
        self.events: list[Event] = [ItemStarted(item)]
        self.closed = False

    def whole(self, more: dict[str, Any]) -> Item:
        text = "".join(self.texts)
        filled: dict[Kind, Item] = {
            "text": {"content": [{"type": "output_text", "text": text, "annotations": []}]},
            "refusal": {"content": [{"type": "refusal", "refusal": text}]},
            "reasoning": {"content": [{"type": "reasoning_text", "text": text}]} if text else {},
            "summary": {"summary": [{"type": "summary_text", "text": text}]},
            "arguments": {"arguments": text},
            "input": {"input": text},
        }
        status = {"status": "completed"} if "status" in self.item else {}
        return {**self.item, **filled[self.kind], **status, **more}


class Flow:
    """Builds items of one text each from deltas, and puts items that grow side by side one after another."""

    def __init__(self) -> None:
        self._items: dict[int, _Growing] = {}
        self._opened = 0

    def open(self, item: Item, kind: Kind) -> int:
        """Begins an item that deltas of one kind fill. Returns its number."""
        self._items[self._opened] = _Growing(item, kind)
        self._opened += 1
        return self._opened - 1

    def add(self, number: int, text: str) -> None:
        """Adds to an open item."""
        if text:
            growing = self._items[number]
            growing.texts.append(text)
            growing.events.append(Delta(growing.kind, text))

    def text(self, number: int) -> str:
        """What an open item has so far."""
        return "".join(self._items[number].texts)

    def close(self, number: int, **more: Any) -> None:
        """Completes an item, with further fields. One that was complete already stays as it is."""
        growing = self._items.get(number)
        if growing is not None and not growing.closed:
            growing.closed = True
            growing.events.append(ItemDone(growing.whole(more)))

    def is_open(self, number: int) -> bool:
        """Whether an item still takes deltas."""
        return number in self._items and not self._items[number].closed

    def open_numbers(self) -> list[int]:
        """The items that still take deltas, in their order."""
        return [number for number, growing in self._items.items() if not growing.closed]

    def __len__(self) -> int:
        """The number of items that were ever opened."""
        return self._opened

    def take(self) -> list[Event]:
        """The events that are due: those of the first open item, and of what is complete before it."""
        due: list[Event] = []
        for number, growing in list(self._items.items()):
            due += growing.events
            growing.events = []
            if not growing.closed:
                break
            del self._items[number]
        return due
