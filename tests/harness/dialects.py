"""The model APIs as the fake model speaks them: scripted turns, streamed and whole."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, Protocol

Turn = list[dict[str, Any]]
FINISH = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
USAGE = {"in": 1000, "cached": 400, "out": 50, "reasoning": 7}


class Dialect(Protocol):
    """One API, and the request that is to be answered.

    Attributes:
        played: Model turns that the request has.
    """

    played: int

    def events(self, turn: Turn, *, cut: bool) -> Iterator[str]:
        """The answer as a stream."""
        ...

    def answer(self, turn: Turn, *, cut: bool) -> dict[str, Any]:
        """The answer as a whole."""
        ...


def is_of_model(path: str) -> bool:
    """Whether a request asks the model."""
    return path.partition("?")[0].endswith(("/responses", "/chat/completions", "/messages"))


def dialect_of(path: str, body: dict[str, Any]) -> Dialect:
    """The API of a request to the model."""
    if path.partition("?")[0].endswith("/messages"):
        return Messages(body)
    return Chat(body) if "messages" in body else Responses(body)


class Responses:
    """The Responses API."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.tools = list(_flat(body.get("tools", [])))
        self.told = json.dumps(body["input"])
        said = [
            item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"
            for item in body["input"]
        ]
        self.played = sum(1 for before, now in zip([False, *said], said, strict=False) if now and not before)
        # A turn that this harness rejects is not in its history.
        self.played += self.told.count('"Tool call error:')

    def answer(self, turn: Turn, *, cut: bool) -> dict[str, Any]:
        turn = turn if cut else by_commands(turn, self.told)
        usage = {
            "input_tokens": USAGE["in"],
            "input_tokens_details": {"cached_tokens": USAGE["cached"]},
            "output_tokens": USAGE["out"],
            "output_tokens_details": {"reasoning_tokens": USAGE["reasoning"]},
            "total_tokens": USAGE["in"] + USAGE["out"],
        }
        return {
            "id": f"resp_{self.played}",
            "object": "response",
            "created_at": 1,
            "model": "fake",
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(part, f"{self.played}_{at}") for at, part in enumerate(turn)],
            "usage": usage,
        }

    def events(self, turn: Turn, *, cut: bool) -> Iterator[str]:
        answer = self.answer(turn, cut=cut)
        begun = {**answer, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield _event("response.created", response=begun)
        for at, item in enumerate(answer["output"]):
            yield _event("response.output_item.added", output_index=at, item=item)
            yield _event("response.output_item.done", output_index=at, item=item)
        yield _event(f"response.{answer['status']}", response=answer)

    def _item(self, part: dict[str, Any], suffix: str) -> dict[str, Any]:
        if "say" in part:
            content = [{"type": "output_text", "text": part["say"], "annotations": []}]
            return {"type": "message", "id": f"msg_{suffix}", "role": "assistant", "content": content}
        if "think" in part:
            summary = [{"type": "summary_text", "text": part["think"]}]
            return {"type": "reasoning", "id": f"rs_{suffix}", "summary": summary}
        name, arguments = _call(part, [name for _, name in self.tools])
        space = next((space for space, tool in self.tools if tool == name and space), None)
        item = {"type": "function_call", "id": f"fc_{suffix}", "call_id": f"call_{suffix}", "name": name}
        return item | {"arguments": arguments} | ({"namespace": space} if space else {})


class Chat:
    """Chat Completions."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.tools = [tool["function"]["name"] for tool in body.get("tools", [])]
        self.played = sum(1 for item in body["messages"] if item["role"] == "assistant")

    def answer(self, turn: Turn, *, cut: bool) -> dict[str, Any]:
        said = {
            "content": "".join(part["say"] for part in turn if "say" in part) or None,
            "reasoning_content": "".join(part["think"] for part in turn if "think" in part) or None,
            "tool_calls": [self._call(part, at) for at, part in enumerate(turn) if not {"say", "think"} & part.keys()],
        }
        finish = "length" if cut else "tool_calls" if said["tool_calls"] else "stop"
        message = {"role": "assistant", **{name: value for name, value in said.items() if value}}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage()}

    def events(self, turn: Turn, *, cut: bool) -> Iterator[str]:
        def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps({**self._head('chat.completion.chunk'), 'choices': [choice]})}\n\n"

        yield chunk({"role": "assistant", "content": ""})
        calls = 0
        for at, part in enumerate(turn):
            if "say" in part:
                yield chunk({"content": part["say"]})
            elif "think" in part:
                yield chunk({"reasoning_content": part["think"]})
            else:
                yield chunk({"tool_calls": [{"index": calls, **self._call(part, at)}]})
                calls += 1
        yield chunk({}, "length" if cut else "tool_calls" if calls else "stop")
        last = {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()}
        yield f"data: {json.dumps(last)}\n\n"
        yield "data: [DONE]\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.played}", "object": kind, "created": 1, "model": "fake"}

    def _call(self, part: dict[str, Any], at: int) -> dict[str, Any]:
        name, arguments = _call(part, self.tools)
        function = {"name": name, "arguments": arguments}
        return {"id": f"call_{self.played}_{at}", "type": "function", "function": function}

    @staticmethod
    def _usage() -> dict[str, Any]:
        return {
            "prompt_tokens": USAGE["in"],
            "completion_tokens": USAGE["out"],
            "total_tokens": USAGE["in"] + USAGE["out"],
            "prompt_tokens_details": {"cached_tokens": USAGE["cached"]},
            "completion_tokens_details": {"reasoning_tokens": USAGE["reasoning"]},
        }


class Messages:
    """Anthropic Messages."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.tools = [tool["name"] for tool in body.get("tools", [])]
        self.played = sum(1 for item in body["messages"] if item["role"] == "assistant")

    def answer(self, turn: Turn, *, cut: bool) -> dict[str, Any]:
        blocks = [self._block(part, at) for at, part in enumerate(turn)]
        for block in blocks:
            if "raw" in block:  # a whole answer has no place for arguments that are broken
                block["input"] = {"malformed_arguments": block.pop("raw")}
        return {**self._head(), "content": blocks, "stop_reason": self._stop(blocks, cut=cut), "usage": self._usage()}

    def events(self, turn: Turn, *, cut: bool) -> Iterator[str]:
        begun = {**self._usage(), "output_tokens": 1}
        yield _event("message_start", message={**self._head(), "content": [], "stop_reason": None, "usage": begun})
        blocks = [self._block(part, at) for at, part in enumerate(turn)]
        for at, block in enumerate(blocks):
            yield _event("content_block_start", index=at, content_block=self._empty(block))
            for delta in self._deltas(block):
                yield _event("content_block_delta", index=at, delta=delta)
            yield _event("content_block_stop", index=at)
        stop = {"stop_reason": self._stop(blocks, cut=cut), "stop_sequence": None}
        yield _event("message_delta", delta=stop, usage=self._usage())
        yield _event("message_stop")

    def _block(self, part: dict[str, Any], at: int) -> dict[str, Any]:
        if "say" in part:
            return {"type": "text", "text": part["say"]}
        if "think" in part:
            return {"type": "thinking", "thinking": part["think"], "signature": "signed"}
        name, arguments = _call(part, self.tools)
        block = {"type": "tool_use", "id": f"call_{self.played}_{at}", "name": name, "input": {}}
        try:
            return {**block, "input": json.loads(arguments)}
        except ValueError:
            return {**block, "raw": arguments}

    @staticmethod
    def _empty(block: dict[str, Any]) -> dict[str, Any]:
        """The block as it is before its first delta."""
        told = {name: value for name, value in block.items() if name in ("type", "id", "name")}
        return told | {name: type(value)() for name, value in block.items() if name not in (*told, "raw")}

    @staticmethod
    def _deltas(block: dict[str, Any]) -> list[dict[str, Any]]:
        match block["type"]:
            case "text":
                return [{"type": "text_delta", "text": block["text"]}]
            case "thinking":
                signed = {"type": "signature_delta", "signature": block["signature"]}
                return [{"type": "thinking_delta", "thinking": block["thinking"]}, signed]
        raw = block.get("raw") or json.dumps(block["input"])
        return [{"type": "input_json_delta", "partial_json": raw}]

    def _head(self) -> dict[str, Any]:
        head = {"id": f"msg_{self.played}", "type": "message", "role": "assistant", "model": "fake"}
        return {**head, "stop_sequence": None}

    @staticmethod
    def _stop(blocks: list[dict[str, Any]], *, cut: bool) -> str:
        called = any(block["type"] == "tool_use" for block in blocks)
        return "max_tokens" if cut else "tool_use" if called else "end_turn"

    @staticmethod
    def _usage() -> dict[str, Any]:
        return {
            "input_tokens": USAGE["in"] - USAGE["cached"],
            "cache_read_input_tokens": USAGE["cached"],
            "output_tokens": USAGE["out"],
        }


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _flat(tools: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Namespace and name of each function."""
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from ((tool["name"], inner["name"]) for inner in tool["tools"])
        elif "name" in tool:
            yield "", tool["name"]


SHELLS = {"exec_command": "cmd", "bash": "command", "shell": "command", "Bash": "command", "terminal": "command"}


def by_commands(turn: Turn, told: str) -> Turn:
    """The turn for a harness that has nothing but a shell, by which it ends, too; for others, as it is."""
    if FINISH not in told:
        return turn
    tool = re.search(r"(sh \S+/tool) NAME", told)
    parts = [{"shell": f"{tool[1]} {_listed(part, told)}"} if tool and "mcp" in part else part for part in turn]
    ends = bool(parts) and all({"say", "think"} & part.keys() for part in parts)
    return [*parts, {"shell": f"echo {FINISH}"}] if ends else parts


def _listed(part: dict[str, Any], told: str) -> str:
    name = re.search(rf"mcp__\w+__{part['mcp']}", told)
    assert name is not None
    return f"{name[0]} {shlex.quote(json.dumps(part['arguments']))}"


def _call(part: dict[str, Any], tools: list[str]) -> tuple[str, str]:
    if "shell" in part:
        name = next(tool for tool in tools if tool in SHELLS)
        return name, json.dumps({SHELLS[name]: part["shell"]})
    if "broken_shell" in part:
        return next(tool for tool in tools if tool in SHELLS), part["broken_shell"]
    if "mcp" in part:
        return next(tool for tool in tools if tool.endswith(part["mcp"])), json.dumps(part["arguments"])
    raw = part.get("arguments", {})
    return part["call"], raw if isinstance(raw, str) else json.dumps(raw)
