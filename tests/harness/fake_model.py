"""A model and an MCP server on a real port, for harnesses that are real programs: scripted turns, and faults.

It speaks Responses and Chat Completions, streamed. The turn that it plays is the number of model turns in the request,
so a retried request gets the same answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Turn = list[dict[str, Any]]
USAGE = {"in": 1000, "cached": 400, "out": 50, "reasoning": 7}
TOOL = {
    "name": "lookup_value",
    "description": "Looks up the value of a key.",
    "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}


def say(text: str) -> dict[str, Any]:
    return {"say": text}


def shell(command: str) -> dict[str, Any]:
    """A call of whatever shell tool the harness offers."""
    return {"shell": command}


def mcp(tool: str, **arguments: Any) -> dict[str, Any]:
    """A call of an MCP tool under the name that the harness gives it."""
    return {"mcp": tool, "arguments": arguments}


class FakeModel:
    """Plays `turns`, then says `done`. `fault` says what goes wrong instead of turn `fault_at` and all later ones."""

    def __init__(self, turns: list[Turn] | None = None, *, fault: str = "", fault_at: int = 0, token: str = "") -> None:
        self.turns = turns or []
        self.fault = fault
        self.fault_at = fault_at
        self.token = token
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.tool_calls: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FakeModel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def model_requests(self) -> list[dict[str, Any]]:
        """Bodies of the requests to the model."""
        return [body for path, _, body in self.requests if not path.endswith("/mcp")]

    def _handler(fake: FakeModel) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                """Says nothing."""

            def do_GET(self) -> None:
                self.send_error(405)

            do_DELETE = do_GET

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                headers = {name.lower(): value for name, value in self.headers.items()}
                fake.requests.append((self.path, headers, body))
                try:
                    if self.path.endswith("/mcp"):
                        self._mcp(headers, body)
                    else:
                        fake.asked.set()
                        self._model(body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def _json(self, status: int, content: Any) -> None:
                raw = json.dumps(content).encode() if content is not None else b""
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def _mcp(self, headers: dict[str, str], body: dict[str, Any]) -> None:
                if headers.get("x-token", "") != fake.token:
                    return self._json(401, {"error": "wrong token"})
                if "id" not in body:
                    return self._json(202, None)
                result: dict[str, Any] = {}
                match body["method"]:
                    case "initialize":
                        version = body["params"]["protocolVersion"]
                        info = {"name": "fake", "version": "1"}
                        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
                    case "tools/list":
                        result = {"tools": [TOOL]}
                    case "tools/call":
                        fake.tool_calls.append(body["params"])
                        value = f"value-of-{body['params']['arguments'].get('key')}"
                        result = {"content": [{"type": "text", "text": value}]}
                return self._json(200, {"jsonrpc": "2.0", "id": body["id"], "result": result})

            def _model(self, body: dict[str, Any]) -> None:
                dialect = Chat(body) if "messages" in body else Responses(body)
                fault = fake.fault if dialect.played >= fake.fault_at else ""
                if fault.isdigit():
                    return self._json(int(fault), {"error": {"message": f"a {fault} of the test", "type": "test"}})
                if fault == "context":
                    message = "This model's maximum context length is 1000 tokens"
                    error = {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}
                    return self._json(400, {"error": error})
                if fault == "hang":
                    fake.over.wait(60)
                    return None
                turn = fake.turns[dialect.played] if dialect.played < len(fake.turns) else [say("done")]
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                if fault == "malformed":
                    self.wfile.write(b'data: {"this is": no json\n\n')
                    return None
                events = list(dialect.events([] if fault == "empty" else turn, cut=fault == "length"))
                for event in events[: len(events) // 2] if fault == "truncated" else events:
                    self.wfile.write(event.encode())
                    self.wfile.flush()
                return None

        return Handler


class Responses:
    """The Responses API, streamed."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.tools = list(_flat(body.get("tools", [])))
        said = [
            item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"
            for item in body["input"]
        ]
        self.played = sum(1 for before, now in zip([False, *said], said, strict=False) if now and not before)

    def events(self, turn: Turn, *, cut: bool) -> Iterator[str]:
        number = self.played
        items = [self._item(part, f"{number}_{at}") for at, part in enumerate(turn)]
        answer: dict[str, Any] = {
            "id": f"resp_{number}",
            "object": "response",
            "model": "fake",
            "status": "in_progress",
            "output": [],
        }
        yield self._event("response.created", response=answer)
        for at, item in enumerate(items):
            yield self._event("response.output_item.added", output_index=at, item=item)
            yield self._event("response.output_item.done", output_index=at, item=item)
        usage = {
            "input_tokens": USAGE["in"],
            "input_tokens_details": {"cached_tokens": USAGE["cached"]},
            "output_tokens": USAGE["out"],
            "output_tokens_details": {"reasoning_tokens": USAGE["reasoning"]},
            "total_tokens": USAGE["in"] + USAGE["out"],
        }
        status = "incomplete" if cut else "completed"
        answer |= {"status": status, "output": items, "usage": usage}
        answer |= {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {}
        yield self._event(f"response.{status}", response=answer)

    @staticmethod
    def _event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

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
    """Chat Completions, streamed."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.tools = [tool["function"]["name"] for tool in body.get("tools", [])]
        self.played = sum(1 for item in body["messages"] if item["role"] == "assistant")

    def events(self, turn: Turn, *, cut: bool) -> Iterator[str]:
        head = {"id": f"chatcmpl-{self.played}", "object": "chat.completion.chunk", "created": 1, "model": "fake"}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

        yield chunk({"role": "assistant", "content": ""})
        calls = 0
        for at, part in enumerate(turn):
            if "say" in part:
                yield chunk({"content": part["say"]})
            elif "think" in part:
                yield chunk({"reasoning_content": part["think"]})
            else:
                name, arguments = _call(part, self.tools)
                function = {"name": name, "arguments": arguments}
                call = {"index": calls, "id": f"call_{self.played}_{at}", "type": "function", "function": function}
                yield chunk({"tool_calls": [call]})
                calls += 1
        yield chunk({}, "length" if cut else "tool_calls" if calls else "stop")
        usage = {
            "prompt_tokens": USAGE["in"],
            "completion_tokens": USAGE["out"],
            "total_tokens": USAGE["in"] + USAGE["out"],
            "prompt_tokens_details": {"cached_tokens": USAGE["cached"]},
            "completion_tokens_details": {"reasoning_tokens": USAGE["reasoning"]},
        }
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"


def _flat(tools: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Namespace and name of each function."""
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from ((tool["name"], inner["name"]) for inner in tool["tools"])
        elif "name" in tool:
            yield "", tool["name"]


SHELLS = {"exec_command": "cmd", "bash": "command", "shell": "command", "Bash": "command", "terminal": "command"}


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
