"""A model and an MCP server on a real port, for harnesses that are real programs: scripted turns, and faults.

It speaks the APIs of `tests.harness.dialects`. The turn that it plays is the number of model turns in the request, so a
retried request gets the same answer.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.dialects import Dialect, Turn, dialect_of, is_of_model

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
    """Plays `turns`, then says `done`.

    `fault` says what goes wrong instead of turn `fault_at` and all later ones. The first `lost` questions for the tools
    of the MCP server have no answer.
    """

    def __init__(
        self, turns: list[Turn] | None = None, *, fault: str = "", fault_at: int = 0, token: str = "", lost: int = 0
    ) -> None:
        self.turns = turns or []
        self.fault = fault
        self.fault_at = fault_at
        self.token = token
        self.lost = lost
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.tool_calls: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self.over = threading.Event()
        self.failing = False
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
        return [body for path, _, body in self.requests if is_of_model(path)]

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
                    elif not is_of_model(self.path):
                        self._json(404, {"error": "not found"})
                    else:
                        fake.asked.set()
                        self._model(dialect_of(self.path, body), streamed=body.get("stream") is True)
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
                        if fake.lost:
                            fake.lost -= 1
                            raise ConnectionResetError
                        result = {"tools": [TOOL]}
                    case "tools/call":
                        fake.tool_calls.append(body["params"])
                        value = f"value-of-{body['params']['arguments'].get('key')}"
                        result = {"content": [{"type": "text", "text": value}]}
                    case method:
                        error = {"code": -32601, "message": f"no method {method}"}
                        return self._json(200, {"jsonrpc": "2.0", "id": body["id"], "error": error})
                return self._json(200, {"jsonrpc": "2.0", "id": body["id"], "result": result})

            def _model(self, dialect: Dialect, *, streamed: bool) -> None:
                fake.failing = fake.failing or dialect.played >= fake.fault_at
                fault = fake.fault if fake.failing else ""
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
                given: Turn = [] if fault == "empty" else turn
                if streamed:
                    pieces = list(dialect.events(given, cut=fault == "length"))
                else:
                    pieces = [
                        f"{line}\n"
                        for line in json.dumps(dialect.answer(given, cut=fault == "length"), indent=0).split("\n")
                    ]
                if fault == "malformed":
                    pieces = ['data: {"this is": no json\n\n']
                return self._send(pieces[: len(pieces) // 2] if fault == "truncated" else pieces, streamed=streamed)

            def _send(self, pieces: list[str], *, streamed: bool) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if streamed else "application/json")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                for piece in pieces:
                    self.wfile.write(piece.encode())
                    self.wfile.flush()

        return Handler
