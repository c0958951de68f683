"""How reasoning travels through a client and back, whatever its upstream sealed it with.

A Messages client replays thinking with its signature; a Responses client that asks for `reasoning.encrypted_content`
replays that, and some then leave the text out. So both are given a seal of ours, which holds what the other side needs:
the upstream's own seal and item id, and, for Responses clients, the text.
"""

from __future__ import annotations

import json
from typing import Any

from gym.apis.carry import reasoning_text
from gym.apis.responses import Item, reasoning
from gym.apis.upstreams.messages_request import THINKING

SEAL = "gym:"


def signature_of(item: Item) -> str:
    """The signature of a reasoning item for a Messages client."""
    sealed = item.get("encrypted_content")
    return SEAL + _packed({"id": item.get("id"), "sealed": sealed} if sealed else {})


def unsealed(text: str, signature: str) -> Item:
    """The reasoning item behind a thinking block. A signature that is not ours is Anthropic's own."""
    if not signature.startswith(SEAL):
        return reasoning(text, THINKING + signature if signature else None)
    packed = _unpacked(signature)
    if not packed.get("sealed"):
        return reasoning(text)
    # What is sealed is a summary's: OpenAI takes no other text with it.
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"type": "reasoning", "id": packed.get("id"), "summary": summary, "encrypted_content": packed["sealed"]}


def with_seal(item: Item) -> Item:
    """A reasoning item for a Responses client that asks for encrypted content."""
    if item.get("type") != "reasoning":
        return item
    packed = {"sealed": item.get("encrypted_content"), "text": reasoning_text(item)}
    return {**item, "encrypted_content": SEAL + _packed(packed)}


def without_seal(item: Item) -> Item:
    """The reasoning item as its upstream gave it, from what a Responses client replays."""
    seal = str(item.get("encrypted_content") or "")
    if item.get("type") != "reasoning" or not seal.startswith(SEAL):
        return item
    packed = _unpacked(seal)
    opened = {key: value for key, value in item.items() if key != "encrypted_content"}
    if packed.get("text") and not reasoning_text(item):
        opened["content"] = [{"type": "reasoning_text", "text": packed["text"]}]
    return {**opened, "encrypted_content": packed["sealed"]} if packed.get("sealed") else opened


def _packed(fields: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in fields.items() if value}, separators=(",", ":"))


def _unpacked(seal: str) -> dict[str, Any]:
    try:
        packed = json.loads(seal.removeprefix(SEAL))
    except ValueError:
        return {}
    return packed if isinstance(packed, dict) else {}
