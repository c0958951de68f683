"""`gym doctor`: what works on this machine, and what each missing part is needed for.

Nothing here fails for a missing part: which parts are needed depends on what is to be run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.errors import EXIT_OK, EXIT_WRONG_INPUT, UserError

NEEDED_PYTHON = (3, 11)
SECONDS = 5.0
LITTLE_DISK_GIB = 10
KEY_ENDINGS = ("_API_KEY", "_TOKEN")


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    state: Literal["ok", "missing", "note"]
    detail: str
    needed_for: str


def run(arguments: Arguments) -> int:
    """Prints the table. Returns 2 where Python is too old, else 0."""
    checks: list[Callable[[], Check]] = [
        _python, _bubblewrap, _docker, _node, _npm, _git, _disk, _endpoint, _keys, _user_file,
    ]  # fmt: skip
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        found = list(pool.map(lambda check: check(), checks))
    if arguments.json:
        print_json([asdict(item) for item in found])
    else:
        print_table(
            ["part", "state", "detail", "needed for"],
            [[item.name, item.state, item.detail, item.needed_for] for item in found],
        )
    return EXIT_OK if sys.version_info >= NEEDED_PYTHON else EXIT_WRONG_INPUT


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = ".".join(map(str, NEEDED_PYTHON))
    is_new = sys.version_info >= NEEDED_PYTHON
    return Check("python", "ok" if is_new else "missing", f"{version}; {wanted} or newer is needed", "everything")


def _bubblewrap() -> Check:
    from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

    purpose = "sandbox=local with isolation; real models in local sandboxes"
    try:
        provider = LocalProvider(LocalProviderConfig(isolation="bubblewrap"))
        return Check("bubblewrap", "ok", provider.describe(), purpose)
    except UserError as error:
        return Check("bubblewrap", "missing", error.problems[0].what, purpose)


def _docker() -> Check:
    purpose = "sandbox=docker"
    try:
        import docker
    except ImportError:
        return Check("docker", "missing", "the Python package docker is not installed", purpose)
    try:
        client = docker.from_env(timeout=int(SECONDS))
        try:
            return Check("docker", "ok", f"daemon {client.version()['Version']}", purpose)
        finally:
            client.close()
    except Exception as error:
        # Whatever the SDK raises, from a missing socket to a strange answer, means that it cannot be used.
        place = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        return Check("docker", "missing", f"no daemon answers at {place} ({type(error).__name__})", purpose)


def _node() -> Check:
    return _program("node", "harnesses that run on node")


def _npm() -> Check:
    return _program("npm", "installing harnesses that run on node")


def _git() -> Check:
    return _program("git", "the commit in provenance.json; some benchmarks")


def _program(name: str, purpose: str) -> Check:
    path = shutil.which(name)
    if path is None:
        return Check(name, "missing", "not on PATH", purpose)
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, "missing", f"{path} does not run: {_short(error)}", purpose)
    return Check(name, "ok", " ".join(run.stdout.split()[:4]), purpose)


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    state: Literal["ok", "note"] = "ok" if free >= LITTLE_DISK_GIB else "note"
    return Check("disk", state, f"{free:.1f} GiB free in this folder", "results, data sets, images")


def _endpoint() -> Check:
    purpose = "a real model; model-provider=embedded needs none"
    base = os.environ.get("POLICY_BASE_URL")
    if not base:
        return Check("policy endpoint", "note", "POLICY_BASE_URL is not set", purpose)
    try:
        status = _status(base.rstrip("/") + "/models", os.environ.get("POLICY_API_KEY", ""))
    except (OSError, ValueError) as error:
        return Check("policy endpoint", "missing", f"no answer from POLICY_BASE_URL: {_short(error)}", purpose)
    if status in (401, 403):
        return Check("policy endpoint", "missing", f"POLICY_API_KEY is refused (HTTP {status})", purpose)
    if status >= 400:
        return Check("policy endpoint", "note", f"answers, but not to GET /models (HTTP {status})", purpose)
    return Check("policy endpoint", "ok", f"GET /models: HTTP {status}", purpose)


def _status(url: str, key: str) -> int:
    """HTTP status of a GET with the key. Redirects are not followed: the key is for this host only."""
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    if not url.startswith(("http://", "https://")):
        raise ValueError("it is no http(s) URL")
    headers = {"authorization": f"Bearer {key}", "x-api-key": key, "anthropic-version": "2023-06-01"} if key else {}
    try:
        with build_opener(Stay).open(Request(url, headers=headers), timeout=SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


def _keys() -> Check:
    names = sorted(name for name, value in os.environ.items() if name.endswith(KEY_ENDINGS) and value)
    purpose = "model providers and gated data"
    return Check("keys", "ok" if names else "note", f"set: {', '.join(names) or 'none'}", purpose)


def _user_file() -> Check:
    path = Path("env.yaml")
    detail = "in this folder; it is read last, before the overrides" if path.is_file() else "none in this folder"
    return Check("env.yaml", "note", detail, "your endpoint, key and model name, kept out of git")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
