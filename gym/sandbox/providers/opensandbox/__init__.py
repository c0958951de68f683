"""Sandboxes of an OpenSandbox deployment."""

from gym.sandbox.providers.opensandbox.provider import OpenSandboxProvider
from gym.sandbox.providers.opensandbox.settings import OpenSandboxConfig

__all__ = ["OpenSandboxConfig", "OpenSandboxProvider"]
