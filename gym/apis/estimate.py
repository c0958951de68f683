"""Token counts where nobody counts: characters divided by 4, rounded up. An estimate, the same every time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from gym.apis.responses import Item, ResponsesRequest

CHARACTERS_PER_TOKEN = 4


def tokens_of(number_of_characters: int) -> int:
    """An estimate of the tokens of a text of that length."""
    return -(-number_of_characters // CHARACTERS_PER_TOKEN)


def tokens_in(request: ResponsesRequest) -> int:
    """An estimate of the tokens of a request: its instructions, items and tools. Images are not counted."""
    tools = sum(len(json.dumps(tool)) for tool in request.tools)
    return tokens_of(len(request.instructions or "") + characters(request.items()) + tools)


def characters(items: Iterable[Item]) -> int:
    """The characters of items that a model reads or writes."""
    return sum(len(text) for item in items for text in _texts(item))


def _texts(item: Item) -> Iterator[str]:
    for value in (item.get("name"), item.get("arguments"), item.get("input"), item.get("content"), item.get("output")):
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for part in value:
                text: Any = part.get("text") if isinstance(part, dict) else None
                if isinstance(text, str):
                    yield text
