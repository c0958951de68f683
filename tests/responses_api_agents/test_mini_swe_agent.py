"""mini-SWE-agent: its settings, what is read from its events, and the command by which it calls tools."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gym.harness.adapter import Evidence, Reading, ToolServer
from gym.servers.base import Call, ServerError
from gym.servers.contract import AgentSessionRequest
from responses_api_agents.mini_swe_agent.app import INSIDE, MiniSweAgent
from responses_api_agents.mini_swe_agent.session import read as read_evidence
from tests.harness.turns import adapter, turn

USAGE = {
    "input_tokens": 100,
    "output_tokens": 10,
    "total_tokens": 110,
    "input_tokens_details": {"cached_tokens": 40},
    "output_tokens_details": {"reasoning_tokens": 3},
}


def event(name: str, **fields: Any) -> str:
    return json.dumps({"event": name, **fields})


def answer(name: str, *items: dict[str, Any], incomplete: str | None = None) -> str:
    return event("answer", id=name, items=items, usage=USAGE, incomplete=incomplete)


def executed(call_id: str, output: str, returncode: int = 0) -> str:
    return event("executed", call_id=call_id, output=output, returncode=returncode, begun=10.5, ended=11.0)


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "bash", "arguments": '{"command": "ls"}'}


EVENTS = [
    answer("r1", {"type": "reasoning", "summary": []}, call("c1"), call("c2")),
    executed("c1", "a"),
    executed("c2", "", 1),
    event("observed", call_id="c1", output='{"returncode": 0, "output": "a"}'),
    event("observed", call_id="c2", output='{"returncode": 1, "output": ""}'),
    answer("r2", {"type": "message", "content": [{"type": "output_text", "text": "Done."}]}, call("c3")),
    executed("c3", "42\n"),
    event("end", exit_status="Submitted", submission="42\n"),
]


def read(*lines: str) -> Reading:
    return read_evidence(Evidence(stdout="\n".join(lines), exit_code=0))


def test_its_events_tell_all() -> None:
    reading = read(*EVENTS)
    assert [item["type"] for item in reading.items] == [
        *("reasoning", "function_call", "function_call", "function_call_output", "function_call_output"),
        *("message", "function_call", "function_call_output"),
    ]
    assert (reading.items[3]["call_id"], reading.items[7]["output"]) == ("c1", "42\n")
    assert (reading.stop, reading.error, reading.responses, reading.model_calls) == ("completed", None, ["r1", "r2"], 2)
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.total_tokens) == (200, 220)
    assert (reading.timings["c1"].duration_ms, reading.timings["c2"].failed) == (500, True)


def test_a_command_that_ran_is_not_lost() -> None:
    reading = read(*EVENTS[:2], EVENTS[2][:20])
    assert [item["type"] for item in reading.items][-1] == "function_call_output"
    assert (reading.items[-1]["output"], reading.stop) == ("a", None)


OUTCOMES = [
    ([event("end", exit_status="RepeatedFormatError")], "completed", None, None),
    (
        [answer("r", incomplete="max_output_tokens"), event("end", exit_status="RepeatedFormatError")],
        *("cut", None, None),
    ),
    ([event("end", exit_status="LimitsExceeded")], "max_turns", None, None),
    ([event("end", exit_status="somehow else")], None, None, None),
    ([event("error", message="HTTP 500: x", kind=None)], None, "HTTP 500: x", None),
    ([event("error", message="no JSON", kind="malformed_answer")], None, "no JSON", "malformed_answer"),
    ([], None, None, None),
]


@pytest.mark.parametrize(("lines", "stop", "error", "kind"), OUTCOMES)
def test_how_it_ended(lines: list[str], stop: str | None, error: str | None, kind: str | None) -> None:
    reading = read(*EVENTS[:5], *lines)
    wanted = "max_output_tokens" if stop == "cut" else stop
    assert (reading.stop, reading.error, reading.error_kind) == (wanted, error, kind)


@given(cut=st.integers(0, 2000), junk=st.text(max_size=20))
def test_no_evidence_breaks_it(cut: int, junk: str) -> None:
    whole = "\n".join(EVENTS)
    read(whole[:cut])
    read(whole[:cut] + junk + whole[cut:])


@pytest.mark.parametrize("wrong", [None, 1, "x", [], {}, [1], [{"type": "function_call", "name": 5}]])
@pytest.mark.parametrize("name", ["items", "usage", "call_id", "output", "begun", "message", "exit_status"])
def test_no_shape_breaks_it(name: str, wrong: Any) -> None:
    read(*(json.dumps({**json.loads(line), name: wrong}) for line in EVENTS))


def test_what_it_is_told() -> None:
    tools = (ToolServer("grant-a", "http://host:1/mcp", {"authorization": "Bearer x"}, required=False),)
    made = adapter(
        MiniSweAgent,
        max_turns=3,
        command_timeout_seconds=9,
        request_settings={"temperature": 0},
        extra_config={"agent": {"step_limit": 5}},
    ).invocation(turn(tools=tools, system_prompt="mine {{ x }}", max_output_tokens=7))
    assert made.argv == ["/gym/harness/program", "/.gym-1/drive.py"]
    assert made.stdin is not None
    told = json.loads(made.stdin)
    assert (told["task"], told["system_prompt"], told["append"]) == ("do it", "mine {{ x }}", True)
    assert told["model"]["url"] == "http://host:1/policy_model"
    assert told["model"]["settings"] == {"max_output_tokens": 7, "temperature": 0}
    assert told["settings"] == [
        {"agent": {"step_limit": 5}},
        {"agent": {"step_limit": 3}, "environment": {"timeout": 9}},
    ]
    assert "    sh /.gym-1/tool NAME 'ARGUMENTS'\n" in told["tools"]
    (server,) = json.loads(made.files["tools.json"])["servers"]
    assert (server["name"], server["required"]) == ("grant_a", False)
    assert made.files["tool"] == 'exec /gym/harness/program /.gym-1/gym_tools.py "$@"\n'
    assert "key" not in json.dumps([made.argv, dict(made.env)])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"user": "agent"}, "runs only where the task runs as root"),
        ({"extra_args": ["--x"]}, "takes no further arguments"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        adapter(MiniSweAgent, **settings)
    adapter(MiniSweAgent, user="root")


async def test_a_task_user_is_refused() -> None:
    seed = {"agent_session_id": "s", "episode_id": {"rollout_id": "r"}, "task_id": {"taskset": "t", "task_id": "1"}}
    connection = {"provider_config_ref": "sandbox", "descriptor": {}}
    access = {"connection": connection, "workdir": "/work", "user": "agent"}
    refusing = adapter(MiniSweAgent)
    with pytest.raises(ServerError, match="runs only where the task runs as root") as refused:
        await refusing.seed_session(AgentSessionRequest.model_validate({**seed, "sandbox_access": access}), Call())
    assert refused.value.status == 422
    await refusing.stop()


class Server:
    """An MCP server with sessions, pages, and answers as an event stream."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sessions = 0
        self.forgets = False
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/mcp"

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method, params:
            case "tools/list", {"cursor": "2"}:
                return {"tools": [{"name": "fail"}]}
            case "tools/list", _:
                return {"tools": [{"name": "add", "description": "Adds.", "inputSchema": {}}], "nextCursor": "2"}
            case "tools/call", {"name": "add"}:
                return {"content": [{"type": "image"}, {"type": "text", "text": str(sum(params["arguments"]["of"]))}]}
            case "tools/call", _:
                return {"content": [], "structuredContent": {"why": "not today"}, "isError": True}
        return {"protocolVersion": "2025-03-26", "capabilities": {}}

    def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Says nothing."""

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.asked.append(body["method"])
                if body["method"] == "initialize":
                    server.sessions += 1
                elif self.headers["mcp-session-id"] != f"s{server.sessions}" or server.forgets:
                    server.forgets = False
                    return self.send_error(404)
                elif self.headers["mcp-protocol-version"] != "2025-03-26":
                    return self.send_error(400)
                self.send_response(200 if "id" in body else 202)
                self.send_header("mcp-session-id", f"s{server.sessions}")
                self.send_header("content-type", "text/event-stream; charset=utf-8")
                self.end_headers()
                answer = {"jsonrpc": "2.0", "id": 1, "result": server.result(body["method"], body.get("params", {}))}
                note = 'data: {"jsonrpc": "2.0",\r\ndata: "method": "notifications/progress"}\r\n\r\n'
                self.wfile.write(f": begin\n{note}data: {json.dumps(answer)}\n\n".encode())
                return None

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def command(server: Server, tmp_path: Path) -> Path:
    """The command in a folder, with this server and one that is not there."""
    for name in ("gym_tools.py", "stdio_servers.py"):
        shutil.copy(INSIDE / name, tmp_path)
    servers = [
        {"name": "math", "url": server.url, "headers": {}, "command": [], "required": True},
        {"name": "gone", "url": "http://127.0.0.1:9/mcp", "headers": {}, "command": [], "required": False},
    ]
    (tmp_path / "tools.json").write_text(json.dumps({"servers": servers, "timeout_seconds": 10}), encoding="utf-8")
    return tmp_path / "gym_tools.py"


def run(command: Path, *words: str, stdin: str = "") -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-I", str(command), *words], input=stdin, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_command_keeps_one_session(command: Path, server: Server) -> None:
    code, out, err = run(command, "list")
    assert code == 0
    assert out.startswith("### mcp__math__add\n\nAdds.\n\nArguments (JSON Schema): {}\n\n### mcp__math__fail")
    assert "gone is left out: gone: " in err
    assert run(command, "mcp__math__add", '{"of": [1, 2]}') == (0, "[image]\n3\n", "")
    assert run(command, "mcp__math__add", "-", stdin='{"of": [4]}') == (0, "[image]\n4\n", "")
    assert run(command, "mcp__math__fail") == (1, '{"why": "not today"}\n', "")
    assert server.asked.count("initialize") == 1
    server.forgets = True
    assert run(command, "mcp__math__add", '{"of": [1]}')[0] == 0
    assert server.asked.count("initialize") == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "usage: tool list"),
        (["mcp__other__x", "{}"], "error: there is no tool mcp__other__x"),
        (["mcp__gone__x", "{}"], "error: gone: "),
        (["mcp__math__add", "{"], "error: the JSON cannot be read"),
        (["mcp__math__add", "[]"], "error: the arguments are no JSON object"),
    ],
)
def test_what_the_command_refuses(command: Path, words: list[str], told: str) -> None:
    code, out, err = run(command, *words)
    assert (code, out) == (2, "")
    assert err.startswith(told)


def test_a_required_server_that_is_not_there(command: Path) -> None:
    settings = command.with_name("tools.json")
    settings.write_text(settings.read_text(encoding="utf-8").replace("false", "true"), encoding="utf-8")
    code, _, err = run(command, "check")
    assert (code, err.startswith("error: gone: ")) == (2, True)
