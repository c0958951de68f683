"""The tools of the task, for a harness that has nothing but a shell: a command that lists and calls MCP tools.

Runs in the sandbox, with the harness's own Python and nothing but its standard library. `tools.json` beside it says
where the servers are; a server's session is kept beside it too, so that one session serves all calls. Servers that are
commands are kept by `stdio_servers`.
"""

from __future__ import annotations

import importlib
import json
import sys
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# A Python that leaves everything out leaves the script's own folder out, too.
sys.path.insert(0, str(HERE))
stdio_servers: Any = importlib.import_module("stdio_servers")

PROTOCOL = stdio_servers.PROTOCOL
Object = dict[str, Any]


class ToolError(Exception):
    """A tool, or its server, failed; the text says how."""


class Server(ABC):
    """One MCP server."""

    def __init__(self, settings: Object, timeout_seconds: float) -> None:
        self.name: str = settings["name"]
        self.required: bool = settings["required"]
        self._settings = settings
        self._timeout = timeout_seconds

    @abstractmethod
    def _ask(self, method: str, params: Object) -> Object:
        """The server's answer."""

    def tools(self) -> list[Object]:
        """Its tools, as it describes them."""
        found: list[Object] = []
        cursor: Object = {}
        while True:
            page = self._ask("tools/list", cursor)
            found += page.get("tools") or []
            if not page.get("nextCursor"):
                return found
            cursor = {"cursor": page["nextCursor"]}

    def call(self, tool: str, arguments: Object) -> tuple[str, bool]:
        """What a tool says, and whether it says that it failed."""
        result = self._ask("tools/call", {"name": tool, "arguments": arguments})
        texts = [part.get("text") or f"[{part.get('type')}]" for part in result.get("content") or []]
        if not texts and "structuredContent" in result:
            texts = [json.dumps(result["structuredContent"])]
        return "\n".join(texts), bool(result.get("isError"))


class Command(Server):
    """One that is a command; it runs elsewhere."""

    def _ask(self, method: str, params: Object) -> Object:
        try:
            answer: Object = stdio_servers.ask(HERE, self.name, method, params, self._timeout)
        except stdio_servers.ServerFailed as failure:
            raise ToolError(f"{self.name}: {failure}") from failure
        return answer


class Web(Server):
    """One over streamable HTTP."""

    def __init__(self, settings: Object, timeout_seconds: float) -> None:
        super().__init__(settings, timeout_seconds)
        self._kept = HERE / f"session-{self.name}.json"

    def _ask(self, method: str, params: Object) -> Object:
        known = json.loads(self._kept.read_text(encoding="utf-8")) if self._kept.exists() else None
        try:
            return self._send(method, params, known or self._begin())
        except urllib.error.HTTPError as error:
            if known is None or error.code not in (400, 404):
                raise _told(self.name, error) from error
        except OSError as error:
            raise _told(self.name, error) from error
        try:  # the server has forgotten the session
            return self._send(method, params, self._begin())
        except OSError as error:
            raise _told(self.name, error) from error

    def _begin(self) -> Object:
        """Opens a session; the headers of its requests are kept."""
        client = {"name": "gym", "version": "1"}
        asked = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
        session: Object = {}
        agreed = self._send("initialize", asked, session).get("protocolVersion", PROTOCOL)
        session["mcp-protocol-version"] = agreed
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, session).close()
        self._kept.write_text(json.dumps(session), encoding="utf-8")
        return session

    def _send(self, method: str, params: Object, session: Object) -> Object:
        with self._post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, session) as response:
            if method == "initialize" and (name := response.headers.get("mcp-session-id")):
                session["mcp-session-id"] = name
            streamed = response.headers.get("content-type", "").startswith("text/event-stream")
            messages = _events(response) if streamed else iter([json.load(response)])
            answer = next((message for message in messages if message.get("id") == 1), None)
        if answer is None:
            raise ToolError(f"{self.name}: no answer")
        if "error" in answer:
            raise ToolError(f"{self.name}: {answer['error'].get('message')}")
        result: Object = answer["result"]
        return result

    def _post(self, message: Object, session: Object) -> Any:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        request = urllib.request.Request(
            self._settings["url"], json.dumps(message).encode(), {**headers, **session, **self._settings["headers"]}
        )
        return OPENER.open(request, timeout=self._timeout)


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy of the image is not for what Gym serves."""


def _events(response: Any) -> Iterator[Object]:
    """The messages of an event stream."""
    data = ""
    for raw in response:
        line = raw.decode("utf-8").rstrip("\r\n")
        if line.startswith("data:"):
            data += line[5:].removeprefix(" ") + "\n"
        elif not line and data:
            yield json.loads(data)
            data = ""


def _told(name: str, error: OSError) -> ToolError:
    if isinstance(error, urllib.error.HTTPError):
        return ToolError(f"{name}: HTTP {error.code}: {error.read(500).decode('utf-8', 'replace')}")
    return ToolError(f"{name}: {getattr(error, 'reason', error)}")


def told() -> Object:
    """What `tools.json` says."""
    settings: Object = json.loads((HERE / "tools.json").read_text(encoding="utf-8"))
    return settings


def servers() -> list[Server]:
    """Those of `tools.json`."""
    known = told()
    return [(Command if one["command"] else Web)(one, known["timeout_seconds"]) for one in known["servers"]]


def kept() -> Any:
    """A context in which the servers that are commands run."""
    return stdio_servers.kept(HERE, told()["servers"])


def listed() -> dict[str, tuple[Server, Object]]:
    """All tools by the name that they have here; an optional server that fails has none.

    Raises:
        ToolError: A server that the task requires cannot be reached.
    """
    found = {}
    for server in servers():
        try:
            tools = server.tools()
        except (ToolError, ValueError) as error:
            if server.required:
                raise ToolError(str(error)) from error
            print(f"{server.name} is left out: {error}", file=sys.stderr)
            continue
        found.update({f"mcp__{server.name}__{tool['name']}": (server, tool) for tool in tools})
    return found


def described() -> str:
    """The tools, as a harness can show them to a model; empty where there are none."""
    texts = []
    for name, (_, tool) in listed().items():
        schema = json.dumps(tool.get("inputSchema") or {})
        texts.append(f"### {name}\n\n{(tool.get('description') or '').strip()}\n\nArguments (JSON Schema): {schema}")
    return "\n\n".join(texts)


def call(name: str, raw: str) -> int:
    """Calls a tool and prints what it says; returns the exit code."""
    arguments = json.loads(raw or "{}")
    if not isinstance(arguments, dict):
        raise ToolError("the arguments are no JSON object")
    server = next((item for item in servers() if name.startswith(f"mcp__{item.name}__")), None)
    if server is None:
        raise ToolError(f"there is no tool {name}; `list` shows those that there are")
    text, failed = server.call(name.removeprefix(f"mcp__{server.name}__"), arguments)
    print(text)
    return 1 if failed else 0


def main(words: list[str]) -> int:
    """`check`, `list`, or the name of a tool and its arguments as JSON (`-`: from standard input)."""
    try:
        match words:
            case ["check"]:
                with kept():
                    listed()
            case ["list"]:
                print(described())
            case [name]:
                return call(name, "{}")
            case [name, raw]:
                return call(name, sys.stdin.read() if raw == "-" else raw)
            case _:
                print("usage: tool list | tool NAME ['JSON ARGUMENTS' | -]", file=sys.stderr)
                return 2
    except ValueError as error:
        print(f"error: the JSON cannot be read: {error}", file=sys.stderr)
        return 2
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
