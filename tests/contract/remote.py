"""The world's servers in processes of their own, and a stand-in for each: it asks the server for what tests look at.

A server there is of a class that answers `/probe` besides; the stand-in passes for the server's own class.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import logging
import pickle
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from gym.launch.hosting import Apart, Hosted, Place, hosted
from gym.launch.in_process import Instance
from gym.sandbox.interface import SandboxProvider
from gym.servers.base import Call, Server, route

PREFIX = "Probed "


class Question(BaseModel):
    """Reads an attribute, sets it, or calls a method of it."""

    name: str
    method: str = ""
    value: str = ""


class Probe(Server[Any]):
    """Shows a server's attributes to tests."""

    @route("/probe")
    async def probe(self, body: Question, call: Call) -> Any:
        """The attribute as a pickle."""
        if body.value:
            setattr(self, body.name, _unpacked(body.value))
        found = getattr(self, body.name)
        if body.method:
            found = getattr(found, body.method)()
        return _packed(_portable(found))


def _portable(value: Any) -> Any:
    if isinstance(value, asyncio.Event):
        return asyncio.Event
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if hasattr(value, "activation"):
        return SimpleNamespace(activation=value.activation)
    return value


def _packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def __getattr__(name: str) -> type[Server[Any]]:
    """The class of a server with a probe, by the server's own class: `Probed module:Class`."""
    if not name.startswith(PREFIX):
        raise AttributeError(name)
    module, _, class_name = name.removeprefix(PREFIX).replace("/", ".").partition(":")
    inner = getattr(importlib.import_module(module), class_name)
    made = type(name, (Probe, inner), {"__module__": __name__})
    globals()[name] = made
    return made


def probed(instance: Instance) -> Instance:
    """The instance with a probe."""
    inner = instance.server_class
    name = f"{PREFIX}{inner.__module__.replace('.', '/')}:{inner.__qualname__}"
    return replace(instance, server_class=globals().get(name) or __getattr__(name))


class StandIn:
    """Passes for a server of another process. Asking blocks: it is another process, and answers in a moment."""

    def __init__(self, cls: type[Any], url: str, token: str) -> None:
        self.__dict__.update(_cls=cls, _url=url, _token=token)

    @property  # type: ignore[misc]  # `isinstance` reads it so
    def __class__(self) -> Any:
        """The class that it stands for."""
        return self.__dict__["_cls"]

    def __getattr__(self, name: str) -> Any:
        found = self._ask(name=name)
        return EventStandIn(self, name) if found is asyncio.Event else found

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask(name=name, value=_packed(value))

    def _ask(self, **question: str) -> Any:
        headers = {"content-type": "application/json", "x-api-key": self._token}
        asked = urllib.request.Request(f"{self._url}/probe", json.dumps(question).encode(), headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return _unpacked(json.load(answer))


class EventStandIn:
    """Passes for an event of a server."""

    def __init__(self, server: StandIn, name: str) -> None:
        self._server, self._name = server, name

    def set(self) -> None:
        """Sets it."""
        self._server._ask(name=self._name, method="set")

    def clear(self) -> None:
        """Clears it."""
        self._server._ask(name=self._name, method="clear")

    async def wait(self) -> None:
        """Waits until it is set."""
        async with asyncio.timeout(30):
            while not self._server._ask(name=self._name, method="is_set"):
                await asyncio.sleep(0.002)


def _no_sandboxes(name: str) -> SandboxProvider:
    raise AssertionError(name)


def _logged(line: str) -> str:
    """What the processes log, the tests' own log has too."""
    logging.getLogger(__name__).warning("%s", line)
    return line


@asynccontextmanager
async def in_processes(instances: Sequence[Instance]) -> AsyncIterator[tuple[Hosted, dict[str, Any]]]:
    """Runs each server in a process of its own; gives a stand-in for each."""
    apart = [Apart(probed(instance), {}) for instance in instances]
    async with hosted([], apart, sandboxes=_no_sandboxes, place=Place(redact=_logged)) as running:
        token = running.launched.token
        yield (
            running,
            {item.name: StandIn(item.server_class, running.url(item.name), token) for item in instances},
        )
