"""How a stream of a Responses answer ends that broke off: with the id, the number and the output of what was sent."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gym.apis import sse
from gym.apis.clients.responses_answer import PART_TYPES, WHOLE, echoed
from gym.apis.errors import ApiError, openai_error
from gym.apis.events import TEXTS, Kind
from gym.apis.responses import Item, new_id
from gym.apis.upstreams.responses import KINDS

Object = dict[str, Any]
FAILED = "response.failed"


def response_failed(error: ApiError, sent: bytes, body: Mapping[str, Any]) -> bytes:
    """A failed response, which continues what a client was sent: clients refuse one that has another id.

    Args:
        sent: The stream so far, also one that a provider wrote.
        body: The request.
    """
    seen = _Seen({**echoed(body), "id": new_id("resp"), "object": "response", "created_at": int(time.time())})
    for event in sse.Parser().feed(sent):
        try:
            seen.take(json.loads(event.data))
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # a provider's slip, perhaps the very one that ended the stream
    told = openai_error(error)
    failed = {"code": told["code"] or told["type"], "message": told["message"]}
    response = {"model": "", "usage": None, **seen.head, "status": "failed", "output": seen.output(), "error": failed}
    return sse.encoded({"type": FAILED, "sequence_number": seen.number, "response": response}, FAILED)


@dataclass
class _Seen:
    """What a client knows of a response. `number` is that of the next event."""

    head: Object
    number: int = 0
    _items: dict[int, Item] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)

    def take(self, event: Object) -> None:
        kind, number = event["type"], event.get("sequence_number")
        self.number = number + 1 if isinstance(number, int) else self.number
        if kind in ("response.created", "response.in_progress"):
            self.head = {**self.head, **event["response"]}
        elif kind == "response.output_item.added":
            self._items[event["output_index"]] = event["item"]
            self._open.add(event["output_index"])
        elif kind == "response.output_item.done":
            self._items[event["output_index"]] = event["item"]
            self._open.discard(event["output_index"])
        elif kind in KINDS:
            name, place = KINDS[kind]
            _grow(self._items[event["output_index"]], name, event.get(place, 0), event["delta"])

    def output(self) -> list[Item]:
        return [
            {**item, "status": "incomplete"} if index in self._open and "status" in item else item
            for index, item in sorted(self._items.items())
        ]


def _grow(item: Item, kind: Kind, place: int, delta: str) -> None:
    if kind in WHOLE:
        item[kind] = item.get(kind, "") + delta
        return
    parts = item.setdefault("summary" if kind == "summary" else "content", [])
    if place == len(parts):
        parts.append({"type": PART_TYPES[kind]} | ({"annotations": []} if kind == "text" else {}))
    key = TEXTS[PART_TYPES[kind]][0]
    parts[place][key] = parts[place].get(key, "") + delta
