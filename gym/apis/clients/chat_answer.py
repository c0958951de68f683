"""A neutral answer as a chat completion, whole or streamed. Reasoning goes into `reasoning_content`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym.apis import sse
from gym.apis.carry import kind_of, reasoning_text, spoken_text, unread_part
from gym.apis.events import Delta, Ended, Event, ItemDone, ItemStarted, Started, ended
from gym.apis.responses import Item, ResponsesResponse, Usage, new_id
from gym.failures import EpisodeFailure

FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
KNOWN = {"message", "reasoning", *CALLS}
Object = dict[str, Any]


def to_completion(response: ResponsesResponse) -> Object:
    """The chat completion that a response is."""
    items: dict[str, list[Item]] = {kind: [] for kind in KNOWN}
    for item in response.output:
        items[_known(item)].append(item)
    calls = [_call(item) for item in response.output if kind_of(item) in CALLS]
    text = "\n".join(filter(None, (spoken_text(item, "text") for item in items["message"])))
    refused = "\n".join(filter(None, (spoken_text(item, "refusal") for item in items["message"])))
    said: Object = {"role": "assistant", "content": text or None, "refusal": refused or None}
    if cited := _annotations(items["message"]):
        said["annotations"] = cited
    if thought := "\n".join(filter(None, map(reasoning_text, items["reasoning"]))):
        said["reasoning_content"] = thought
    if calls:
        said["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": said,
        "logprobs": None,
        "finish_reason": finish_reason(ended(response), bool(calls)),
    }
    return {
        "id": response.id,
        "object": "chat.completion",
        "created": int(response.created_at),
        "model": response.model,
        "choices": [choice],
        "usage": chat_usage(response.usage),
    }


def _known(item: Item) -> str:
    kind = kind_of(item)
    if kind not in KNOWN:
        raise EpisodeFailure("malformed_answer", f"an item of type `{kind}` cannot be carried to Chat Completions")
    if kind == "message" and (odd := unread_part(item)):
        raise EpisodeFailure("malformed_answer", f"a part of type `{odd}` cannot be carried to Chat Completions")
    return kind


def _annotations(items: Iterable[Item], before: int = 0) -> list[Object]:
    """The sources of messages, as far as the API has them: pages of the web. Their places are those in the joined text.

    Args:
        before: Characters of text before these messages.
    """
    found = []
    for item in items:
        content = item.get("content")
        for part in content if isinstance(content, list) else ():
            for given in part.get("annotations") or ():
                cited = {key: value for key, value in given.items() if key != "type"}
                shifted = {key: cited[key] + before for key in ("start_index", "end_index") if key in cited}
                if given.get("type") == "url_citation":
                    found.append({"type": "url_citation", "url_citation": cited | shifted})
            before += len(str(part.get("text") or ""))
        before += 1 if spoken_text(item, "text") else 0
    return found


def _call(item: Item) -> Object:
    kind, key = CALLS[kind_of(item)]
    return {"id": item["call_id"], "type": kind, kind: {"name": item["name"], key: item.get(key, "")}}


def finish_reason(end: Ended, called: bool) -> str:
    """Why a completion ended."""
    return FINISH_REASONS.get(end.incomplete or "", "length" if end.incomplete else "tool_calls" if called else "stop")


def chat_usage(usage: Usage | None) -> Object | None:
    """Usage in Chat Completions' names; unknown details are left out."""
    if usage is None:
        return None
    counted: Object = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens or usage.input_tokens + usage.output_tokens,
    }
    if usage.input_tokens_details:
        counted["prompt_tokens_details"] = usage.input_tokens_details
    if usage.output_tokens_details:
        counted["completion_tokens_details"] = usage.output_tokens_details
    return counted


@dataclass
class ChatEncoder:
    """Streams one completion. `include_usage` asks for a last chunk with the usage."""

    include_usage: bool = False
    _head: Object = field(default_factory=dict)
    _calls: int = 0
    _last: dict[str, tuple[int, int]] = field(default_factory=dict)
    _item: int = 0
    _spoken: int = 0

    def event(self, event: Event) -> bytes:
        """The chunks of an event."""
        match event:
            case Started(id_, model):
                self._head = {
                    "id": id_ or new_id("chatcmpl"),
                    "object": "chat.completion.chunk",
                    "created": int(time.time()),
                    "model": model,
                }
                return self._chunk({"role": "assistant", "content": ""})
            case ItemStarted(item):
                return self._item_started(item)
            case Delta():
                return self._delta(event)
            case ItemDone(item):
                _known(item)
                cited = _annotations([item], self._spoken - len(spoken_text(item, "text")))
                return self._chunk({"annotations": cited}) if cited else b""
            case Ended():
                return self._end(event)

    def _chunk(self, delta: Object, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse.encoded({**self._head, "choices": [choice]})

    def _item_started(self, item: Item) -> bytes:
        self._item += 1
        kind = _known(item)
        if kind not in CALLS:
            return b""
        self._calls += 1
        return self._chunk({"tool_calls": [{"index": self._calls - 1, **_call(item)}]})

    def _delta(self, delta: Delta) -> bytes:
        match delta.kind:
            case "arguments":
                call: Object = {"function": {"arguments": delta.text}}
            case "input":
                call = {"custom": {"input": delta.text}}
            case "refusal":
                return self._chunk({"refusal": self._joined("refusal", delta)})
            case "text":
                text = self._joined("content", delta)
                self._spoken += len(text)
                return self._chunk({"content": text})
            case _:
                return self._chunk({"reasoning_content": self._joined("reasoning_content", delta)})
        return self._chunk({"tool_calls": [{"index": self._calls - 1, **call}]})

    def _joined(self, name: str, delta: Delta) -> str:
        """The text, behind a new line where it begins another item, or another part of reasoning."""
        place = self._item, delta.part if name == "reasoning_content" else 0
        before = self._last.get(name, place)
        self._last[name] = place
        return delta.text if place == before else "\n" + delta.text

    def _end(self, end: Ended) -> bytes:
        last = self._chunk({}, finish_reason(end, self._calls > 0))
        usage = (
            sse.encoded({**self._head, "choices": [], "usage": chat_usage(end.usage)}) if self.include_usage else b""
        )
        return last + usage + sse.DONE


def include_usage(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for usage in its stream."""
    return bool((body.get("stream_options") or {}).get("include_usage"))
