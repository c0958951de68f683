"""`gym doctor`: what works here. It never fails for what is missing, and never shows a key."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.commands import gym

KEY = "a-key-of-ours-0123456789"


class Endpoint(BaseHTTPRequestHandler):
    """Lists its models for who has the key; `/moved` leads elsewhere; the rest is not there."""

    seen: list[str] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if self.path == "/moved/models":
            self.send_response(302)
            self.send_header("location", "/v1/models")
        elif self.path == "/v1/models":
            self.send_response(200 if self.headers["authorization"] == f"Bearer {KEY}" else 401)
        else:
            self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def checks(cwd: Path, env: dict[str, str]) -> dict[str, dict[str, str]]:
    run = gym("doctor", "--json", cwd=cwd, env=env)
    assert KEY not in run.stdout + run.stderr
    return {item["name"]: item for item in json.loads(run.stdout)}


@pytest.mark.parametrize(
    ("path", "key", "state", "detail"),
    [
        ("/v1", KEY, "ok", "GET /models: HTTP 200"),
        ("/v1/", "wrong", "missing", "POLICY_API_KEY is refused (HTTP 401)"),
        ("/other", KEY, "note", "answers, but not to GET /models (HTTP 404)"),
        ("/moved", KEY, "ok", "GET /models: HTTP 302"),
    ],
)
def test_the_endpoint_is_asked_with_the_key(path, key, state, detail, endpoint, tmp_path) -> None:
    Endpoint.seen.clear()
    found = checks(tmp_path, {"POLICY_BASE_URL": endpoint + path, "POLICY_API_KEY": key})["policy endpoint"]
    assert (found["state"], found["detail"]) == (state, detail)
    assert Endpoint.seen == [path.rstrip("/") + "/models"]


def test_what_is_missing_is_named_with_what_it_is_needed_for(tmp_path) -> None:
    env = {
        "PATH": str(tmp_path),
        "DOCKER_HOST": "unix:///no/such.sock",
        "POLICY_BASE_URL": "http://127.0.0.1:1",
        "FIRST_API_KEY": KEY,
    }
    found = checks(tmp_path, env)
    for name in ("bubblewrap", "docker", "node", "npm", "git", "policy endpoint"):
        assert found[name]["state"] == "missing", found[name]
        assert found[name]["needed_for"]
    assert found["python"]["state"] == "ok"
    assert "FIRST_API_KEY" in found["keys"]["detail"]


def test_the_table(tmp_path) -> None:
    lines = gym("doctor", cwd=tmp_path).stdout.splitlines()
    assert lines[0].split() == ["part", "state", "detail", "needed", "for"]
    assert {line.split()[0] for line in lines[1:]} >= {"python", "bubblewrap", "docker", "disk", "env.yaml"}
