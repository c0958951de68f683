"""A request becomes what a command-line harness takes: one system prompt, and one task. All text stays literal."""

from __future__ import annotations

from dataclasses import dataclass

from gym.apis.responses import Item, ResponsesRequest
from gym.failures import EpisodeFailure

SYSTEM_ROLES = ("system", "developer")
TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal"})


@dataclass(frozen=True)
class Prompts:
    """What the harness is told."""

    system: str
    user: str


def compose(configured: str | None, request: ResponsesRequest) -> Prompts:
    """The prompts of a request: the configured system prompt, its instructions and its system messages, in this order.

    A history becomes a transcript before the last user message, since a harness takes one task.

    Raises:
        EpisodeFailure: `malformed_task`: nothing to do, or content that is no text.
    """
    items = request.items()
    system = [configured, request.instructions, *(_text(item) for item in items if item.get("role") in SYSTEM_ROLES)]
    talk = [item for item in items if item.get("role") not in SYSTEM_ROLES]
    user = _text(talk[-1]) if talk and talk[-1].get("role") == "user" else ""
    if not user.strip():
        raise EpisodeFailure("malformed_task", "the input does not end with a message of the user")
    if len(talk) > 1:
        user = f"<conversation>\n{chr(10).join(map(_told, talk[:-1]))}\n</conversation>\n\n{user}"
    return Prompts("\n\n".join(text for text in system if text), user)


def _told(item: Item) -> str:
    kind = item.get("type") or "message"
    match kind:
        case "message":
            return f"[{item.get('role')}]\n{_text(item)}"
        case "function_call":
            return f"[tool call {item.get('name')}]\n{item.get('arguments')}"
        case "function_call_output":
            return f"[tool result]\n{_text({'content': item.get('output')})}"
        case "reasoning":
            return "[reasoning]"
    raise EpisodeFailure("malformed_task", f"a harness cannot be told of an input item of the type `{kind}`")


def _text(item: Item) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS:
            raise EpisodeFailure("malformed_task", f"a harness takes text, and the input has a part of type `{kind}`")
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)
