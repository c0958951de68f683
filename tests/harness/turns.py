"""Turns and adapters without a sandbox, for what they make of their settings."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from gym.harness.adapter import Turn
from gym.harness.agent import HarnessAgent
from gym.servers.base import ServerContext
from gym.servers.client import Client, Directory
from gym.servers.sessions import Signer

AgentT = TypeVar("AgentT", bound=HarnessAgent[Any])


def adapter(agent_class: type[AgentT], **settings: Any) -> AgentT:
    """An adapter with these settings."""
    model = {"type": "responses_api_models", "name": "m"}
    context = ServerContext("agent", Client(Directory(), "t"), Signer(b"s"), lambda _name: pytest.fail("no sandbox"))
    return agent_class(agent_class.config_type.model_validate({"model_server": model, **settings}), context)


def turn(**fields: Any) -> Turn:
    """A turn, with what matters to a test."""
    known: dict[str, Any] = {
        "command": ["/gym/harness/program"],
        "folder": "/.gym-1",
        "workdir": "/work",
        "model_url": "http://host:1/policy_model",
        "model_key": "key",
        "model_name": "policy",
        "tools": (),
        "system_prompt": "",
        "prompt": "do it",
        "timeout_seconds": 9.5,
    }
    return Turn(**known | fields)
