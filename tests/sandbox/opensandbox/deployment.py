"""A real OpenSandbox server for tests: the published package on the local Docker daemon.

Only the daemon inside the sandboxes, and the egress sidecar, are stand-ins of ours (`standin/`): their images are not
to be had without a registry.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from gym.sandbox.providers.opensandbox import OpenSandboxConfig
from tests.sandbox.opensandbox import images

SERVER = "GYM_TEST_OPENSANDBOX_SERVER"
START_SECONDS = 60.0
PORTS = 300

SERVE = """
folder=$1
shift
"$@" </dev/null &
cat >/dev/null
kill "$!"
wait "$!"
rm -rf -- "$folder"
"""
"""Ends the server and removes its folder with the test process, however that ends: it then closes the pipe."""

CONFIG = """
[server]
host = "127.0.0.1"
port = {port}
api_key = "{key}"
max_sandbox_timeout_seconds = 86400
[log]
level = "WARNING"
[runtime]
type = "docker"
execd_image = "{sandbox}"
[store]
type = "sqlite"
path = "{folder}/state.db"
[docker]
network_mode = "bridge"
port_range_min = {first}
port_range_max = {last}
publish_host = "127.0.0.1"
drop_capabilities = [
  "AUDIT_WRITE", "MKNOD", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_TIME", "SYS_TTY_CONFIG"
]
no_new_privileges = true
pids_limit = 4096
[ingress]
mode = "direct"
[egress]
image = "{egress}"
mode = "dns+nft"
disable_ipv6 = false
"""


@dataclass(frozen=True)
class Server:
    """A running server."""

    domain: str
    api_key: str

    def config(self, **more: object) -> OpenSandboxConfig:
        """Settings for it, with small sandboxes."""
        settings = {
            "domain": self.domain,
            "api_key": self.api_key,
            "default_image": images.SANDBOX,
            "default_memory_mib": 512,
            "enforces_egress": True,
        }
        return OpenSandboxConfig.model_validate(settings | more)


@functools.cache
def server() -> Server | str:
    """The server of this test process, started once; or why there is none."""
    program = os.environ.get(SERVER) or shutil.which("opensandbox-server")
    if not program:
        return f"no `opensandbox-server` on the path or in {SERVER}; .ci/opensandbox installs it"
    if importlib.util.find_spec("opensandbox") is None:
        return "the package `opensandbox` is not installed"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "no Docker daemon answers"
    try:
        images.build()
    except subprocess.CalledProcessError as error:
        return f"the images of the tests cannot be built: {error.stderr.decode(errors='replace').strip()[-300:]}"
    return _start(program)


def _start(program: str) -> Server | str:
    folder = Path(tempfile.mkdtemp(prefix="gym-opensandbox-"))
    key, port = secrets.token_hex(8), _free_port()
    first = 30000 + os.getpid() % 50 * PORTS
    config = CONFIG.format(
        port=port,
        key=key,
        folder=folder,
        sandbox=images.SANDBOX,
        egress=images.EGRESS,
        first=first,
        last=first + PORTS - 1,
    )
    (folder / "server.toml").write_text(config)
    with (folder / "log").open("wb") as log:
        words = ["sh", "-c", SERVE, "sh", str(folder), program, "--config", str(folder / "server.toml")]
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.PIPE, start_new_session=True)
    atexit.register(_stop, process)
    if not _answers(f"http://127.0.0.1:{port}/health", process):
        return f"the server does not start: {(folder / 'log').read_text(errors='replace')[-500:]}"
    return Server(f"127.0.0.1:{port}", key)


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return True
        time.sleep(0.1)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
