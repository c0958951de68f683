"""Keeps MCP servers that are commands: each is started once, and every call of a tool reaches it over a socket.

Runs in the sandbox, with the harness's own Python and nothing but its standard library. Each command of the model is a
new process, and a server has to outlive these: it keeps its state between the calls of its tools.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

Object = dict[str, Any]
PROTOCOL = "2025-06-18"
START_SECONDS = 60.0
END_SECONDS = 3.0
ERROR_BYTES = 500
NO_METHOD = {"code": -32601, "message": "this client has no such method"}


class ServerFailed(Exception):
    """A server did not start, ended, gave no answer, or refused; the text says how."""


class Process:
    """A server, spoken to over its standard input and output."""

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self._errors = folder / f"{name}.errors"
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Object]] = {}
        self._writing = threading.Lock()
        with self._errors.open("wb") as errors:
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            except OSError as error:
                raise ServerFailed(f"{command[0]}: {error.strerror}") from error
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self) -> None:
        """Agrees on the protocol."""
        client = {"name": "gym", "version": "1"}
        self.ask("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}, START_SECONDS)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, params: Object, seconds: float) -> Object:
        """The server's answer."""
        number = next(self._numbers)
        answered = self._waiting[number] = Future()
        try:
            self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            answer = answered.result(seconds)
        except TimeoutError as error:
            raise ServerFailed(f"no answer to {method} within {seconds:.0f} s") from error
        finally:
            del self._waiting[number]
        if "error" in answer:
            raise ServerFailed(str((answer["error"] or {}).get("message")))
        result: Object = answer.get("result") or {}
        return result

    def end(self) -> None:
        """Ends it as the protocol wants it: its input ends; then it is told to; then it is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for insist in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                insist()
        self._process.wait()
        self._reader.join(END_SECONDS)

    def _write(self, message: Object) -> None:
        assert self._process.stdin is not None
        try:
            with self._writing:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._ended() from error

    def _read(self) -> None:
        """Hands answers to those who wait. What is no message is passed over; requests of the server are refused."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError, TypeError):
                    self._take(json.loads(line))
        for waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(self._ended())

    def _take(self, message: Any) -> None:
        if not isinstance(message, dict):
            return
        if "method" in message:
            self._refuse(message)
        elif (waiting := self._waiting.get(message.get("id", 0))) is not None and not waiting.done():
            waiting.set_result(message)

    def _refuse(self, message: Object) -> None:
        if "id" not in message:
            return
        said: Object = {"result": {}} if message["method"] == "ping" else {"error": NO_METHOD}
        with contextlib.suppress(ServerFailed):
            self._write({"jsonrpc": "2.0", "id": message["id"], **said})

    def _ended(self) -> ServerFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        last = self._errors.read_bytes()[-ERROR_BYTES:].decode("utf-8", "replace").strip()
        return ServerFailed(f"it has ended, with exit code {self._process.returncode}: {last or 'it said nothing'}")


class _Socket(socketserver.ThreadingUnixStreamServer):
    """Where a server is reached; one that could not be started tells why."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: str, process: Process | None, failure: str) -> None:
        self.process = process
        self.failure = failure
        super().__init__(path, _Call)


class _Call(socketserver.StreamRequestHandler):
    server: _Socket

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        with contextlib.suppress(OSError):  # who asked has gone
            self.wfile.write(json.dumps(self._answer(**asked)).encode() + b"\n")

    def _answer(self, method: str, params: Object, seconds: float) -> Object:
        if self.server.process is None:
            return {"error": self.server.failure}
        try:
            return {"result": self.server.process.ask(method, params, seconds)}
        except ServerFailed as failure:
            return {"error": str(failure)}


@contextlib.contextmanager
def kept(folder: Path, servers: list[Object]) -> Iterator[None]:
    """The servers that are commands run and can be asked; at the end they are gone."""
    with contextlib.ExitStack() as stack:
        for settings in servers:
            if settings["command"]:
                _keep(stack, folder, settings["name"], settings["command"])
        yield


def _keep(stack: contextlib.ExitStack, folder: Path, name: str, command: list[str]) -> None:
    process, failure = None, ""
    try:
        process = Process(command, folder, name)
        stack.callback(process.end)
        process.begin()
    except ServerFailed as error:
        process, failure = None, str(error)
    with _near(folder, name) as path:
        Path(path).unlink(missing_ok=True)
        listening = _Socket(path, process, failure)
    stack.callback(listening.server_close)
    threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    stack.callback(listening.shutdown)


def ask(folder: Path, name: str, method: str, params: Object, seconds: float) -> Object:
    """The answer of a server that is kept by another process.

    Raises:
        ServerFailed: It has none.
    """
    asked = json.dumps({"method": method, "params": params, "seconds": seconds})
    try:
        with _near(folder, name) as path, socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(seconds + END_SECONDS)
            asking.connect(path)
            asking.sendall(asked.encode() + b"\n")
            with asking.makefile("rb") as answers:
                answer: Object = json.loads(answers.readline())
    except (OSError, ValueError) as error:
        raise ServerFailed(f"it is not there any more ({error})") from error
    if "error" in answer:
        raise ServerFailed(answer["error"])
    result: Object = answer["result"]
    return result


@contextlib.contextmanager
def _near(folder: Path, name: str) -> Iterator[str]:
    """The path of a socket: a short one, however long that of the folder is."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{at}/{name}.socket"
    finally:
        os.close(at)
