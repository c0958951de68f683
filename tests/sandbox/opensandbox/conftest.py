"""Fixtures of the tests that need an OpenSandbox server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gym.sandbox.providers.opensandbox import OpenSandboxProvider
from tests.conftest import needs
from tests.sandbox.opensandbox.deployment import Server, server


@pytest.fixture
def deployment() -> Server:
    """The server of this test process."""
    found = server()
    needs("OpenSandbox", present=isinstance(found, Server), reason=str(found))
    assert isinstance(found, Server)
    return found


@pytest.fixture
async def boxes(deployment: Server) -> AsyncIterator[OpenSandboxProvider]:
    """A provider that reaches sandboxes through the server."""
    made = OpenSandboxProvider(deployment.config())
    yield made
    await made.aclose()
