"""What no single value shows: keys that contradict each other, and features that cannot run here, by name."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from gym.harbor.config import Artifact, CollectHook, Environment, TaskTable, Verifier
from gym.harbor.toml import KeyPath

NEWEST_SCHEMA = (1, 4)
Check = Iterator[tuple[KeyPath, str, str]]


def check(table: TaskTable) -> Check:
    """Key, what is wrong, what to do."""
    yield from _version(table.schema_version)
    yield from _steps(table)
    yield from _environment(table.environment, ("environment",))
    yield from _services(table.artifacts, ("artifacts",))
    verifiers: list[tuple[KeyPath, Verifier]] = [(("verifier",), table.verifier)]
    verifiers += [(("steps", str(index), "verifier"), step.verifier) for index, step in enumerate(table.steps)]
    for key, verifier in verifiers:
        yield from _services(verifier.collect, (*key, "collect"))
        if verifier.environment is not None:
            yield from _environment(verifier.environment, (*key, "environment"))
            yield from _of_no_agent(verifier.environment, (*key, "environment"))
    for index, step in enumerate(table.steps):
        yield from _services(step.artifacts, ("steps", str(index), "artifacts"))


def _version(text: str) -> Check:
    parts = text.split(".")
    if not all(part.isdecimal() for part in parts) or len(parts) > 2:
        yield ("schema_version",), f"`{text}` is no version", 'write "1.4"'
    elif (int(parts[0]), int(parts[1]) if len(parts) > 1 else 0) > NEWEST_SCHEMA:
        newest = ".".join(map(str, NEWEST_SCHEMA))
        yield ("schema_version",), f"schema {text} is newer than {newest}, the newest one read here", ""


def _steps(table: TaskTable) -> Check:
    if table.multi_step_reward_strategy is not None and not table.steps:
        yield ("multi_step_reward_strategy",), "is for tasks with [[steps]], and this one has none", "leave it out"
    seen: dict[str, str] = {}
    for index, step in enumerate(table.steps):
        folded = unicodedata.normalize("NFC", step.name).casefold()
        if folded in seen:
            what = f"the step `{step.name}` has the name of the step `{seen[folded]}`"
            yield ("steps", str(index), "name"), what, "give each step a name of its own; case does not count"
        seen.setdefault(folded, step.name)


def _environment(environment: Environment, key: KeyPath) -> Check:
    if environment.os == "windows":
        yield (*key, "os"), "tasks in Windows containers are not supported", "this task cannot run here"
    names = [server.name for server in environment.mcp_servers]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield (*key, "mcp_servers", str(index), "name"), f"two MCP servers are named `{name}`", "rename one"


def _of_no_agent(environment: Environment, key: KeyPath) -> Check:
    for name in ("mcp_servers", "skills_dir"):
        if getattr(environment, name):
            yield (*key, name), "is for the agent, and a verifier's container has none", "leave it out"


def _services(items: Sequence[Artifact | CollectHook], key: KeyPath) -> Check:
    for index, item in enumerate(items):
        if item.service != "main":
            what = f"`{item.service}` is a container of docker-compose, and only `main` is supported"
            yield (*key, str(index), "service"), what, "this task cannot run here"
