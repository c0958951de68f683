"""What mini-SWE-agent's adapter brings into the sandbox: the keeper of tool servers, and the list of skills."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from responses_api_agents.mini_swe_agent.inside import gym_skills, stdio_servers

SERVER = """
import json, sys
calls = 0
def say(**fields):
    print(json.dumps({"jsonrpc": "2.0", **fields}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            say(method="notifications/message", params={})
            say(id=message["id"], result={"protocolVersion": "2025-06-18"})
        case "asks":
            heard = []
            for number, method in enumerate(["ping", "sampling/createMessage"]):
                say(id=number, method=method)
                heard.append(json.loads(sys.stdin.readline()))
            say(id=message["id"], result={"heard": heard})
        case "counts":
            calls += 1
            say(id=message["id"], result={"calls": calls})
        case "refuses":
            say(id=message["id"], error={"code": 1, "message": "not now"})
        case "dies":
            sys.exit("it broke")
"""
LOST = "No such file or directory"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a server is kept, and one whose program there is not; the path is too long for a socket."""
    path = tmp_path / ("long" * 30)
    path.mkdir()
    command = [sys.executable, "-c", SERVER]
    servers = [{"name": "good", "command": command}, {"name": "lost", "command": ["no-such-program"]}]
    with stdio_servers.kept(path, [*servers, {"name": "web", "command": []}]):
        yield path


def ask(folder: Path, method: str, name: str = "good") -> Any:
    return stdio_servers.ask(folder, name, method, {}, 10)


def test_a_server_keeps_its_state_and_gets_answers(folder: Path) -> None:
    assert [ask(folder, "counts") for _ in range(2)] == [{"calls": 1}, {"calls": 2}]
    ping, sampling = ask(folder, "asks")["heard"]
    assert ping == {"jsonrpc": "2.0", "id": 0, "result": {}}
    assert sampling["error"]["code"] == -32601


def test_failures_of_servers_are_told(folder: Path) -> None:
    failing = [("refuses", "good", "not now"), ("counts", "lost", LOST), ("dies", "good", "exit code 1: it broke")]
    for method, name, told in failing:
        with pytest.raises(stdio_servers.ServerFailed, match=told):
            ask(folder, method, name)
    with pytest.raises(stdio_servers.ServerFailed, match="it has ended, with exit code 1: it broke"):
        ask(folder, "counts")
    with pytest.raises(stdio_servers.ServerFailed, match="it is not there any more"):
        ask(folder, "counts", "unknown")


def test_a_server_that_says_nothing_is_not_waited_for_without_end(folder: Path) -> None:
    with pytest.raises(stdio_servers.ServerFailed, match="no answer to silence within 0 s"):
        stdio_servers.ask(folder, "good", "silence", {}, 0.2)
    assert ask(folder, "counts") == {"calls": 1}


def test_skills_without_a_name_and_a_description_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert gym_skills.described() == ""
    heads = ["name: a\ndescription: |\n  Does\n  things.", "name: b", "- a list", "name: [", "name: c\ndescription: 3"]
    texts = [*(f"---\r\n{head}\r\n---\r\n" for head in heads), "no head", "", "---\nname: d\n", "\xff"]
    for number, text in enumerate(texts):
        path = tmp_path / ".agents/skills" / str(number) / "SKILL.md"
        path.parent.mkdir(parents=True)
        path.write_bytes(text.encode("latin-1"))
    lines = [line for line in gym_skills.described().splitlines() if line.startswith("- ")]
    assert lines == [f"- a: Does things. ({tmp_path}/.agents/skills/0/SKILL.md)"]
