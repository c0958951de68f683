#!/usr/bin/python3
"""Stands in for the daemon that OpenSandbox puts into each sandbox, in our tests only.

It answers the calls that our provider makes through the SDK, and copies the habits of the real daemon (1.0.19) that a
provider has to live with: output goes through files and arrives line by line as text, without its line ends; a command
that a signal ended has the code -1; a client that goes away takes the command's process group with it; the stream of a
finished command stays open for another second. Standard library only: it runs in the sandbox.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PORT = 44772
TICK_SECONDS = 0.05
LINGER_SECONDS = 1.0
PING_SECONDS = 3.0
SHELL = shutil.which("bash") or "sh"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Says nothing."""

    def handle_one_request(self) -> None:
        """A client may go away at any time."""
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _route(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path.removeprefix(f"/proxy/{PORT}"))
        return f"{self.command} {parts.path}", parse_qs(parts.query)

    def _answer(self, status: int, content: object = None) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, status: int, code: str, message: str) -> None:
        self._answer(status, {"code": code, "message": message})

    def do_GET(self) -> None:
        route, query = self._route()
        match route:
            case "GET /ping":
                self._answer(200)
            case "GET /files/download":
                self._download(Path(query["path"][0]))
            case _:
                self._fail(404, "NOT_FOUND", route)

    def do_DELETE(self) -> None:
        route, query = self._route()
        if route != "DELETE /files":
            return self._fail(404, "NOT_FOUND", route)
        for path in map(Path, query.get("path", [])):
            if path.exists():
                path.unlink()
        return self._answer(200)

    def do_POST(self) -> None:
        route, _ = self._route()
        with tempfile.TemporaryFile() as body:
            self._receive(body)
            match route:
                case "POST /command":
                    body.seek(0)
                    self._command(json.load(body))
                case "POST /files/upload":
                    self._upload(body)
                case _:
                    self._fail(404, "NOT_FOUND", route)

    def _receive(self, body) -> None:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self._copy(int(self.headers.get("Content-Length") or 0), body)
        while size := int(self.rfile.readline().split(b";")[0], 16):
            self._copy(size, body)
            self.rfile.readline()
        self.rfile.readline()
        return None

    def _copy(self, size: int, body) -> None:
        while size and (chunk := self.rfile.read(min(size, 1 << 20))):
            body.write(chunk)
            size -= len(chunk)

    def _download(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self.send_response(200)
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self.end_headers()
                shutil.copyfileobj(file, self.wfile, 1 << 20)
        except FileNotFoundError as error:
            self._fail(404, "FILE_NOT_FOUND", f"file not found. {error}")
        except ConnectionError:
            raise
        except OSError as error:
            self._fail(500, "RUNTIME_ERROR", f"error accessing file: {error}")

    def _upload(self, body) -> None:
        boundary = re.search('boundary="?([^";]+)', self.headers["Content-Type"])
        assert boundary
        mark = b"--" + boundary[1].encode()
        body.flush()
        with mmap.mmap(body.fileno(), 0, access=mmap.ACCESS_READ) as data:
            described, start = {}, data.find(mark)
            while (end := data.find(b"\r\n" + mark, start + len(mark))) >= 0:
                content = data.find(b"\r\n\r\n", start) + 4
                if b'name="metadata"' in data[start:content]:
                    described = json.loads(data[content:end])
                elif (error := _write(described, memoryview(data)[content:end])) is not None:
                    return self._fail(500, "RUNTIME_ERROR", error)
                start = end + 2
        return self._answer(200)

    def _command(self, asked: dict) -> None:
        name = str(uuid.uuid4())
        paths = {kind: Path(tempfile.gettempdir()) / f"{name}.{kind}" for kind in ("stdout", "stderr")}
        uid = asked.get("uid")
        identity = {} if uid is None else {"user": uid, "group": asked.get("gid", 0), "extra_groups": []}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with paths["stdout"].open("wb") as out, paths["stderr"].open("wb") as err:
            try:
                process = subprocess.Popen(
                    [SHELL, "-c", asked["command"]],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=asked.get("cwd") or None,
                    env={**os.environ, **(asked.get("envs") or {})},
                    process_group=0,
                    **identity,
                )
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                self._event(type="init", text=name)
                self._end({"ename": "CommandExecError", "evalue": str(error), "traceback": [str(error)]})
                return
        self._event(type="init", text=name)
        code = self._follow(process, {kind: Lines(path) for kind, path in paths.items()}, asked.get("timeout"))
        failed: dict[str, Any] = {
            "ename": "CommandExecError",
            "evalue": str(code),
            "traceback": [f"exit status {code}"],
        }
        self._end(failed if code else None)

    def _follow(self, process: subprocess.Popen[bytes], tails: dict[str, Lines], timeout_ms: int | None) -> int:
        began = pinged = time.monotonic()
        watched = os.pidfd_open(process.pid)
        while True:
            ended = process.poll() is not None
            now = time.monotonic()
            for kind, tail in tails.items():
                for line in tail.read(rest=ended):
                    self._event(type=kind, text=line)
            if ended:
                os.close(watched)
                return -1 if process.returncode < 0 else process.returncode
            if self._client_gone() or (timeout_ms and now - began > timeout_ms / 1000):
                os.killpg(process.pid, signal.SIGKILL)
            elif now - pinged > PING_SECONDS:
                pinged = now
                self._event(type="ping", text="pong")
            select.select([watched], [], [], TICK_SECONDS)

    def _client_gone(self) -> bool:
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _event(self, **fields: object) -> None:
        frame = json.dumps({**fields, "timestamp": int(time.time() * 1000)}).encode() + b"\n\n"
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
        except ConnectionError:
            self.close_connection = True

    def _end(self, error: dict[str, Any] | None) -> None:
        if error:
            self._event(type="error", error=error)
        else:
            self._event(type="execution_complete", execution_time=1)
        time.sleep(LINGER_SECONDS)
        if not self.close_connection:
            self.wfile.write(b"0\r\n\r\n")


class Lines:
    """What has been added to a file, as lines of text: without their ends, and with U+FFFD for what is no UTF-8."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._left = b""

    def read(self, *, rest: bool) -> list[str]:
        """The lines since the last call; with `rest`, also what has no line end yet."""
        *whole, self._left = re.split(b"\r\n|\r|\n", self._left + self._file.read())
        if rest and self._left:
            whole.append(self._left)
        return [line.decode("utf-8", "replace") or "\n" for line in whole]


def _write(described: dict, content: memoryview) -> str | None:
    """Write an uploaded file where its description says; or why that failed."""
    path = Path(described["path"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)
        if described.get("mode"):
            path.chmod(int(str(described["mode"]), 8))
    except OSError as error:
        return f"error opening destination file {path}. {error}"
    finally:
        content.release()
    return None


if __name__ == "__main__":
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
